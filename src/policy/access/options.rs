//! The settings of the section `access`.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of access control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether it is asked, and whether the answer counts.
    pub mode: Mode,
    /// What becomes of credentials outside TLS.
    pub cleartext: Cleartext,
    /// Whether a name that a user may not reach and one that is not on the allowlist are answered alike.
    pub hide_names: bool,
    /// Whether a tunnel outlives the credential that opened it.
    pub at_expiry: AtExpiry,
    /// The kubeconfig of all that reads a cluster here; `None` is that of the pod or the user.
    pub kubeconfig: Option<PathBuf>,
    /// The API server as authenticator and authorizer.
    pub kubernetes: Option<Kubernetes>,
    /// The OIDC issuers whose tokens are verified here.
    pub oidc: Vec<Issuer>,
    /// The file of users and password hashes.
    pub users: Option<PathBuf>,
    /// Short tickets in place of tokens.
    pub tickets: Option<TicketOptions>,
}

impl Options {
    /// Returns whether any of it reads a cluster.
    pub fn reads_cluster(&self) -> bool {
        self.kubernetes.is_some() || self.tickets.is_some()
    }
}

/// Whether the question is asked at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// No: every client reaches every target of the allowlist. Credentials are not looked at.
    #[default]
    Open,
    /// Yes, and what would be refused is logged and counted, and served.
    Report,
    /// Yes, and the answer counts.
    Enforce,
}

/// What becomes of credentials outside TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleartext {
    /// They are refused, but for those of clients at a loopback address.
    #[default]
    Refuse,
    /// They are accepted: a load balancer ends TLS.
    Allow,
}

/// What happens to a tunnel when the credential that opened it expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtExpiry {
    /// It goes on: the credential proved the user when it was opened.
    #[default]
    Keep,
    /// It ends.
    Close,
}

/// The API server as authenticator and authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// The audiences of which a token must have one; empty text is the API server's own.
    pub audiences: Vec<Box<str>>,
    /// Whether a client certificate proves a user: its common name, with its organizations as groups.
    pub certificates: bool,
    /// What a user must be allowed to do.
    pub check: Check,
    /// How often each user with tunnels to a target is asked about again.
    pub recheck: Duration,
    /// Whether a changed role or binding asks again at once.
    pub watch_rbac: bool,
    /// How long a yes counts for new tunnels while the API server does not answer.
    pub stale: Duration,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            audiences: vec!["switchboard".into()],
            certificates: true,
            check: Check::default(),
            recheck: Duration::from_mins(5),
            watch_rbac: true,
            stale: Duration::from_mins(10),
        }
    }
}

/// The right that opens a target. See [`Action`](super::Action).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The verb.
    pub verb: Box<str>,
    /// The API group; empty for the core group.
    pub group: Box<str>,
    /// The resource.
    pub resource: Box<str>,
    /// The subresource; it may be empty.
    pub subresource: Box<str>,
    /// Whether it is asked of the Service by its name, and not of all objects of the namespace.
    pub named: bool,
}

/// `create services/ssh`, of the Service by its name.
impl Default for Check {
    fn default() -> Self {
        Self {
            verb: "create".into(),
            group: "".into(),
            resource: "services".into(),
            subresource: "ssh".into(),
            named: true,
        }
    }
}

impl Check {
    /// `create pods/portforward` in the namespace: what `kubectl port-forward` needs.
    pub fn port_forward() -> Self {
        Self {
            resource: "pods".into(),
            subresource: "portforward".into(),
            named: false,
            ..Self::default()
        }
    }
}

/// An OIDC issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// The claim `iss`.
    pub issuer: Box<str>,
    /// The audiences of which the claim `aud` must hold one; at least one.
    pub audiences: Vec<Box<str>>,
    /// The claim that is the user's name.
    pub username: Box<str>,
    /// The claim that lists the groups, if there is one.
    pub groups: Option<Box<str>>,
    /// Where its keys are.
    pub jwks: Jwks,
    /// The authorities that sign the server's certificate; `None` trusts the system's.
    pub ca: Option<PathBuf>,
}

/// A JSON Web Key Set (RFC 7517).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwks {
    /// A file, read again when it changes.
    File(PathBuf),
    /// An `https://` URL, or `http://` of a loopback address, asked again from time to time.
    Url(Box<str>),
}

/// Short tickets in place of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketOptions {
    /// The longest life of a ticket.
    pub ttl: Duration,
    /// The Secret with the tickets that operators make.
    pub secret: SecretName,
}

/// The name of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    /// Its namespace; `None` is that of the pod, or of the kubeconfig's context.
    pub namespace: Option<Box<str>>,
    /// Its name.
    pub name: Box<str>,
}

impl Default for TicketOptions {
    fn default() -> Self {
        Self {
            ttl: Duration::from_hours(12),
            secret: SecretName {
                namespace: None,
                name: "switchboard-tickets".into(),
            },
        }
    }
}

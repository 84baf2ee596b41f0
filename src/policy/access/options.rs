//! The settings of the section `access`.

mod permission;

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use serde::Deserialize;

pub use self::permission::{NamedObject, Permission};
use crate::base::values::{self, is_label, is_name, is_object_name, is_reserved};
use crate::base::yaml::forms::{self, DURATION, Schema};

/// The settings of access control.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The mode of access control.
    pub mode: Mode,
    /// The treatment of credentials outside TLS.
    pub cleartext: Cleartext,
    /// True if a name that a user may not reach and one that is not on the allowlist are answered alike.
    pub hide_names: bool,
    /// The treatment of tunnels whose credential has expired.
    pub on_expiry: OnExpiry,
    /// The API server as authenticator and authorizer.
    pub kubernetes: Option<Kubernetes>,
    /// The OIDC issuers whose tokens are verified here.
    pub oidc: Vec<Issuer>,
    /// The file of users.
    pub users: Option<UserFileOptions>,
    /// The file of authorities whose SSH certificates prove users.
    pub ssh_authorities: Option<UserFileOptions>,
    /// A Secret with public keys of users.
    pub ssh_keys: Option<KeySecretOptions>,
    /// Short tickets instead of tokens.
    pub tickets: Option<TicketOptions>,
}

impl Options {
    /// Returns whether any of these settings reads a cluster.
    pub fn reads_cluster(&self) -> bool {
        self.kubernetes.is_some() || self.tickets.is_some() || self.ssh_keys.is_some()
    }
}

/// The mode of access control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every client reaches every target of the allowlist. Credentials are ignored.
    #[default]
    Open,
    /// Access is decided; what would be refused is logged, counted and served.
    Report,
    /// Access is decided, and the decision is enforced.
    Enforce,
}

/// The treatment of credentials outside TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cleartext {
    /// They are refused.
    Refuse,
    /// They are refused, except from clients at a loopback address.
    #[default]
    Loopback,
    /// They are accepted: a load balancer ends TLS.
    Allow,
}

/// The treatment of a tunnel when the credential that opened it expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExpiry {
    /// The tunnel goes on: the credential proved the user at its start.
    #[default]
    Keep,
    /// The tunnel ends.
    Close,
}

/// The API server as authenticator and authorizer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kubernetes {
    /// True if it is used.
    pub enabled: bool,
    /// The kubeconfig file of the API server.
    pub kubeconfig: Option<PathBuf>,
    /// The audiences of which a token must have one; the empty string is the API server's own.
    #[serde(deserialize_with = "forms::list::<Audience, _, _>")]
    pub audiences: Vec<Box<str>>,
    /// True if a client certificate proves a user: its common name, with its organizations as groups.
    pub certificates: bool,
    /// The permission that a user needs.
    #[serde(deserialize_with = "permission::read")]
    pub permission: Permission,
    /// The interval in which each user with tunnels to a target is rechecked.
    #[serde(deserialize_with = "forms::one::<Recheck, _>")]
    pub recheck: Duration,
    /// True if a changed role or binding causes a recheck at once.
    pub watch_rbac: bool,
    /// How long an approval counts for new tunnels while the API server does not answer.
    #[serde(deserialize_with = "forms::one::<Stale, _>")]
    pub stale: Duration,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            enabled: false,
            kubeconfig: None,
            audiences: vec!["switchboard".into()],
            certificates: true,
            permission: Permission::default(),
            recheck: Duration::from_mins(5),
            watch_rbac: true,
            stale: Duration::from_mins(10),
        }
    }
}

/// An OIDC issuer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename = "issuer, audiences, jwks", deny_unknown_fields)]
pub struct Issuer {
    /// The claim `iss`.
    pub issuer: Box<str>,
    /// The audiences of which the claim `aud` must hold one; at least one.
    #[serde(deserialize_with = "forms::list::<IssuerAudience, _, _>")]
    pub audiences: Vec<Box<str>>,
    /// The claim that is the user's name. The default is `sub`: every token has it, and the issuer never reassigns its
    /// value to another user (OpenID Connect Core 1.0, section 2).
    #[serde(default = "subject")]
    pub username: Box<str>,
    /// The prefix of its users' names, before the claim; `None` if the setting is absent, see [`UserFileOptions`].
    #[serde(default, deserialize_with = "forms::some::<NamePrefix, _>")]
    pub username_prefix: Option<Box<str>>,
    /// The claim that lists the groups, if there is one.
    pub groups: Option<Box<str>>,
    /// Where its keys are.
    #[serde(deserialize_with = "forms::one::<KeySet, _>")]
    pub jwks: Jwks,
    /// The authorities that sign the server's certificate; `None` trusts the system's.
    pub ca: Option<PathBuf>,
    /// True if the forward proxy of the environment is not used.
    #[serde(default)]
    pub no_env_proxy: bool,
}

/// A file of users, with password hashes and public keys, or one of authorities for SSH certificates.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename = "file", deny_unknown_fields)]
pub struct UserFileOptions {
    /// Its path.
    pub file: PathBuf,
    /// The prefix of its users' names, before the name in the file. With an empty prefix, `alice` of this file and of
    /// another source are one user. `None` has the same effect, with a warning.
    #[serde(default, deserialize_with = "forms::some::<NamePrefix, _>")]
    pub username_prefix: Option<Box<str>>,
}

/// A JSON Web Key Set (RFC 7517).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwks {
    /// A file, read again when it changes.
    File(PathBuf),
    /// An `https://` URL, or `http://` of a loopback address, fetched periodically.
    Url(Uri),
}

/// Short tickets instead of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TicketOptions {
    /// True if they are accepted.
    pub enabled: bool,
    /// The longest life of a ticket.
    #[serde(deserialize_with = "forms::one::<TicketLife, _>")]
    pub ttl: Duration,
    /// The Secret with the tickets that operators make.
    #[serde(deserialize_with = "forms::one::<SecretForm, _>")]
    pub secret: SecretName,
}

/// A Secret with public keys of users.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeySecretOptions {
    /// True if they are accepted.
    pub enabled: bool,
    /// The Secret, with a key for each user.
    #[serde(deserialize_with = "forms::one::<SecretForm, _>")]
    pub secret: SecretName,
    /// The prefix of its users' names, see [`UserFileOptions`].
    #[serde(deserialize_with = "forms::some::<NamePrefix, _>")]
    pub username_prefix: Option<Box<str>>,
}

impl Default for KeySecretOptions {
    fn default() -> Self {
        Self {
            enabled: false,
            secret: SecretName {
                namespace: None,
                name: "switchboard-ssh-keys".into(),
            },
            username_prefix: None,
        }
    }
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
            enabled: false,
            ttl: Duration::from_hours(12),
            secret: SecretName {
                namespace: None,
                name: "switchboard-tickets".into(),
            },
        }
    }
}

forms::forms! {
    Audience: Box<str> = |text: &str| Ok::<_, &str>(text.into()), Schema::Pattern(""),
        at least one: "at least one audience is needed; `\"\"` is the API server's own";
    IssuerAudience: Box<str> = values::text, Schema::Text,
        at least one: "at least one audience is needed: a token for another service proves no user here";
    Recheck: Duration = |text| within_a_day(text, FREQUENT, ["must be at least 10s: answers count for that long", LOST]), DURATION;
    Stale: Duration = |text| within_a_day(text, Duration::ZERO, ["", LOST]), DURATION;
    NamePrefix: Box<str> = name_prefix, Schema::Pattern("");
    KeySet: Jwks = Jwks::from_str, Schema::Text;
    TicketLife: Duration = |text| within_a_day(text, MIN_LIFETIME, ["must be at least 10m", "must be at most 1d"]), DURATION;
    SecretForm: SecretName = secret, Schema::Pattern("^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$");
}

fn subject() -> Box<str> {
    "sub".into()
}

/// Parses a prefix of users' names: any but `system:`, with which the cluster's own names begin.
fn name_prefix(text: &str) -> Result<Box<str>, &'static str> {
    match text {
        "" => Ok(Box::default()),
        text if is_name(text, MAX_PREFIX) && !is_reserved(text) => Ok(text.into()),
        _ => Err("expected the beginning of a name, such as `oidc:`: at most 64 bytes, and not `system:`"),
    }
}

/// Parses a duration from `least` to a day. `reasons` are the errors for a shorter and for a longer one.
fn within_a_day(text: &str, least: Duration, reasons: [&'static str; 2]) -> Result<Duration, &'static str> {
    match values::duration(text)? {
        short if short < least => Err(reasons[0]),
        long if long > Duration::from_hours(24) => Err(reasons[1]),
        duration => Ok(duration),
    }
}

/// Parses `NAME` or `NAMESPACE/NAME`, each as the API server accepts it (RFC 1123).
fn secret(text: &str) -> Result<SecretName, &'static str> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    if !is_object_name(name) || !namespace.is_none_or(is_label) {
        return Err("expected the name of a Secret, or NAMESPACE/NAME, in lower case letters, digits, `-` and `.`");
    }
    Ok(SecretName {
        namespace: namespace.map(Box::from),
        name: name.into(),
    })
}

/// Parses a path or a URL. A key set that crosses the network in clear can be replaced on the way.
impl FromStr for Jwks {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err("expected the path of a file, or an `https://` URL");
        }
        if !text.contains("://") {
            return Ok(Self::File(text.into()));
        }
        let url: Uri = text.parse().map_err(|_| NOT_A_URL)?;
        let authority = url.authority().filter(|authority| !authority.as_str().contains('@'));
        let (authority, host) = authority.map(|own| (own.as_str(), own.host())).ok_or(NOT_A_URL)?;
        if authority != host && url.port_u16().is_none_or(|port| port == 0) {
            return Err("expected a port from 1 to 65535");
        }
        match url.scheme_str() {
            Some("https") => Ok(Self::Url(url)),
            Some("http") if host == "localhost" || is_loopback(host) => Ok(Self::Url(url)),
            Some("http") => Err("the keys would cross the network in clear: `http://` is for loopback addresses only"),
            _ => Err(NOT_A_URL),
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    address.is_ok_and(|address: IpAddr| address.is_loopback())
}

/// In bytes.
const MAX_PREFIX: usize = 64;
const NOT_A_URL: &str = "expected the path of a file, or a URL such as `https://id.example.com/keys`";
/// Ten times what clocks may differ by.
const MIN_LIFETIME: Duration = Duration::from_mins(10);
const FREQUENT: Duration = Duration::from_secs(10);
const LOST: &str = "must be at most 1d: a user keeps a lost right for that long";

//! A user that a credential or a client certificate proves.

use std::collections::BTreeMap;
use std::time::SystemTime;

/// A user, as Kubernetes describes one (`UserInfo` of `authentication.k8s.io/v1`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name, such as `alice@example.com` or `system:serviceaccount:team-a:ci`.
    pub name: Box<str>,
    /// The id that outlives a name, if the authenticator has one.
    pub uid: Option<Box<str>>,
    /// The groups. Every user is in [`AUTHENTICATED`].
    pub groups: Vec<Box<str>>,
    /// Further attributes of the authenticator, sent with every review.
    pub extra: BTreeMap<Box<str>, Vec<Box<str>>>,
    /// How the user was authenticated.
    pub method: Method,
    /// When the credential expires, if it says so.
    pub expires: Option<SystemTime>,
}

impl User {
    /// Creates a user that another source than the API server names. It adds [`AUTHENTICATED`] to the groups.
    pub(super) fn claimed(method: Method, name: &str, mut groups: Vec<Box<str>>, expires: Option<SystemTime>) -> Self {
        groups.push(AUTHENTICATED.into());
        Self {
            name: name.into(),
            uid: None,
            groups,
            extra: BTreeMap::new(),
            method,
            expires,
        }
    }

    /// Returns whether it is no user: the API server names `system:anonymous` if it sees no credential, or a token that begins
    /// with a space.
    pub fn is_anonymous(&self) -> bool {
        let is_named = !matches!(&*self.name, "" | "system:anonymous");
        !is_named || self.groups.iter().any(|group| **group == *UNAUTHENTICATED)
    }

    /// Returns whether the API server has named the user, so that the id is one of the cluster's.
    pub(super) fn is_of_cluster(&self) -> bool {
        self.method == Method::TokenReview
    }

    /// Returns whether the credential has expired, by the system's clock.
    pub(super) fn has_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= SystemTime::now())
    }

    /// Returns whether that is the user's id in the cluster. The ids of other sources are not the cluster's.
    pub(super) fn has_id(&self, id: &str) -> bool {
        self.is_of_cluster() && self.uid.as_deref() == Some(id)
    }

    /// Returns how much memory the user takes, in bytes.
    pub(super) fn size(&self) -> usize {
        let texts = |texts: &[Box<str>]| texts.iter().map(|text| text.len() + TEXT).sum::<usize>();
        let extra = self.extra.iter();
        let extra = extra.map(|(name, values)| name.len() + 4 * TEXT + texts(values));
        let id = self.uid.as_ref().map_or(0, |id| id.len());
        size_of::<Self>() + self.name.len() + id + texts(&self.groups) + extra.sum::<usize>()
    }
}

/// How a user was authenticated: the label `method`, and the log field `auth.method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// A token that the API server has reviewed.
    TokenReview,
    /// A token whose signature is that of a configured OIDC issuer.
    Oidc,
    /// A password of the users file.
    Password,
    /// A public key of the users file.
    PublicKey,
    /// A certificate of an SSH key.
    SshCertificate,
    /// A ticket.
    Ticket,
    /// The certificate of the TLS handshake.
    Certificate,
}

impl Method {
    /// Every method, for metrics that begin at 0.
    pub const ALL: [Self; 7] = [
        Self::TokenReview,
        Self::Oidc,
        Self::Password,
        Self::PublicKey,
        Self::SshCertificate,
        Self::Ticket,
        Self::Certificate,
    ];

    /// Returns whether the files of `access` prove it, under the user name that the client has sent.
    pub fn is_of_file(self) -> bool {
        matches!(self, Self::Password | Self::PublicKey | Self::SshCertificate)
    }

    /// Returns whether it is a key with which an SSH client has signed.
    pub(super) fn is_of_ssh(self) -> bool {
        matches!(self, Self::PublicKey | Self::SshCertificate)
    }

    /// Returns the value of the label.
    pub fn label(self) -> &'static str {
        match self {
            Self::TokenReview => "token_review",
            Self::Oidc => "oidc",
            Self::Password => "password",
            Self::PublicKey => "public_key",
            Self::SshCertificate => "ssh_certificate",
            Self::Ticket => "ticket",
            Self::Certificate => "certificate",
        }
    }
}

/// The group of all users that are known.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of requests without a user.
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Bytes of a string on the heap besides its characters.
const TEXT: usize = 32;

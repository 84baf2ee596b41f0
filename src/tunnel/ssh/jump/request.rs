//! The requests of an SSH connection: a login, then a channel for each tunnel.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

use super::channel::Channel;
use crate::base::secret::Secret;
use crate::protocol::host_key::HostKey;

/// The next thing that a client wants.
#[derive(Debug)]
pub enum Event {
    /// To log in: the keys are exchanged.
    KeysExchanged,
    /// It presents a credential.
    Login(Login),
    /// It is authenticated.
    LoggedIn,
    /// It wants a tunnel.
    Channel(ChannelRequest),
}

/// The proof that a client needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginRule {
    /// Nothing.
    Open,
    /// A user, by a password, token or ticket.
    Password,
    /// A user, by the same, by a public key, or by a certificate of one.
    PasswordOrKey,
}

/// A login, or a question before one.
#[derive(Debug)]
pub struct Login {
    /// The user name of the connection.
    pub user: Box<str>,
    /// The credential.
    pub proof: Proof,
    /// The answer. A drop rejects it.
    pub answer: oneshot::Sender<bool>,
}

/// A credential.
#[derive(Debug)]
pub enum Proof {
    /// A password, token or ticket, by `password` or `keyboard-interactive` (RFC 4252 section 8, RFC 4256).
    Password(Secret),
    /// A key that would be signed with (RFC 4252 section 7). It proves nothing, and its answer logs nobody in.
    OfferedKey(HostKey),
    /// A key with a signature, which was verified.
    Key(HostKey),
    /// A certificate whose key has signed. Both signatures were verified.
    Certificate(UserCertificate),
}

/// A certificate of an SSH key, as its authority has signed it (PROTOCOL.certkeys of OpenSSH).
#[derive(Clone, Debug)]
pub struct UserCertificate {
    /// The key of the authority.
    pub authority: HostKey,
    /// True if it is for users, and not for hosts.
    pub is_for_users: bool,
    /// The names of its users.
    pub principals: Box<[String]>,
    /// The first second in which it is valid, and the first one in which it is no longer, since 1970.
    pub validity: Range<u64>,
    /// The options that restrict it.
    pub critical_options: BTreeMap<String, String>,
    /// True if it has the extension `permit-port-forwarding`.
    pub permits_forwarding: bool,
    /// The SHA-256 of all of it.
    pub digest: [u8; 32],
}

impl UserCertificate {
    /// Returns when it expires; `None` if it does not within 8,000 years.
    pub fn expires(&self) -> Option<SystemTime> {
        let end = Some(self.validity.end).filter(|end| *end < FOREVER)?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(end))
    }
}

/// The end of the year 9999.
const FOREVER: u64 = 253_402_300_800;

/// A channel `direct-tcpip` that has not been answered (RFC 4254 section 7.2).
pub struct ChannelRequest {
    /// The host, as the client sent it.
    pub host: Box<str>,
    /// The port, as the client sent it.
    pub port: u32,
    channel: Channel,
    answer: Answer,
}

/// Sends the answer: a confirmation, or a refusal with a sentence.
pub(super) type Answer = Box<dyn FnOnce(Result<(), String>) + Send + Sync>;

impl fmt::Debug for ChannelRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, .. } = self;
        f.debug_struct("ChannelRequest")
            .field("host", host)
            .field("port", port)
            .finish_non_exhaustive()
    }
}

impl ChannelRequest {
    pub(super) fn new((host, port): (&str, u32), channel: Channel, answer: Answer) -> Self {
        let host = host.into();
        Self {
            host,
            port,
            channel,
            answer,
        }
    }

    /// Returns the target as a client of HTTP would name it.
    pub fn asked_for(&self) -> String {
        let Self { host, port, .. } = self;
        match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        }
    }

    /// Confirms the channel, and returns it; `None` if its client has left.
    pub fn accept(self) -> Option<Channel> {
        if self.channel.has_ended() {
            return None;
        }
        (self.answer)(Ok(()));
        Some(self.channel)
    }

    /// Refuses the channel with a sentence, which OpenSSH prints.
    pub fn refuse(self, sentence: &str) {
        (self.answer)(Err(sentence.to_owned()));
    }

    /// Completes when the client has left.
    pub async fn client_gone(&self) {
        self.channel.ended().await;
    }
}

//! The TLS settings of a process and of its ports.

use std::path::PathBuf;
use std::time::Duration;

/// Whether a public port speaks TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It does not.
    #[default]
    Off,
    /// If the client does: its first byte tells.
    Optional,
    /// Only that.
    Required,
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClientAuth {
    /// They are not asked.
    #[default]
    Off,
    /// Those that have one; it must be good.
    Optional,
    /// All of them.
    Required,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// PEM, the certificate first and what leads to its authority behind it.
    pub cert: PathBuf,
    /// PEM, not encrypted.
    pub key: PathBuf,
}

/// What the process shows to clients, and wants to see of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Chosen by the name that the client asks for; the first one is for all other names.
    pub certificates: Vec<Pair>,
    /// Whether clients show theirs.
    pub client_auth: ClientAuth,
    /// PEM: who may have issued a client's.
    pub client_ca: Option<PathBuf>,
    /// PEM: which of them are revoked.
    pub crl: Option<PathBuf>,
    /// How often the files are looked at.
    pub poll: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            certificates: Vec::new(),
            client_auth: ClientAuth::Off,
            client_ca: None,
            crl: None,
            poll: Duration::from_secs(10),
        }
    }
}

/// How long a handshake may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// From its first byte to its last.
    pub handshake: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
        }
    }
}

//! The TLS settings of a process and of its ports.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::base::yaml::forms;

/// The use of TLS on a public port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// No TLS.
    #[default]
    Off,
    /// With clients whose first byte begins a TLS handshake.
    Optional,
    /// TLS only.
    Required,
}

/// The demand for client certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// No client is asked for one.
    #[default]
    Off,
    /// Clients may present one, which must be valid.
    Optional,
    /// All clients must present one.
    Required,
}

/// The treatment of client certificates whose revocation list is past its nextUpdate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrlExpired {
    /// They are refused: the list does not say what was revoked since.
    #[default]
    Refuse,
    /// The list counts as it is.
    Accept,
}

/// The paths of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename = "cert, key", deny_unknown_fields)]
pub struct CertificatePaths {
    /// PEM: the certificate first, the intermediate ones after it.
    pub cert: PathBuf,
    /// PEM, not encrypted.
    pub key: PathBuf,
}

/// The certificates of the process, and what it demands of client certificates.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The certificates, chosen by the name in the ClientHello. If none has that name, the first whose key the client
    /// supports is used.
    pub certificates: Vec<CertificatePaths>,
    /// The demand for client certificates.
    pub client_auth: ClientAuth,
    /// PEM: the authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// PEM: the revocation lists of client certificates.
    pub crl: Option<PathBuf>,
    /// The treatment of lists past their nextUpdate.
    pub crl_expired: CrlExpired,
    /// The interval at which the files are read again.
    #[serde(deserialize_with = "forms::one::<forms::BriefTimeout, _>")]
    pub poll: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            certificates: Vec::new(),
            client_auth: ClientAuth::Off,
            client_ca: None,
            crl: None,
            crl_expired: CrlExpired::default(),
            poll: Duration::from_secs(10),
        }
    }
}

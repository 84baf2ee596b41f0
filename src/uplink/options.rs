//! The settings of a connection to the proxy.

use std::time::Duration;

use super::credentials;
use super::dial::forward::ForwardProxy;
use super::dial::tls::Trust;
use super::dial::url::ProxyUrl;

/// The settings of a connection to the proxy.
#[derive(Clone, Debug)]
pub struct Options {
    /// The proxy. Its URL may hold credentials.
    pub proxy: ProxyUrl,
    /// The HTTP proxy of the user's own network through which the proxy is reached; `None` for a direct connection.
    pub forward: Option<ForwardProxy>,
    /// The certificates for an `https://` proxy.
    pub trust: Trust,
    /// The source of the user's credentials, which take precedence over those of the URL.
    pub credentials: credentials::Options,
    /// The timeout of the connection, the TLS handshake and the proxy's answer together. See [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
}

/// The default of [`Options::timeout`]: 30 seconds.
///
/// Switchboard itself may wait 10 s for a ready pod and 10 s for the dial before it answers; a client that gives up
/// sooner hides the refusal. ssh's ConnectTimeout covers a ProxyCommand too, and may be shorter.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

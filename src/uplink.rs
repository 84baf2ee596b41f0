//! The connections of a program to other servers: the proxy, an API server, an issuer. URLs, forward proxies, TLS, credentials.

pub(crate) mod api_server;
pub(crate) mod attempt;
pub(crate) mod credential_cache;
pub mod credentials;
pub(crate) mod dial;
pub(crate) mod error;
mod options;

pub use self::attempt::{is_in_clear, is_unauthenticated};
pub use self::dial::forward::ForwardProxy;
pub use self::dial::tls::{ClientCertPaths, Trust};
pub use self::dial::url::{ProxyUrl, ProxyUrlError, Scheme};
pub use self::options::{DEFAULT_TIMEOUT, Options};

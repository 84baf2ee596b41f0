//! The connection from a program to the proxy: its URL, forward proxies, TLS, credentials, and the first exchange.

pub(crate) mod attempt;
pub(crate) mod credential_cache;
pub mod credentials;
pub(crate) mod dial;
pub(crate) mod error;
mod options;

pub use self::attempt::is_in_clear;
pub use self::dial::forward::ForwardProxy;
pub use self::dial::tls::{ClientCertPaths, Trust};
pub use self::dial::url::{ProxyUrl, ProxyUrlError, Scheme};
pub use self::options::{DEFAULT_TIMEOUT, Options};

//! The programs of users: `connect`, which is the ProxyCommand, `config`, and `ticket`.

pub mod check;
pub mod configuration;
mod connect;
pub mod credentials;
mod dial;
mod error;
mod options;
pub mod proxy_settings;
pub mod ssh_config;
mod stderr;
pub mod ticket;

pub use self::connect::command;
pub use self::dial::forward::ForwardProxy;
pub use self::dial::tls::{ClientCertPaths, Trust};
pub use self::dial::url::{ProxyUrl, ProxyUrlError, Scheme};
pub use self::options::{DEFAULT_TIMEOUT, Options, Settings};
pub use self::stderr::UserOutput;
pub use crate::base::yaml::diagnostic::Report;

#[cfg(test)]
#[expect(
    clippy::large_futures,
    reason = "a test's TLS server is not a tunnel that lives for days"
)]
mod tests;

//! The programs of users: `connect`, which is the ProxyCommand, `forward`, `config`, `known-hosts`, `ls`, and `ticket`.

pub mod check;
pub mod configuration;
mod connect;
pub mod forward;
pub mod known_hosts;
pub mod listing;
mod options;
pub mod proxy_settings;
pub mod ssh_config;
mod stderr;
pub mod ticket;
mod user_file;

pub use self::connect::command;
pub use self::options::{Options, Settings};
pub use self::stderr::UserOutput;
pub use crate::base::yaml::diagnostic::Report;

#[cfg(test)]
#[expect(
    clippy::large_futures,
    reason = "a test's TLS server is not a tunnel that lives for days"
)]
mod tests;

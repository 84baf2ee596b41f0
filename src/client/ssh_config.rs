//! The configuration of OpenSSH for the proxy: the block of ssh_config(5), and its installation.

mod block;
mod install;
mod names;
mod quoting;

pub use self::block::{Block, Route};
pub(super) use self::install::ask_ssh;
pub use self::install::{ConfigPaths, installed};
pub use self::names::HostNames;
pub use self::quoting::System;

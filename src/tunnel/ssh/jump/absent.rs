//! A build without the feature `jump`: no port is a jump host.

use std::convert::Infallible;
use std::path::PathBuf;

use tokio::net::TcpStream;

use super::request::{Event, LoginRule};
use crate::tunnel::outcome::RefusalReason;

/// The settings of a jump host, of which this build has none.
#[derive(Debug, PartialEq, Eq)]
pub struct JumpHost(Infallible);

/// An SSH connection, of which this build has none.
#[derive(Debug)]
pub struct Connection(Infallible);

impl JumpHost {
    /// # Errors
    /// Always.
    pub fn load(_host_keys: &[PathBuf]) -> Result<Self, String> {
        Err("this build has no jump host: build it with `--features jump`".to_owned())
    }

    /// Never called.
    ///
    /// # Errors
    /// None.
    pub async fn accept(
        &self,
        _socket: TcpStream,
        _read: Vec<u8>,
        _rule: LoginRule,
    ) -> Result<Connection, RefusalReason> {
        match self.0 {}
    }
}

impl Connection {
    /// Never called.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0 {}
    }

    /// Never called.
    pub async fn close_channel(&self) {
        match self.0 {}
    }

    /// Never called.
    pub async fn disconnect(&mut self, _sentence: &str) {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_jump_host_says_so() {
        let fault = JumpHost::load(&[]).unwrap_err();
        assert_eq!(fault, "this build has no jump host: build it with `--features jump`");
    }
}

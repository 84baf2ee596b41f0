//! The key of a client's new session, made beside the connection that will carry it.
//!
//! The crypto library seeds itself for the first random bytes of a process. A client has that time while it opens its tunnel.

use std::thread::{self, JoinHandle};

use super::keys::{CryptoError, Nonce, OwnKey};

/// A key with the nonce of its hello, or both as they are being made.
#[derive(Debug)]
pub struct FirstKey(State);

#[derive(Debug)]
enum State {
    Made(Made),
    /// In a thread, which ends with the process: a client that fails to connect does not wait for it.
    BeingMade(JoinHandle<Result<Made, CryptoError>>),
    /// It was taken.
    Taken,
}

/// What only a new session needs.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) key: OwnKey,
    pub(super) nonce: Nonce,
}

impl Made {
    fn new() -> Result<Self, CryptoError> {
        Ok(Self {
            key: OwnKey::generate()?,
            nonce: Nonce::random()?,
        })
    }
}

impl FirstKey {
    /// Makes it at once.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn make() -> Result<Self, CryptoError> {
        Made::new().map(|made| Self(State::Made(made)))
    }

    /// Makes it in a thread of its own, or at once where there can be no other thread.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn prepare() -> Result<Self, CryptoError> {
        let thread = thread::Builder::new().name("first key".to_owned());
        match thread.spawn(Made::new) {
            Ok(making) => Ok(Self(State::BeingMade(making))),
            Err(_) => Self::make(),
        }
    }

    /// Takes it, once. It waits for no longer than making it here would take.
    pub(super) fn take(&mut self) -> Result<Made, CryptoError> {
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Made(made) => Ok(made),
            State::BeingMade(making) => making.join().unwrap_or(Err(CryptoError)),
            State::Taken => Err(CryptoError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prepared_key_is_taken_once() {
        let mut prepared = FirstKey::prepare().unwrap();
        let made = prepared.take().unwrap();
        assert_ne!(
            made.key.public(),
            FirstKey::make().unwrap().take().unwrap().key.public()
        );
        assert!(prepared.take().is_err());
    }
}

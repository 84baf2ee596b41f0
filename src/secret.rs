//! A credential's text, which is never printed, and overwritten in memory when it is dropped.

use std::fmt;

use serde::{Deserialize, Deserializer};
use zeroize::{Zeroize, Zeroizing};

/// The text of a token or a password.
#[derive(Clone)]
pub struct Secret(Zeroizing<Box<str>>);

impl Secret {
    /// The text itself. It belongs into no message, no log and no metric.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Overwrites bytes that held a secret.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.zeroize();
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.into()))
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        // Overwritten as well: to shrink it could leave a copy behind.
        let text = Zeroizing::new(text);
        Self::from(text.as_str())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// Without the text.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::from("hunter2");
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_eq!(secret.expose(), "hunter2");
    }
}

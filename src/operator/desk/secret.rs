//! The secret of the address that is printed: 128 random bits.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::base::secret::Secret;

/// What a request must show.
#[derive(Clone, Debug)]
pub(super) struct DeskSecret(Secret);

impl DeskSecret {
    /// A new one; `None` if the system gives no random bytes.
    pub(super) fn new() -> Option<Self> {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).ok()?;
        Some(Self(BASE64_URL_SAFE_NO_PAD.encode(bytes).into()))
    }

    /// Its text, for the address.
    pub(super) fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Whether a text is the secret, in a time that does not depend on where they differ.
    pub(super) fn is(&self, text: &[u8]) -> bool {
        verify_slices_are_equal(self.expose().as_bytes(), text).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_secret_has_128_bits_and_is_shown_by_no_debug_output() {
        let (one, other) = (DeskSecret::new().unwrap(), DeskSecret::new().unwrap());
        assert_eq!(BASE64_URL_SAFE_NO_PAD.decode(one.expose()).unwrap().len(), 16);
        assert_ne!(one.expose(), other.expose());
        assert!(one.is(one.expose().as_bytes()));
        for wrong in [other.expose(), "", &one.expose()[1..], &format!("{}A", one.expose())] {
            assert!(!one.is(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{one:?}").contains(one.expose()));
    }
}

//! The opening handshake (RFC 6455 section 4): the values of its fields.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::base::random::random;

/// Returns a nonce for `Sec-WebSocket-Key`.
pub(crate) fn new_key() -> String {
    STANDARD.encode([random().to_ne_bytes(), random().to_ne_bytes()].as_flattened())
}

/// Returns whether the value of a `Sec-WebSocket-Key` is 16 bytes in base64.
pub(crate) fn is_key(value: &[u8]) -> bool {
    STANDARD.decode(value).is_ok_and(|nonce| nonce.len() == 16)
}

/// Returns the `Sec-WebSocket-Accept` for a key. SHA-1 shows that the server has read the request, and protects
/// nothing.
pub(crate) fn accept(key: &[u8]) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat()))
}

/// Returns a path of WebSocket requests without a slash at its end; `None` if it would need an encoding or has an empty segment.
pub(crate) fn plain_path(path: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let is_valid = path.bytes().all(is_plain) && !path.contains("//");
    is_valid.then(|| path.strip_suffix('/').unwrap_or(path))
}

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The value of `Upgrade`, and of `:protocol` over HTTP/2 (RFC 8441 section 5).
pub(crate) const UPGRADE: &str = "websocket";
/// The only version.
pub(crate) const VERSION: &str = "13";
/// The subprotocol: the payloads of all binary frames are the bytes of a tunnel.
pub(crate) const SUBPROTOCOL: &str = "switchboard.v1";

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455 section 1.3.
    #[test]
    fn the_accept_is_that_of_the_rfc() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(is_key(new_key().as_bytes()) && !is_key(b"AAAA") && !is_key(b"dGhlIHNhbXBsZSBub25jZQ="));
    }
}

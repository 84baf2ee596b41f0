//! The bytes of a PROXY protocol header.

use switchboard::tunnel::proxy_header::{Version, decode, encode};

/// A header is the same however it is chopped and whatever comes behind it, and what it says can be said again.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(Some((length, addresses))) = decode(bytes) else {
        return;
    };
    assert!(length > 0 && length <= bytes.len());
    for cut in 0..length {
        assert_eq!(decode(&bytes[..cut]), Ok(None), "the first {cut} bytes");
    }
    assert_eq!(decode(&bytes[..length]), Ok(Some((length, addresses))));
    let Some(addresses) = addresses else { return };
    for version in [Version::V1, Version::V2] {
        let header = encode(version, &addresses);
        assert_eq!(decode(&header), Ok(Some((header.len(), Some(addresses)))), "{version}");
    }
}

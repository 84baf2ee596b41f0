//! The first bytes of a side of an SSH connection.

use switchboard::tunnel::outcome::Side;
use switchboard::tunnel::ssh::identification::read;

/// A line is the same however it is chopped and whatever comes behind it, and says that it is SSH.
pub(crate) fn check(bytes: &[u8]) {
    for side in [Side::Client, Side::Target] {
        let Ok(Some(line)) = read(bytes, side) else { continue };
        let whole = &bytes[..line.length];
        // Not at every offset: that would cost the square of its length.
        for cut in (0..line.length).filter(|cut| line.length - cut < 300 || cut % 97 == 0) {
            assert_eq!(read(&whole[..cut], side), Ok(None), "the first {cut} bytes");
        }
        assert_eq!(read(whole, side), Ok(Some(line)));
        let before = whole.iter().rev().skip(1).position(|&byte| byte == b'\n');
        let last = &whole[before.map_or(0, |before| whole.len() - 1 - before)..];
        assert!(
            last.starts_with(b"SSH-2.0-") || last.starts_with(b"SSH-1.99-"),
            "{last:?}"
        );
        assert!(last.ends_with(b"\n") && last.len() <= 255 && !line.software.is_empty());
        assert!(
            side == Side::Target || last.len() == whole.len(),
            "a client's line is its first"
        );
    }
}

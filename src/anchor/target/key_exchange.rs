//! Finds the end of SSH's key exchange in what the SSH server sends. No login comes before that end.

/// A scanner for SSH_MSG_NEWKEYS in the first bytes of an SSH server.
#[derive(Debug, Default)]
pub(super) struct KeyExchange {
    /// The bytes so far; empty once the key exchange is over.
    bytes: Vec<u8>,
    is_over: bool,
}

impl KeyExchange {
    /// Adds the next bytes. Returns `true` once: when they complete SSH_MSG_NEWKEYS, or exceed [`MAX_BYTES`].
    pub(super) fn completes_with(&mut self, bytes: &[u8]) -> bool {
        if self.is_over {
            return false;
        }
        self.bytes.extend_from_slice(bytes);
        self.is_over = self.bytes.len() > MAX_BYTES || has_new_keys(&self.bytes);
        if self.is_over {
            self.bytes = Vec::new();
        }
        self.is_over
    }
}

/// Returns whether SSH_MSG_NEWKEYS is complete. Packets up to it are not encrypted (RFC 4253, sections 4.2, 6 and 7.3).
fn has_new_keys(mut bytes: &[u8]) -> bool {
    let mut is_identified = false;
    while !is_identified {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            return false;
        };
        is_identified = bytes.starts_with(b"SSH-");
        bytes = bytes.get(end + 1..).unwrap_or_default();
    }
    while let Some(&[a, b, c, d, _padding, message]) = bytes.first_chunk() {
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let Some(rest) = bytes.get(length.saturating_add(4)..) else {
            return false;
        };
        if message == SSH_MSG_NEWKEYS {
            return true;
        }
        bytes = rest;
    }
    false
}

const SSH_MSG_NEWKEYS: u8 = 21;
/// The maximum number of bytes kept. The key exchange of OpenSSH 9.2 takes 2.4 KiB. More bytes are another protocol,
/// whose key exchange counts as over.
const MAX_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(message: u8, length: u32) -> Vec<u8> {
        let mut packet = length.to_be_bytes().to_vec();
        packet.extend([4, message]);
        packet.resize(4 + length as usize, 7);
        packet
    }

    #[test]
    fn it_ends_with_the_last_byte_of_the_new_keys_however_they_come() {
        let parts = [
            b"a line\r\nSSH-2.0-x\r\n".to_vec(),
            packet(20, 1084),
            packet(31, 1200),
            packet(21, 12),
        ];
        let all = parts.concat();
        for chunk in [1, 7, all.len()] {
            let mut exchange = KeyExchange::default();
            let mut taken = 0;
            for bytes in all.chunks(chunk) {
                taken += bytes.len();
                assert_eq!(exchange.completes_with(bytes), taken == all.len(), "{taken}");
            }
            assert!(!exchange.completes_with(&all), "once only");
            assert_eq!(exchange.bytes.capacity(), 0);
        }
    }

    #[test]
    fn other_bytes_do_not_end_it_before_sixteen_kibibytes() {
        let without_identification = packet(21, 12);
        let max = [b"SSH-2.0-x\r\n".to_vec(), packet(20, 0)[..4].to_vec(), vec![0xff; 200]].concat();
        let wrapped = [b"SSH-2.0-x\r\n".as_slice(), &[0xff; 200]].concat();
        for bytes in [without_identification, max, wrapped] {
            let mut exchange = KeyExchange::default();
            assert!(!exchange.completes_with(&bytes));
            assert!(!exchange.completes_with(&vec![0; MAX_BYTES - bytes.len()]));
            assert!(exchange.completes_with(b"1"));
        }
    }
}

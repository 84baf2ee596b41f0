//! The message for an SSH client without a ProxyCommand, in a form that the client prints.

/// An identification and the message SSH_MSG_DISCONNECT (RFC 4253 sections 4.2, 6 and 11.1), which is allowed before any
/// key exchange. OpenSSH prints `Received disconnect from …: <phrase>`. A line before the identification, or HTTP in its
/// place, OpenSSH prints only with `-v`.
pub(crate) fn disconnect(phrase: &str) -> Vec<u8> {
    let mut payload = vec![DISCONNECT];
    payload.extend(PROTOCOL_ERROR.to_be_bytes());
    for text in [phrase, ""] {
        payload.extend(length(text.len()));
        payload.extend(text.as_bytes());
    }
    // Both length fields, payload and padding together are a multiple of 8 bytes; at least 4 of them are padding.
    let unpadded = 4 + 1 + payload.len();
    let padding = 8 - unpadded % 8;
    let padding = if padding < 4 { padding + 8 } else { padding };
    let mut bytes = IDENTIFICATION.to_vec();
    bytes.extend(length(1 + payload.len() + padding));
    bytes.extend(u8::try_from(padding));
    bytes.extend(payload);
    bytes.extend(vec![0; padding]);
    bytes
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or_default().to_be_bytes()
}

const IDENTIFICATION: &[u8] = b"SSH-2.0-switchboard\r\n";
const DISCONNECT: u8 = 1;
const PROTOCOL_ERROR: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disconnect_is_an_identification_and_one_whole_packet() {
        for phrase in ["", "a", "set a ProxyCommand", "1234567", "12345678"] {
            let bytes = disconnect(phrase);
            let packet = bytes.strip_prefix(IDENTIFICATION).unwrap();
            let number = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap()) as usize;
            assert_eq!(packet.len() % 8, 0);
            assert_eq!(number(0), packet.len() - 4);
            assert!(packet[4] >= 4);
            assert_eq!((packet[5], number(6), number(10)), (1, 2, phrase.len()));
            assert_eq!(&packet[14..14 + phrase.len()], phrase.as_bytes());
            let end = 14 + phrase.len() + 4 + usize::from(packet[4]);
            assert_eq!(end, packet.len());
        }
    }
}

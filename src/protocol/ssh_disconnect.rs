//! An SSH_MSG_DISCONNECT after an identification: a sentence in a form that every SSH client prints.

/// Returns an identification and the message SSH_MSG_DISCONNECT (RFC 4253 sections 4.2, 6 and 11.1), which is allowed
/// before any key exchange. OpenSSH prints `Received disconnect from …: <sentence>`. Without `-v` it prints neither a
/// line before the identification nor HTTP in its place.
pub(crate) fn disconnect(code: Code, sentence: &str) -> Vec<u8> {
    let mut payload = vec![DISCONNECT];
    payload.extend((code as u32).to_be_bytes());
    for text in [sentence, ""] {
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

/// A reason code (RFC 4253 section 11.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// SSH_DISCONNECT_PROTOCOL_ERROR.
    ProtocolError = 2,
    /// SSH_DISCONNECT_SERVICE_NOT_AVAILABLE.
    ServiceNotAvailable = 7,
    /// SSH_DISCONNECT_TOO_MANY_CONNECTIONS.
    TooManyConnections = 12,
    /// SSH_DISCONNECT_NO_MORE_AUTH_METHODS_AVAILABLE.
    NoMoreAuthMethods = 14,
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or_default().to_be_bytes()
}

const IDENTIFICATION: &[u8] = b"SSH-2.0-switchboard\r\n";
const DISCONNECT: u8 = 1;
/// The maximum number of bytes of a sentence that crosses the network: two and a half lines of a terminal.
pub(crate) const MAX_BYTES: usize = 199;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disconnect_is_an_identification_and_one_whole_packet() {
        for sentence in ["", "a", "set a ProxyCommand", "1234567", "12345678"] {
            let bytes = disconnect(Code::ServiceNotAvailable, sentence);
            let packet = bytes.strip_prefix(IDENTIFICATION).unwrap();
            let number = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap()) as usize;
            assert_eq!(packet.len() % 8, 0);
            assert_eq!(number(0), packet.len() - 4);
            assert!(packet[4] >= 4);
            assert_eq!((packet[5], number(6), number(10)), (1, 7, sentence.len()));
            assert_eq!(&packet[14..14 + sentence.len()], sentence.as_bytes());
            let end = 14 + sentence.len() + 4 + usize::from(packet[4]);
            assert_eq!(end, packet.len());
        }
    }
}

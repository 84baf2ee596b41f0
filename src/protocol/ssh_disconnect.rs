//! An SSH_MSG_DISCONNECT after an identification: a sentence in a form that every SSH client prints.

/// The reason why there is no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// The code.
    pub(crate) code: Code,
    /// The reason in words.
    pub(crate) sentence: String,
}

impl Disconnect {
    /// Returns the bytes by which a client that identifies itself so shows the sentence, and fails.
    ///
    /// Dropbear's client takes a disconnect for a normal end: it exits with 0, without the sentence. An identification of
    /// another version it prints, up to 120 characters, and exits with 1.
    pub(crate) fn to_bytes(&self, identification: &[u8]) -> Vec<u8> {
        match identification.starts_with(DROPBEAR) {
            true => format!("SSH-0.0-{}\r\n", self.sentence).into_bytes(),
            false => disconnect(self.code, &self.sentence),
        }
    }
}

/// Returns an identification and the message SSH_MSG_DISCONNECT (RFC 4253 sections 4.2, 6 and 11.1), which is allowed
/// before any key exchange. OpenSSH prints `Received disconnect from …: <sentence>`. Without `-v` it prints neither a
/// line before the identification nor HTTP in its place.
fn disconnect(code: Code, sentence: &str) -> Vec<u8> {
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
/// The beginning of the identification of Dropbear.
pub(crate) const DROPBEAR: &[u8] = b"SSH-2.0-dropbear";
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

    #[test]
    fn dropbears_client_gets_an_identification_that_it_prints() {
        let message = Disconnect {
            code: Code::ServiceNotAvailable,
            sentence: "a:22 is full".to_owned(),
        };
        let line = b"SSH-0.0-a:22 is full\r\n";
        assert_eq!(message.to_bytes(b"SSH-2.0-dropbear_2022.83\r\n\0\0"), line);
        for client in [&b"SSH-2.0-OpenSSH_9.2p1 dropbear\r\n"[..], b"SSH-2.0-drop", b""] {
            assert!(message.to_bytes(client).starts_with(IDENTIFICATION));
        }
    }
}

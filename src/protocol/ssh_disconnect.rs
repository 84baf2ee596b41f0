//! An SSH_MSG_DISCONNECT behind an identification: a sentence in a form that every SSH client prints.

use std::fmt::Display;

use crate::base::text::ascii;

/// An identification and the message SSH_MSG_DISCONNECT (RFC 4253 sections 4.2, 6 and 11.1), which is allowed before any
/// key exchange. OpenSSH prints `Received disconnect from …: <sentence>`. A line before the identification, or HTTP in its
/// place, OpenSSH prints only with `-v`.
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

/// The sentence of a disconnect: one line of printable ASCII of at most `longest` bytes.
///
/// It names the `host:port` that was asked for, in the place of the phrase's "the target" or in front of the phrase: with
/// a `Host` alias a user does not see what `%h:%p` has become. At its end is the id of the access line, if there is one.
pub(crate) fn sentence(name: &str, phrase: &str, id: Option<&dyn Display>, longest: usize) -> String {
    let id = id.map(|id| format!(" (id {id})")).unwrap_or_default();
    let name = shortened(name, LONGEST_NAME);
    let told = match phrase.split_once("the target") {
        // "the target's" as well.
        Some((before, after)) if !name.is_empty() => format!("{before}{name}{after}"),
        _ if name.is_empty() || phrase.contains(&name) => phrase.to_owned(),
        _ => format!("{name}: {phrase}"),
    };
    let told = shortened(&told, longest.saturating_sub(id.len()));
    ascii(told.chars().chain(id.chars())).into_string()
}

/// The text, with `...` for its end if it has more characters.
fn shortened(text: &str, longest: usize) -> String {
    const CUT: &str = "...";
    if text.chars().count() <= longest {
        return text.to_owned();
    }
    let kept = text.chars().take(longest.saturating_sub(CUT.len()));
    kept.chain(CUT.chars()).collect()
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or_default().to_be_bytes()
}

const IDENTIFICATION: &[u8] = b"SSH-2.0-switchboard\r\n";
const DISCONNECT: u8 = 1;
/// Bytes of a sentence that crosses the network: two lines and a half of a terminal.
pub(crate) const LONGEST: usize = 199;
/// Characters of a name, of which there may be 253: the phrase behind it has to fit, too.
const LONGEST_NAME: usize = 90;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn a_sentence_names_what_was_asked_for_and_ends_in_the_id() {
        for (name, phrase, expected) in [
            (
                "svc-a.team-a:22",
                "the target has no ready endpoint",
                "svc-a.team-a:22 has no ready endpoint (id 4711)",
            ),
            (
                "a:22",
                "too many connections to the target are in progress, try again",
                "too many connections to a:22 are in progress, try again (id 4711)",
            ),
            (
                "a:22",
                "the proxy is shutting down, try again",
                "a:22: the proxy is shutting down, try again (id 4711)",
            ),
            (
                "a:22",
                "alice may not ssh to a:22",
                "alice may not ssh to a:22 (id 4711)",
            ),
            (
                "",
                "the target cannot be reached",
                "the target cannot be reached (id 4711)",
            ),
            ("\u{1b}[31m", "x", "?[31m: x (id 4711)"),
        ] {
            assert_eq!(sentence(name, phrase, Some(&4711), LONGEST), expected);
        }
        assert_eq!(
            sentence("a:22", "the target is closed", None, LONGEST),
            "a:22 is closed"
        );
    }

    proptest! {
        #[test]
        fn no_sentence_is_long_or_has_more_than_one_line(name in ".{0,300}", phrase in ".{0,300}", id in "[0-9a-f-]{1,25}") {
            let sentence = sentence(&name, &phrase, Some(&id), LONGEST);
            prop_assert!(sentence.len() < 200, "{}", sentence.len());
            prop_assert!(sentence.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            let end = format!("(id {id})");
            prop_assert!(sentence.ends_with(&end));
        }
    }
}

//! In-band messages: the refusal of a request, the close of a tunnel before its target's SSH identification, and the
//! end notice of a tunnel.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::time::timeout;

use crate::base::text::ascii;
use crate::net::transport::{Reader as _, Transport as _, send_all};
use crate::protocol::end_notice::{self, MAX_SENTENCE_BYTES, Marker};
use crate::protocol::phrase::Phrase;
use crate::protocol::ssh_disconnect::{Code, Disconnect, MAX_BYTES};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::proxy::record::Id;
use crate::tunnel::outcome::{Close, CloseReason, Refusal, RefusalReason, Side};
use crate::tunnel::ssh::identification;
use crate::tunnel::stream::Stream;

/// Returns the refusal of a request for that target, as a message of SSH.
pub(super) fn refusal_message(refusal: &Refusal, asked_for: &str, id: Id) -> Disconnect {
    Disconnect {
        code: code(refusal.reason),
        sentence: refusal.without_target().sentence(asked_for, Some(&id), MAX_BYTES),
    }
}

fn code(refusal: RefusalReason) -> Code {
    if refusal.is_of_a_limit() {
        return Code::TooManyConnections;
    }
    match refusal.status() {
        403 => Code::NoMoreAuthMethods,
        500.. => Code::ServiceNotAvailable,
        _ => Code::ProtocolError,
    }
}

/// The close of a tunnel before the target's identification.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyEnd<'a> {
    /// The reason; the close is not by the client.
    pub(super) reason: CloseReason,
    /// Bytes of the target that were not passed on.
    pub(super) said: &'a [u8],
    /// The timeout of an identification.
    pub(super) deadline: Duration,
    /// The operator's reason for closing it.
    pub(super) operator: &'a str,
}

/// Returns the close as a message of SSH.
pub(super) fn end_message(end: &EarlyEnd<'_>, target: &str, id: Id) -> Disconnect {
    Disconnect {
        code: Code::ServiceNotAvailable,
        sentence: phrase(end).sentence(target, Some(&id), MAX_BYTES),
    }
}

/// Returns the reason of the close.
pub(super) fn phrase(end: &EarlyEnd<'_>) -> Phrase {
    let of_target = |text: &'static str| Phrase::of_target("", text);
    let said = excerpt(end.said);
    match end.reason {
        CloseReason::NotSsh if end.said.starts_with(b"HTTP/") => of_target(" is a web server, not an SSH server"),
        CloseReason::NotSsh if identification::read(end.said, Side::Target).is_err() => {
            of_target(" is not an SSH server")
        }
        CloseReason::NotSsh => Phrase::of_target("", format!(" has sent no SSH identification in {:?}", end.deadline)),
        // Such as `Exceeded MaxStartups` and `Not allowed at this time` of sshd, which OpenSSH shows with `-v` only.
        // After such a line sshd closes with the client's identification unread, which resets the connection.
        CloseReason::Eof | CloseReason::Reset | CloseReason::Vanished | CloseReason::Io if !said.is_empty() => {
            Phrase::of_target("", format!(" closed the connection: {said}"))
        }
        CloseReason::Eof => of_target(" closed the connection before its SSH identification"),
        CloseReason::Vanished => of_target(" no longer answers"),
        CloseReason::Reset | CloseReason::Io | CloseReason::Truncated | CloseReason::Corrupted => {
            of_target(" reset the connection before its SSH identification")
        }
        CloseReason::TargetRemoved
        | CloseReason::AccessRevoked
        | CloseReason::Expired
        | CloseReason::Drained
        | CloseReason::ResumedElsewhere
        | CloseReason::Idle
        | CloseReason::Lifetime
        | CloseReason::ClosedByOperator
        | CloseReason::Panic => close_phrase(end.reason, end.operator),
    }
}

/// Returns why the proxy has ended a tunnel; `operator` has the words of the operator who did, if any.
pub(super) fn close_phrase(reason: CloseReason, operator: &str) -> Phrase {
    match reason {
        CloseReason::TargetRemoved => Phrase::of_target("", " has left the allowlist"),
        CloseReason::AccessRevoked => Phrase::of_target("the user may no longer ssh to ", ""),
        CloseReason::Drained | CloseReason::ResumedElsewhere => RefusalReason::Draining.phrase(),
        CloseReason::ClosedByOperator if !operator.is_empty() => {
            format!("an operator ended the connection: {operator}").into()
        }
        // A missing identification is only that of a client: `phrase` has the words for a target.
        CloseReason::Expired
        | CloseReason::Idle
        | CloseReason::Lifetime
        | CloseReason::ClosedByOperator
        | CloseReason::NotSsh => Close {
            reason,
            by: Side::Client,
        }
        .to_string()
        .into(),
        CloseReason::Panic
        | CloseReason::Eof
        | CloseReason::Reset
        | CloseReason::Vanished
        | CloseReason::Io
        | CloseReason::Truncated
        | CloseReason::Corrupted => "the proxy ended the connection".into(),
    }
}

/// Returns the end notice of a tunnel that the proxy has closed.
pub(super) fn close_notice(marker: Marker, reason: CloseReason, tunnel: &OpenTunnel) -> Vec<u8> {
    let operator = tunnel.close_reason().unwrap_or_default();
    // After any other end the session may go on in another tunnel.
    let is_final = reason == CloseReason::Idle || tunnel.is_end_final();
    notice(marker, (close_phrase(reason, operator), is_final), tunnel)
}

/// Returns the end notice of a tunnel with that phrase, and whether the end of its session is final.
pub(super) fn notice(marker: Marker, (phrase, is_final): (Phrase, bool), tunnel: &OpenTunnel) -> Vec<u8> {
    // The client itself puts the requested name before a sentence that lacks it.
    let authority = tunnel.info.authority.as_ref();
    let name = authority.filter(|_| phrase.is_of_target()).map(ToString::to_string);
    let phrase = phrase.preceded_by("the proxy ended the session: ");
    let sentence = phrase.sentence(&name.unwrap_or_default(), Some(&tunnel.info.id), MAX_SENTENCE_BYTES);
    end_notice::notice(marker, &sentence, is_final)
}

/// Returns the last line of a target's text that is not empty.
fn excerpt(said: &[u8]) -> Box<str> {
    let mut lines = said.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let last = lines.rfind(|line| !line.is_empty()).unwrap_or_default();
    ascii(last.iter().take(MAX_EXCERPT).copied().map(char::from))
}

/// Sends bytes to a client. Returns `false` if it has left, or does not read.
pub(super) async fn send(client: &mut Stream, bytes: &[u8]) -> bool {
    matches!(timeout(SEND_TIMEOUT, send_all(client, bytes)).await, Ok(Ok(())))
}

/// Sends a notice within 0.5 s. Returns `false` if the client may have received only a part of it.
pub(super) async fn send_notice(client: &mut Stream, notice: &[u8]) -> bool {
    matches!(timeout(NOTICE_TIMEOUT, send_all(client, notice)).await, Ok(Ok(())))
}

/// Waits up to 2 s until a client that was sent a disconnect leaves.
///
/// An SSH client sends its key exchange before it reads the message. If an end of stream came at once, corkscrew,
/// connect-proxy and proxytunnel would exit before that, and ssh would report a broken pipe instead.
pub(super) async fn drain_client(client: &mut Stream) {
    let (mut reader, _) = client.split();
    let left = poll_fn(|context| {
        // On the stack: in the future, each client that is waited for would hold a buffer.
        let mut chunk = [0; CHUNK];
        for _ in 0..MAX_CHUNKS {
            match ready!(reader.poll_read(context, &mut chunk)) {
                Ok([]) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        // A client that sends this much is no SSH client.
        Poll::Ready(())
    });
    timeout(READ_TIMEOUT, left).await.ok();
}

/// The maximum number of characters of a target's text.
const MAX_EXCERPT: usize = 80;
/// As for an answer: the bytes fit any send buffer.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The end of a drain waits for this time, so a client that takes no more is cut off without a notice.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(500);
/// From the message to the end of stream after it, for a client that does not leave by itself.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
const CHUNK: usize = 2048;
/// The maximum number of reads in one poll: a key exchange has less than 2 KiB.
const MAX_CHUNKS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_a_target_has_the_name_that_was_asked_for_alone() {
        let named = "no ready endpoint for team-a/svc-a (0 of 2 ready)";
        let unnamed = RefusalReason::NoEndpoint.phrase().followed_by(" (0 of 2 ready)");
        let refusal = Refusal::of_target(RefusalReason::NoEndpoint, named, unnamed);
        let id = crate::proxy::record::Ids::default().next();
        let message = refusal_message(&refusal, "svc-a.team-a:22", id);
        let expected = format!("svc-a.team-a:22 has no ready endpoint (0 of 2 ready) (id {id})");
        assert!(message.sentence.contains(&expected));
        assert!(!message.sentence.contains("team-a/svc-a"));
    }

    #[test]
    fn an_end_says_what_the_target_is_or_did() {
        let told = |reason, said: &str| {
            phrase(&EarlyEnd {
                reason,
                said: said.as_bytes(),
                deadline: Duration::from_secs(12),
                operator: if reason == CloseReason::ClosedByOperator {
                    "the node is drained"
                } else {
                    ""
                },
            })
        };
        for (reason, said, expected) in [
            (
                CloseReason::NotSsh,
                "",
                "the target has sent no SSH identification in 12s",
            ),
            (
                CloseReason::NotSsh,
                "SSH-2.0-sl",
                "the target has sent no SSH identification in 12s",
            ),
            (CloseReason::NotSsh, "SSH-3.0-x\r\n", "the target is not an SSH server"),
            (
                CloseReason::NotSsh,
                "HTTP/1.1 400 Bad Request\r\n",
                "the target is a web server, not an SSH server",
            ),
            (
                CloseReason::Eof,
                "",
                "the target closed the connection before its SSH identification",
            ),
            (
                CloseReason::Eof,
                "hello\r\nNot allowed at this time\x1b\r\n",
                "the target closed the connection: Not allowed at this time?",
            ),
            (
                CloseReason::Reset,
                "Not allowed at this time\r\n",
                "the target closed the connection: Not allowed at this time",
            ),
            (
                CloseReason::Reset,
                "",
                "the target reset the connection before its SSH identification",
            ),
            (
                CloseReason::ClosedByOperator,
                "",
                "an operator ended the connection: the node is drained",
            ),
        ] {
            assert_eq!(told(reason, said).to_string(), expected);
        }
    }

    #[test]
    fn each_refusal_that_is_told_in_band_has_a_code() {
        for (refusal, expected) in [
            (RefusalReason::NotAllowed, Code::NoMoreAuthMethods),
            (RefusalReason::NotAuthorized, Code::NoMoreAuthMethods),
            (RefusalReason::NoEndpoint, Code::ServiceNotAvailable),
            (RefusalReason::Draining, Code::ServiceNotAvailable),
            (RefusalReason::TargetRefused, Code::ServiceNotAvailable),
            (RefusalReason::TargetFull, Code::TooManyConnections),
            (RefusalReason::ConnectRate, Code::TooManyConnections),
            (RefusalReason::GuessRate, Code::TooManyConnections),
            (RefusalReason::TlsRequired, Code::ProtocolError),
        ] {
            assert_eq!(code(refusal), expected, "{refusal:?}");
        }
    }
}

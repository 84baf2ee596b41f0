//! Reports in band to ssh why there is no session: an SSH disconnect on stdout, before the target's first byte.
//!
//! ssh prints the sentence of the disconnect, also in scp and sftp and at LogLevel ERROR. stdin shows that ssh reads
//! stdout: an SSH client sends its identification at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use super::stdio::Stdio;
use crate::base::text::chain;
use crate::protocol::phrase::Phrase;
use crate::protocol::ssh_disconnect::{Code, DROPBEAR, Disconnect};
use crate::uplink::error::{ClientError, UNIDENTIFIED};

/// Wraps the streams of a program that may be ssh.
pub(in crate::client) fn wrap<R, W>(stdio: Stdio<R, W>) -> Stdio<Input<R>, Output<W>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let first = Arc::default();
    Stdio {
        stdin: Input {
            stream: stdio.stdin,
            first: Arc::clone(&first),
        },
        stdout: Output {
            stream: stdio.stdout,
            first,
            has_begun: stdio.interactive,
        },
        interactive: stdio.interactive,
        ends_with_target: stdio.ends_with_target,
        is_abandoned: None,
    }
}

/// Reports the failure to ssh, if ssh reads stdout and nothing was written there. Returns whether it was reported.
pub(in crate::client) async fn disconnect_ssh<R, W>(
    stdio: &mut Stdio<Input<R>, Output<W>>,
    error: &ClientError,
    target: &str,
) -> bool
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    if stdio.stdout.has_begun {
        return false;
    }
    let mut chunk = vec![0; CHUNK];
    let is_ssh = async {
        loop {
            if let Some(is_ssh) = stdio.stdin.first.lock().is_ssh() {
                return is_ssh;
            }
            if stdio.stdin.read(&mut chunk).await.is_err() {
                return false;
            }
        }
    };
    if timeout(STDIO_TIMEOUT, is_ssh).await != Ok(true) {
        return false;
    }
    let (code, phrase) = disconnect_message(error);
    let sentence = phrase.sentence(target, None, MAX_SENTENCE);
    let message = Disconnect { code, sentence }.to_bytes(&[]);
    let stream = &mut stdio.stdout.stream;
    let told = async {
        stream.write_all(&message).await?;
        stream.flush().await
    };
    if !matches!(timeout(STDIO_TIMEOUT, told).await, Ok(Ok(()))) {
        return false;
    }
    // ssh writes its key exchange before it reads. If nobody read stdin, ssh would report a broken pipe instead.
    let taken = async { while !matches!(stdio.stdin.read(&mut chunk).await, Ok(0) | Err(_)) {} };
    timeout(SSH_EXIT_TIMEOUT, taken).await.ok();
    true
}

/// Returns the code and the phrase of a failure.
fn disconnect_message(error: &ClientError) -> (Code, Phrase) {
    let refusal = if let ClientError::Refused(refusal) = error
        && !refusal.reason.is_empty()
    {
        refusal
    } else if matches!(error, ClientError::Unidentified) {
        return (Code::ServiceNotAvailable, Phrase::of_target("", UNIDENTIFIED));
    } else {
        return (Code::ServiceNotAvailable, chain(error).into());
    };
    let code = match refusal.status {
        401 | 403 | 407 => Code::NoMoreAuthMethods,
        429 => Code::TooManyConnections,
        500.. => Code::ServiceNotAvailable,
        _ => Code::ProtocolError,
    };
    let reason = refusal.phrase();
    let parts = reason.split_once("the target");
    let parts = parts.map(|(before, after)| Phrase::of_target(before.to_owned(), after.to_owned()));
    (code, parts.unwrap_or_else(|| reason.into()))
}

/// stdin, whose first bytes are noted.
#[derive(Debug)]
pub(in crate::client) struct Input<R> {
    stream: R,
    first: Arc<Mutex<StdinPrefix>>,
}

/// The first bytes of stdin.
#[derive(Debug, Default)]
struct StdinPrefix {
    bytes: Vec<u8>,
    is_closed: bool,
}

impl StdinPrefix {
    /// Returns whether an SSH client that prints a disconnect writes there; `None` while that is not known. Dropbear's
    /// client prints none: it has the same stderr, and fails at the end of stdout.
    fn is_ssh(&self) -> Option<bool> {
        let may_be_dropbear = DROPBEAR.starts_with(&self.bytes);
        if self.bytes.starts_with(SSH) && !may_be_dropbear {
            return Some(true);
        }
        (self.is_closed || !may_be_dropbear || self.bytes == DROPBEAR).then_some(false)
    }

    fn note(&mut self, bytes: &[u8]) {
        self.is_closed |= bytes.is_empty();
        let missing = DROPBEAR.len().saturating_sub(self.bytes.len());
        self.bytes.extend(bytes.iter().take(missing));
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Input<R> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, first } = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(stream).poll_read(context, buffer))?;
        first.lock().note(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

/// stdout, which is not shut down before its first byte, so that ssh can receive the reason first.
#[derive(Debug)]
pub(in crate::client) struct Output<W> {
    pub(in crate::client) stream: W,
    first: Arc<Mutex<StdinPrefix>>,
    /// True if something was written, or stdin is a terminal.
    has_begun: bool,
}

/// The error of a shutdown before the first byte.
#[derive(Debug, thiserror::Error)]
#[error("the target has sent nothing")]
pub(in crate::client) struct Unanswered;

impl<W: AsyncWrite + Unpin> AsyncWrite for Output<W> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
        this.has_begun |= written > 0;
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(context, pieces))?;
        this.has_begun |= written > 0;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.has_begun && this.first.lock().is_ssh() != Some(false) {
            return Poll::Ready(Err(io::Error::other(Unanswered)));
        }
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

const SSH: &[u8] = b"SSH-";
/// The wait for the first bytes of stdin, which ssh sends at once; and for room in stdout.
const STDIO_TIMEOUT: Duration = Duration::from_secs(2);
/// The wait for ssh to read and to exit.
const SSH_EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// OpenSSH prints 400 characters.
const MAX_SENTENCE: usize = 390;
const CHUNK: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uplink::error::Refusal;
    use anyhow::anyhow;

    fn local(stdin: &'static [u8], interactive: bool) -> Stdio<Input<&'static [u8]>, Output<Vec<u8>>> {
        let stdio = Stdio {
            stdin,
            stdout: Vec::new(),
            interactive,
            ends_with_target: false,
            is_abandoned: None,
        };
        wrap(stdio)
    }

    fn refused(status: u16, seconds: Option<u64>) -> ClientError {
        ClientError::Refused(Refusal {
            status,
            retry_after: seconds.map(Duration::from_secs),
            starting: None,
            reason: "the target is closed to new tunnels".to_owned(),
        })
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    #[tokio::test]
    async fn an_ssh_client_is_told_and_no_other_program() {
        for (stdin, interactive, is_told) in [
            (&b"SSH-2.0-OpenSSH_9.2p1\r\nkey exchange"[..], false, true),
            (b"SSH-2.0-x\r\n", true, false),
            (b"SSH-2.0-dropbear_2022.83\r\n", false, false),
            (b"SSH-2.0-drop\r\n", false, true),
            (b"GET / HTTP/1.1\r\n", false, false),
            (b"SS", false, false),
            (b"", false, false),
        ] {
            let mut stdio = local(stdin, interactive);
            assert_eq!(
                disconnect_ssh(&mut stdio, &refused(503, Some(30)), "svc-a.team-a:22").await,
                is_told
            );
            let said = text(&stdio.stdout.stream);
            let expected = "svc-a.team-a:22 is closed to new tunnels (retry after 30s)";
            assert_eq!(said.contains(expected), is_told, "{said:?}");
            assert_eq!(said.starts_with("SSH-2.0-switchboard\r\n"), is_told, "{said:?}");
        }
    }

    #[tokio::test]
    async fn nothing_is_told_behind_the_targets_first_byte() {
        let mut stdio = local(b"SSH-2.0-x\r\n", false);
        stdio.stdout.write_all(b"SSH-2.0-y\r\n").await.unwrap();
        assert!(!disconnect_ssh(&mut stdio, &refused(503, None), "a:22").await);
        stdio.stdout.shutdown().await.unwrap();
        assert_eq!(text(&stdio.stdout.stream), "SSH-2.0-y\r\n");
    }

    #[tokio::test]
    async fn an_end_in_front_of_the_first_byte_is_told() {
        let mut stdio = local(b"SSH-2.0-x\r\n", false);
        let closed = stdio.stdout.shutdown().await.unwrap_err();
        let error = crate::client::connect::relay::unwritable(closed);
        assert!(disconnect_ssh(&mut stdio, &error, "svc-a.team-a:22").await);
        let said = text(&stdio.stdout.stream);
        assert!(
            said.contains("svc-a.team-a:22 closed the connection before its SSH identification"),
            "{said:?}"
        );
    }

    #[test]
    fn each_failure_has_a_code() {
        for (status, code) in [
            (403, Code::NoMoreAuthMethods),
            (407, Code::NoMoreAuthMethods),
            (429, Code::TooManyConnections),
            (503, Code::ServiceNotAvailable),
            (400, Code::ProtocolError),
        ] {
            assert_eq!(disconnect_message(&refused(status, None)).0, code);
        }
        let late = ClientError::Immediately(anyhow!("the proxy's answer took longer than 30s"));
        assert_eq!(
            disconnect_message(&late),
            (
                Code::ServiceNotAvailable,
                "the proxy's answer took longer than 30s".into()
            )
        );
    }
}

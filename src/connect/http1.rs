//! Talks HTTP/1 with one client: reads its head, and writes the one answer.

use std::fmt::Write;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::timeout;

use super::head::{self, MOST_BYTES};
use crate::authority::Authority;
use crate::net::transport::{Reader, Transport, Writer};
use crate::outcome::{Denial, Malformed, Refusal};
use crate::ssh::disconnect::disconnect;

/// A client that has no answer yet.
#[derive(Debug)]
pub(super) struct Client<D> {
    stream: D,
    /// All that was read; without the head once that is complete.
    buffer: Vec<u8>,
}

impl<D: Transport> Client<D> {
    /// A client of which that much was read.
    pub(super) fn new(stream: D, read: Vec<u8>) -> Self {
        Self { stream, buffer: read }
    }

    async fn read_some(&mut self) -> io::Result<usize> {
        let (mut source, _) = self.stream.split();
        poll_fn(|context| poll_read_some(&mut source, context, &mut self.buffer)).await
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (_, mut sink) = self.stream.split();
        let mut rest = bytes;
        let sent = poll_fn(|context| {
            while !rest.is_empty() {
                let written = ready!(sink.poll_write(context, rest))?;
                rest = rest.get(written..).unwrap_or_default();
            }
            sink.poll_flush(context)
        });
        timeout(LONGEST_SEND, sent).await?
    }
}

impl<D: Transport> super::Client for Client<D> {
    type Transport = D;

    const HTTP: &'static str = "1";

    /// Reads until the head is complete or refused, however it is chopped.
    async fn read_head(&mut self) -> Result<Authority, Refusal> {
        let mut known = 0;
        loop {
            let came = self.buffer.get(known..).unwrap_or_default();
            // Only a line's end can complete the head, and only the first bytes can be no request at all: parsing
            // after every byte of a slow client would cost the square of its head.
            let decides = known == 0 || came.contains(&b'\n') || self.buffer.len() >= MOST_BYTES;
            if decides
                && !came.is_empty()
                && let Some(head) = head::parse(&self.buffer)?
            {
                self.buffer.drain(..head.length);
                return Ok(head.target);
            }
            known = self.buffer.len();
            match self.read_some().await {
                Ok(0) if known == 0 => return Err(Refusal::NoRequest),
                Ok(0) => return Err(Refusal::Malformed(Malformed::Truncated)),
                Ok(_) => {}
                Err(_) if known == 0 => return Err(Refusal::NoRequest),
                Err(_) => return Err(Refusal::ClientLeft),
            }
        }
    }

    /// Completes when the client has left: with a reset, or by finishing before it sent a byte to its target.
    ///
    /// One that finishes after early bytes is half-closed; they still have to reach the target.
    async fn leaves(&mut self) {
        loop {
            if self.buffer.len() >= MOST_BYTES {
                break;
            }
            match self.read_some().await {
                Ok(0) if self.buffer.is_empty() => return,
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => return,
            }
        }
        self.stream.split().0.failed().await;
    }

    /// In one write: corkscrew reads once.
    async fn confirm(mut self) -> Result<(D, Vec<u8>), Refusal> {
        self.send(CONFIRMATION).await.map_err(|_| Refusal::ClientLeft)?;
        Ok((self.stream, self.buffer))
    }

    /// Gives the connection back if there was somebody to send it to.
    async fn refuse(mut self, denial: &Denial) -> Option<D> {
        let told = denial.refusal.is_answered() && self.send(&answer(denial)).await.is_ok();
        told.then_some(self.stream)
    }
}

/// Not async: its chunk must not live as long as the wait for the client.
fn poll_read_some(
    source: &mut impl Reader,
    context: &mut Context<'_>,
    buffer: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let mut chunk = [0; CHUNK];
    let room = MOST_BYTES.saturating_sub(buffer.len()).min(CHUNK);
    let read = ready!(source.poll_read(context, chunk.get_mut(..room).unwrap_or_default()))?;
    buffer.extend(read);
    Poll::Ready(Ok(read.len()))
}

/// The whole refusal, in the client's language.
fn answer(denial: &Denial) -> Vec<u8> {
    if denial.refusal == Refusal::Malformed(Malformed::Ssh) {
        return disconnect(denial.phrase());
    }
    response(denial).into_bytes()
}

/// The phrase stands in the body too, for those who print that.
fn response(denial: &Denial) -> String {
    let (refusal, phrase) = (denial.refusal, denial.phrase());
    let status = refusal.status();
    let mut answer = format!(
        "HTTP/1.1 {status} {phrase}\r\n\
         Connection: close\r\n\
         Content-Type: text/plain\r\n\
         Content-Length: {}\r\n\
         Proxy-Status: switchboard; error={}\r\n",
        phrase.len() + 1,
        refusal.proxy_status(),
    );
    if refusal == Refusal::MethodNotAllowed {
        answer.push_str("Allow: CONNECT\r\n");
    }
    if let Some(seconds) = refusal.retry_after() {
        // Writing to a String does not fail.
        write!(answer, "Retry-After: {seconds}\r\n").ok();
    }
    answer.push_str("\r\n");
    answer.push_str(phrase);
    answer.push('\n');
    answer
}

/// No field at all: every client is content, and nobody's buffer is too small (RFC 9110 section 9.3.6 forbids
/// Content-Length and Transfer-Encoding).
const CONFIRMATION: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
/// Most heads come whole in one read of this size.
const CHUNK: usize = 2048;
/// An answer fits any send buffer: a client that does not take it has gone.
const LONGEST_SEND: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_whole_response_that_closes() {
        assert_eq!(
            response(&Refusal::MethodNotAllowed.into()),
            "HTTP/1.1 405 only CONNECT is served here\r\nConnection: close\r\nContent-Type: text/plain\r\n\
             Content-Length: 28\r\nProxy-Status: switchboard; error=http_request_error\r\nAllow: CONNECT\r\n\r\n\
             only CONNECT is served here\n"
        );
        assert!(response(&Refusal::Draining.into()).contains("\r\nRetry-After: 1\r\n"));
    }
}

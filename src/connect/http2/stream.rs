//! One stream of an HTTP/2 connection as the client's end of a tunnel (RFC 9113 section 8.5).

use std::io;
use std::time::Duration;

use h2::{Reason, RecvStream, SendStream};
use parking_lot::{Mutex, MutexGuard};

use self::receive::{From, Receive};
use self::send::{Send, To};
use super::chunk::Chunk;
use super::frames::Earned;
use super::room::Outbox;
use crate::net::transport::{Bulk, Transport};

mod receive;
mod send;

/// A stream whose client has its answer.
#[derive(Debug)]
pub struct Stream {
    receive: Receive,
    /// Behind a lock, as both directions need it: to send, and to learn of a reset. They run in one task.
    send: Mutex<Send>,
    outgoing: (Outbox, Earned),
    reset: bool,
}

impl Stream {
    pub(super) fn new(receive: RecvStream, send: SendStream<Chunk>, outgoing: (Outbox, Earned)) -> Self {
        Self {
            receive: Receive::new(receive),
            send: Mutex::new(Send::new(send, outgoing.0.clone())),
            outgoing,
            reset: false,
        }
    }

    /// The same, when it has nothing to say but this.
    pub(super) fn ending_with(self, last: Vec<u8>) -> Self {
        lock(&self.send).end(last);
        self
    }

    fn sending(&mut self) -> &mut Send {
        self.send.get_mut()
    }
}

impl Transport for Stream {
    const BULK: Bulk = Bulk::Lend;

    type Reader<'a> = From<'a>;
    type Writer<'a> = To<'a>;

    fn split(&mut self) -> (From<'_>, To<'_>) {
        (
            From::new(&mut self.receive, &self.send),
            To::new(&self.send, &self.outgoing),
        )
    }

    fn reset_on_drop(&mut self) {
        self.reset = true;
    }

    /// What h2 and the wire hold would be lost with the connection, and with the process.
    async fn sent(&mut self) {
        self.sending().left(TAIL).await;
    }

    /// Waits until the client has taken the rest, within a bound. It need not finish: the drop tells it not to go on.
    async fn close_gently(&mut self) {
        let send = self.sending();
        send.end(Vec::new());
        send.left(LINGER).await;
    }
}

impl Drop for Stream {
    /// What is queued behind a stream that both sides have ended is still sent. Any other is reset, and not left to h2:
    /// that would keep it, and its place among the streams, for as long as its client takes nothing.
    fn drop(&mut self) {
        let (reset, has_ended) = (self.reset, self.receive.has_ended());
        let send = self.sending();
        if reset {
            // "A proxy treats any error in the TCP connection [...] as a stream error of type CONNECT_ERROR."
            send.reset(Reason::CONNECT_ERROR);
        } else if !has_ended {
            send.reset(Reason::NO_ERROR);
        }
    }
}

fn lock(send: &Mutex<Send>) -> MutexGuard<'_, Send> {
    send.lock()
}

/// A stream's error as a socket would have it.
fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
    } else {
        io::ErrorKind::ConnectionReset.into()
    }
}

/// How long a client may take for the end of its download: as long as for the same in a socket's buffer.
const TAIL: Duration = Duration::from_secs(120);
/// How long it may take for a refusal, and for what it is sent last when the proxy ends its tunnel.
const LINGER: Duration = Duration::from_secs(1);

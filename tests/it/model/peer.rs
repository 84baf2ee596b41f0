//! One side of the tunnel: a real connection that does as it is ordered, and looks closely at what comes.

use std::cell::Cell;
use std::io;
use std::sync::LazyLock;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::reference::End;
use super::schedule::Role;

/// A side's end of its connection to the proxy.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin {
    /// Lets go of it as a process does that is killed: nothing more is sent, and the other end knows that it was cut.
    fn reset(self);
}

impl Wire for TcpStream {
    fn reset(self) {
        SockRef::from(&self).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// The orders of a side, as a total.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Orders {
    /// Bytes to be sent in all.
    pub(crate) send: usize,
    pub(crate) finish: bool,
    pub(crate) stall: bool,
    pub(crate) reset: bool,
}

/// One side, as the stage that gives its orders knows it.
#[derive(Debug)]
pub(crate) struct Peer {
    who: Role,
    pub(crate) orders: watch::Sender<Orders>,
    pub(crate) received: Cell<usize>,
    pub(crate) end: Cell<Option<End>>,
    /// It received bytes that were not sent.
    pub(crate) wrong: Cell<Option<&'static str>>,
}

impl Peer {
    /// A side of which so many bytes have been sent already.
    pub(crate) fn new(who: Role, sent: usize) -> Self {
        Self {
            who,
            orders: watch::Sender::new(Orders {
                send: sent,
                ..Orders::default()
            }),
            received: Cell::new(0),
            end: Cell::new(None),
            wrong: Cell::new(None),
        }
    }

    /// Obeys until it is told to reset. The connection stays open for as long.
    pub(crate) async fn live(&self, mut wire: impl Wire, sent: usize) {
        let mut orders = self.orders.subscribe();
        let (from, to) = split(&mut wire);
        let both = async { tokio::join!(self.write(to, sent), self.read(from)) };
        let is_told = async { orders.wait_for(|orders| orders.reset).await.map(drop) };
        tokio::pin!(is_told);
        tokio::select! {
            biased;
            told = &mut is_told => told.unwrap(),
            _ = both => is_told.await.unwrap(),
        }
        wire.reset();
    }

    async fn write(&self, mut to: impl AsyncWrite + Unpin, mut sent: usize) {
        let mut orders = self.orders.subscribe();
        loop {
            let now = orders.wait_for(|orders| orders.send > sent || orders.finish).await;
            let Orders { send, .. } = *now.unwrap();
            let written = async {
                if send == sent {
                    return to.shutdown().await;
                }
                to.write_all(&stream(self.who)[sent..send]).await?;
                to.flush().await
            };
            if let Err(error) = written.await {
                // The first call returns the reset; later ones only that there is no connection.
                if error.kind() == io::ErrorKind::ConnectionReset && self.end.get().is_none() {
                    self.end.set(Some(End::Reset));
                }
                return;
            }
            if send == sent {
                return;
            }
            sent = send;
        }
    }

    async fn read(&self, mut from: impl AsyncRead + Unpin) {
        let (mut stalls, mut resumes) = (self.orders.subscribe(), self.orders.subscribe());
        let mut room = vec![0; 64 * 1024];
        let end = loop {
            resumes.wait_for(|orders| !orders.stall).await.unwrap();
            let read = tokio::select! {
                biased;
                stalled = stalls.wait_for(|orders| orders.stall) => {
                    stalled.unwrap();
                    continue;
                }
                read = from.read(&mut room) => read,
            };
            match read {
                Ok(0) => break End::Eof,
                Ok(read) => self.compare(&room[..read]),
                Err(error) => {
                    if error.kind() != io::ErrorKind::ConnectionReset && self.end.get().is_none() {
                        self.wrong
                            .set(Some("an end that is neither an end of stream nor a reset"));
                    }
                    break End::Reset;
                }
            }
        };
        // Its own write may have been told first.
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
    }

    fn compare(&self, bytes: &[u8]) {
        let received = self.received.get();
        let expected = stream(self.who.other()).get(received..received + bytes.len());
        if expected != Some(bytes) {
            self.wrong.set(Some("bytes that were not sent, or not in this order"));
        }
        self.received.set(received + bytes.len());
    }
}

/// All that a side could ever send: no piece of it is like another.
pub(crate) fn stream(who: Role) -> &'static [u8] {
    static STREAMS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| [1_u64, 2].map(noise));
    &STREAMS[who.index()]
}

fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..MAX_BYTES / 8).flat_map(next).collect()
}

/// More than any schedule sends.
const MAX_BYTES: usize = 16 << 20;

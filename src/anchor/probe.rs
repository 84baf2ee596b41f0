//! The connection to the SSH server that is made for a client in the exchange: at once when it is needed, and early for a
//! client that is silent, as it may be one that waits for the server.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::target::Dialled;
use crate::net::dial::{self, Upstream, dial};
use crate::outcome::Refusal;
use crate::resume::MOST_LINE_BYTES;

/// The connection to the target, or what comes before it.
pub(super) struct Probe {
    to: SocketAddr,
    state: State,
}

enum State {
    /// The client may yet speak first, until then.
    Waiting(Instant),
    Dialling(Dialling),
    Connected(Connected),
    Failed,
}

type Dialling = Pin<Box<dyn Future<Output = Result<Upstream, Refusal>> + Send>>;

struct Connected {
    stream: TcpStream,
    early: Vec<u8>,
    /// How the target's stream has ended.
    end: Option<io::Result<()>>,
}

impl Probe {
    /// For a client that came at that moment.
    pub(super) fn new(to: SocketAddr, since: Instant) -> Self {
        Self {
            to,
            state: State::Waiting(since + SILENCE),
        }
    }

    /// The next bytes of the target for a client that is silent. It may be dropped at any time and called again.
    pub(super) async fn next(&mut self) -> Vec<u8> {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    self.state = State::Dialling(reach(self.to));
                }
                State::Dialling(dialling) => {
                    let dialled = dialling.await;
                    self.state = dialled.map_or(State::Failed, |upstream| State::Connected(Connected::new(upstream)));
                }
                State::Connected(connected) => return connected.next().await,
                State::Failed => return pending().await,
            }
        }
    }

    /// The connection to the target, within the bounds of a dial.
    ///
    /// # Errors
    /// The target cannot be reached.
    pub(super) async fn into_target(self) -> Result<Dialled, Refusal> {
        let connected = match self.state {
            State::Waiting(_) | State::Failed => Connected::new(reach(self.to).await?),
            State::Dialling(dialling) => Connected::new(dialling.await?),
            State::Connected(connected) => connected,
        };
        Ok(Dialled {
            stream: connected.stream,
            early: connected.early,
            has_reset: matches!(connected.end, Some(Err(_))),
        })
    }
}

impl Connected {
    fn new(upstream: Upstream) -> Self {
        Self {
            stream: upstream.stream,
            early: Vec::new(),
            end: None,
        }
    }

    async fn next(&mut self) -> Vec<u8> {
        while self.end.is_none() && self.early.len() < MOST_LINE_BYTES {
            if let Err(error) = self.stream.readable().await {
                self.end = Some(Err(error));
                break;
            }
            match self.try_read() {
                Ok(bytes) if bytes.is_empty() => self.end = Some(Ok(())),
                Ok(bytes) => {
                    self.early.extend_from_slice(&bytes);
                    return bytes;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => self.end = Some(Err(error)),
            }
        }
        pending().await
    }

    /// Not async: its buffer must not live as long as the wait.
    fn try_read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = [0; MOST_LINE_BYTES];
        let free = MOST_LINE_BYTES - self.early.len();
        let read = self.stream.try_read(bytes.get_mut(..free).unwrap_or_default())?;
        Ok(bytes.get(..read).unwrap_or_default().to_vec())
    }
}

fn reach(to: SocketAddr) -> Dialling {
    Box::pin(async move {
        let options = dial::Options {
            dial_try: LONGEST_DIAL,
            dial: LONGEST_DIAL,
            unpaced_on_loopback: true,
        };
        dial(&[to], 0, &options).await
    })
}

/// How long a client may be silent before the target is asked to speak first.
const SILENCE: Duration = Duration::from_secs(1);
const LONGEST_DIAL: Duration = Duration::from_secs(10);

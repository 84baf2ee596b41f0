//! Dials the SSH server during a client's handshake: when it is needed, or early for a silent client, which may wait
//! for the server's first bytes.

use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::target::TargetConnection;
use super::target_addr::TargetDialer;
use crate::protocol::resume::MAX_LINE_BYTES;
use crate::tunnel::dial::Upstream;
use crate::tunnel::outcome::RefusalReason;

/// The connection to the target, or its dial.
pub(super) struct TargetDial {
    dialer: Arc<TargetDialer>,
    state: State,
    /// True once the client has sent a byte: from then on [`next`](Self::next) neither dials nor reads.
    has_spoken: bool,
}

enum State {
    /// Not dialled before this instant, as the client may yet speak first.
    Waiting(Instant),
    Dialling(Dialling),
    Connected(TargetConnection),
    Failed,
}

type Dialling = Pin<Box<dyn Future<Output = Result<Upstream, RefusalReason>> + Send>>;

impl TargetDial {
    /// Creates a dial that begins at `until` if the client is still silent.
    pub(super) fn new(dialer: &Arc<TargetDialer>, until: Instant) -> Self {
        Self {
            dialer: Arc::clone(dialer),
            state: State::Waiting(until),
            has_spoken: false,
        }
    }

    /// Notes that the client has sent a byte. An open connection is kept for a plain client or a new session.
    pub(super) fn halt(&mut self) {
        self.has_spoken = true;
    }

    /// Returns the target's next bytes for a silent client, and dials first if necessary. Is cancel safe.
    pub(super) async fn next(&mut self) -> Vec<u8> {
        if self.has_spoken {
            return pending().await;
        }
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    self.state = State::Dialling(reach(&self.dialer));
                }
                State::Dialling(dialling) => {
                    let dialled = dialling.await;
                    self.state = dialled.map_or(State::Failed, |upstream| State::Connected(upstream.into()));
                }
                State::Connected(target) => return target.next().await,
                State::Failed => return pending().await,
            }
        }
    }

    /// Returns the connection to the target. Dials first if no dial has begun, or the last dial has failed.
    ///
    /// # Errors
    /// The target cannot be reached.
    pub(super) async fn into_target(self) -> Result<TargetConnection, RefusalReason> {
        match self.state {
            State::Waiting(_) | State::Failed => Ok(self.dialer.dial().await?.into()),
            State::Dialling(dialling) => Ok(dialling.await?.into()),
            State::Connected(target) => Ok(target),
        }
    }
}

impl From<Upstream> for TargetConnection {
    fn from(upstream: Upstream) -> Self {
        Self {
            address: upstream.address,
            stream: upstream.stream,
            early: Vec::new(),
            has_ended: false,
            has_reset: false,
        }
    }
}

impl TargetConnection {
    async fn next(&mut self) -> Vec<u8> {
        while !self.has_ended && !self.has_reset && self.early.len() < MAX_LINE_BYTES {
            let ready = self.stream.readable().await;
            match ready.and_then(|()| self.try_read()) {
                Ok(bytes) if bytes.is_empty() => self.has_ended = true,
                Ok(bytes) => {
                    self.early.extend_from_slice(&bytes);
                    return bytes;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.has_reset = true,
            }
        }
        pending().await
    }

    /// Is not async, so that its buffer does not live as long as the wait.
    fn try_read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = [0; MAX_LINE_BYTES];
        let free = MAX_LINE_BYTES - self.early.len();
        let read = self.stream.try_read(bytes.get_mut(..free).unwrap_or_default())?;
        Ok(bytes.get(..read).unwrap_or_default().to_vec())
    }
}

fn reach(dialer: &Arc<TargetDialer>) -> Dialling {
    let dialer = Arc::clone(dialer);
    Box::pin(async move { dialer.dial().await })
}

/// Returns how long a client may be silent before the target is dialled, at an anchor with `sessions` sessions.
///
/// A dial is wasted only on a client that resumes a session, as the session has a target. Such a client speaks one
/// round trip after the proxy's answer; the anchor cannot measure that time. A longer silence would waste fewer dials.
/// But a middlebox may hold back the announcement until the SSH server's identification, and a client that has no
/// announcement after 3 s begins no session.
pub(super) fn silence(sessions: usize) -> Duration {
    if sessions == 0 { SILENCE } else { 2 * SILENCE }
}

const SILENCE: Duration = Duration::from_secs(1);

//! The connection to the SSH server that is made for a client in the handshake: at once when it is needed, and early for a
//! client that has not sent a byte, as it may be one that waits for the server.

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

/// The connection to the target, or what comes before it.
pub(super) struct TargetDial {
    dialler: Arc<TargetDialer>,
    state: State,
    /// The client has spoken: what the target sends is not for it, until it is known what the client is.
    has_spoken: bool,
}

enum State {
    /// The client may yet speak first, until then.
    Waiting(Instant),
    Dialling(Dialling),
    Connected(TargetConnection),
    Failed,
}

type Dialling = Pin<Box<dyn Future<Output = Result<Upstream, RefusalReason>> + Send>>;

impl TargetDial {
    /// For a client that may be silent until then.
    pub(super) fn new(dialler: &Arc<TargetDialer>, until: Instant) -> Self {
        Self {
            dialler: Arc::clone(dialler),
            state: State::Waiting(until),
            has_spoken: false,
        }
    }

    /// The client has sent a byte: from now on no dial begins for it, and nothing that the target sends is passed on. A
    /// connection that there is already serves a plain client, or the session that the client begins.
    pub(super) fn halt(&mut self) {
        self.has_spoken = true;
    }

    /// Returns the next bytes of the target for a client that is silent. It may be dropped at any time and called again.
    pub(super) async fn next(&mut self) -> Vec<u8> {
        if self.has_spoken {
            return pending().await;
        }
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    self.state = State::Dialling(reach(&self.dialler));
                }
                State::Dialling(dialling) => {
                    let dialled = dialling.await;
                    self.state = dialled.map_or(State::Failed, |upstream| State::Connected(upstream.into()));
                }
                State::Connected(dialled) => return dialled.next().await,
                State::Failed => return pending().await,
            }
        }
    }

    /// Returns the connection to the target, within the bounds of a dial.
    ///
    /// # Errors
    /// The target cannot be reached.
    pub(super) async fn into_target(self) -> Result<TargetConnection, RefusalReason> {
        match self.state {
            State::Waiting(_) | State::Failed => Ok(self.dialler.dial().await?.into()),
            State::Dialling(dialling) => Ok(dialling.await?.into()),
            State::Connected(dialled) => Ok(dialled),
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

    /// Not async: its buffer must not live as long as the wait.
    fn try_read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = [0; MAX_LINE_BYTES];
        let free = MAX_LINE_BYTES - self.early.len();
        let read = self.stream.try_read(bytes.get_mut(..free).unwrap_or_default())?;
        Ok(bytes.get(..read).unwrap_or_default().to_vec())
    }
}

fn reach(dialler: &Arc<TargetDialer>) -> Dialling {
    let dialler = Arc::clone(dialler);
    Box::pin(async move { dialler.dial().await })
}

/// How long a client may be silent before the target is asked to speak first, at an anchor of so many sessions.
///
/// The anchor cannot see how far away a client is: behind a proxy, the round trip of its own connection is that to the proxy.
/// Only a client with a session has a dial to lose, as its target is connected already. It speaks first, as soon as the proxy
/// has answered, so that it is heard within this time if its round trip is no longer. More would not do: after what
/// holds the announcement back, a client gives a new session up after 3 s without it.
pub(super) fn silence(sessions: usize) -> Duration {
    if sessions == 0 { SILENCE } else { 2 * SILENCE }
}

const SILENCE: Duration = Duration::from_secs(1);

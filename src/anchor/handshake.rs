//! The handshake of a connection: recognises a plain client, a new session or a resume, and starts serving it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::SendError;
use tokio::time::{Instant, timeout_at};

use super::dial::{TargetDial, silence};
use super::link::Link;
use super::plain::PlainConnection;
use super::registry::{Connection, Resumption};
use super::session::SessionTask;
use super::shared::Shared;
use crate::base::boxed::boxed;
use crate::protocol::host_key;
use crate::protocol::resume::HANDSHAKE_TIMEOUT;
use crate::protocol::resume::frame::Frame;
use crate::protocol::resume::handshake::anchor_handshake::{
    AnchorHandshake, AnchorHandshakeStep, NewSession, ResumeRequest,
};
use crate::protocol::resume::reason::EndReason;
use crate::tunnel::limits::unfinished::{EvictionClass, EvictionKey, UnfinishedGuard};

/// Runs the handshake of a connection, then relays a plain client to its end. A session has a task of its own.
pub(super) async fn serve(connection: Connection, shared: Arc<Shared>) {
    let key = EvictionKey {
        class: EvictionClass::Eligible,
        number: shared.next_number(),
    };
    let guard = UnfinishedGuard::join([Some(&shared.handshakes), None], key);
    let result = tokio::select! {
        biased;
        () = shared.stopping.cancelled() => Err(HandshakeFailure::Stopping),
        () = guard.evicted() => Err(HandshakeFailure::Evicted),
        result = boxed(accept(connection, &shared)) => result,
    };
    drop(guard);
    match result {
        Ok(admitted) => {
            shared.metrics.handshakes.count([admitted.label()]);
            if let ClientKind::Plain(plain) = admitted {
                boxed(plain.relay(&shared)).await;
            }
        }
        // Not logged: strangers decide how many there are.
        Err(fault) => shared.metrics.handshakes.count([fault.label()]),
    }
}

/// The kind of a client.
#[derive(Debug)]
pub(super) enum ClientKind {
    Plain(Box<PlainConnection>),
    /// A task for its new session has been spawned.
    New,
    Resumed,
}

/// Why a handshake has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeFailure {
    /// The client has left, or the target has reset its connection.
    Closed,
    /// It took too long.
    TimedOut,
    /// There were too many others.
    Evicted,
    /// The process ends.
    Stopping,
    /// The anchor has refused the client. Any client but a plain one was sent this reason.
    Ended(EndReason),
}

impl ClientKind {
    fn label(&self) -> &'static str {
        match self {
            Self::Plain(_) => "plain",
            Self::New => "new",
            Self::Resumed => "resumed",
        }
    }
}

impl HandshakeFailure {
    fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::TimedOut => "timeout",
            Self::Evicted => "evicted",
            Self::Stopping => "stopping",
            Self::Ended(end) => end.label(),
        }
    }
}

impl From<io::Error> for HandshakeFailure {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// Returns the handshake results that the metrics export from the start.
pub(super) fn results() -> impl Iterator<Item = &'static str> {
    let ends = [
        EndReason::Unreachable,
        EndReason::NoSuchSession,
        EndReason::TooManySessions,
        EndReason::Malformed,
        EndReason::Version,
    ];
    let faults = [
        HandshakeFailure::Closed,
        HandshakeFailure::TimedOut,
        HandshakeFailure::Evicted,
        HandshakeFailure::Stopping,
    ];
    ["plain", "new", "resumed"]
        .into_iter()
        .chain(faults.into_iter().map(HandshakeFailure::label))
        .chain(ends.into_iter().map(EndReason::label))
}

/// The handshake of one connection.
struct Handshake<'a> {
    connection: Connection,
    session_handshake: AnchorHandshake,
    dial: TargetDial,
    shared: &'a Arc<Shared>,
}

async fn accept(connection: Connection, shared: &Arc<Shared>) -> Result<ClientKind, HandshakeFailure> {
    let deadline = connection.accepted + HANDSHAKE_TIMEOUT;
    // Does not fail: an anchor without random bytes does not start.
    let session_handshake = AnchorHandshake::new(&shared.key).map_err(|_| HandshakeFailure::Closed)?;
    // One that dials in has published its keys in its registration.
    let lines = match &connection.stream {
        Link::Socket(_) => host_key::lines(&shared.host_keys()),
        Link::Stream(_) => String::new(),
    };
    let session_handshake = session_handshake.after(lines);
    let mut handshake = Handshake {
        dial: TargetDial::new(&shared.dialer, connection.accepted + silence(shared.sessions.len())),
        connection,
        session_handshake,
        shared,
    };
    let step = timeout_at(deadline, handshake.negotiate()).await;
    match step.unwrap_or(Err(HandshakeFailure::TimedOut)) {
        Ok(AnchorHandshakeStep::Plain(bytes)) => handshake.pass_on(bytes).await,
        Ok(AnchorHandshakeStep::New(new)) => boxed(handshake.begin(new)).await,
        Ok(AnchorHandshakeStep::Resume(resume)) => boxed(handshake.resume(resume)).await,
        Ok(AnchorHandshakeStep::NeedMore) => Err(HandshakeFailure::TimedOut),
        Err(HandshakeFailure::Ended(end)) => Err(handshake.send(&[], end).await),
        Err(fault) => Err(fault),
    }
}

impl Handshake<'_> {
    /// Reads until the kind of the client is known.
    async fn negotiate(&mut self) -> Result<AnchorHandshakeStep, HandshakeFailure> {
        let stream = &mut self.connection.stream;
        let mut bytes = Vec::new();
        loop {
            // Sends the announcement first, later the identification. A middlebox that passes only SSH may hold back
            // the announcement until the identification.
            stream.write_all(&self.session_handshake.take_output()).await?;
            tokio::select! {
                biased;
                read = stream.read_buf(&mut bytes) => {
                    if read? == 0 {
                        return Err(HandshakeFailure::Closed);
                    }
                    self.dial.halt();
                    let step = self.session_handshake.receive(&bytes, &self.shared.key).map_err(HandshakeFailure::Ended)?;
                    bytes.clear();
                    if !matches!(step, AnchorHandshakeStep::NeedMore) {
                        return Ok(step);
                    }
                }
                raw = self.dial.next() => {
                    self.session_handshake.sent_raw(&raw);
                    stream.write_all(&raw).await?;
                }
            }
        }
    }

    async fn pass_on(self, bytes: Vec<u8>) -> Result<ClientKind, HandshakeFailure> {
        let slot = self
            .shared
            .plain
            .take()
            .ok_or(HandshakeFailure::Ended(EndReason::TooManySessions))?;
        let target = self.dial.into_target().await;
        let target = target.map_err(|_| HandshakeFailure::Ended(EndReason::Unreachable))?;
        let Connection {
            mut stream,
            peer,
            accepted,
        } = self.connection;
        if target.has_reset {
            stream.reset_on_drop();
            return Err(HandshakeFailure::Closed);
        }
        // The bytes read from the target so far have been sent to the client.
        Ok(ClientKind::Plain(Box::new(PlainConnection {
            client: stream,
            target: target.stream,
            early: bytes,
            peer,
            address: target.address,
            started: accepted,
            slot,
        })))
    }

    /// Begins a session. It is registered before the target is dialled, so that a session beyond the limit causes no
    /// dial.
    async fn begin(mut self, new: NewSession) -> Result<ClientKind, HandshakeFailure> {
        let before = self.session_handshake.take_output();
        let guard = match self.shared.sessions.open(new.keys) {
            Ok(guard) => guard,
            Err(end) => return Err(self.send(&before, end).await),
        };
        let dial = std::mem::replace(&mut self.dial, TargetDial::new(&self.shared.dialer, Instant::now()));
        let Ok(target) = dial.into_target().await else {
            return Err(self.send(&before, EndReason::Unreachable).await);
        };
        let resumption = Resumption {
            connection: self.connection,
            nonces: new.nonces,
            received: 0,
            before,
            rest: new.rest,
        };
        SessionTask::begin(guard, target, resumption, self.shared);
        Ok(ClientKind::New)
    }

    /// Hands the connection over to the session that it claims.
    async fn resume(mut self, resume: ResumeRequest) -> Result<ClientKind, HandshakeFailure> {
        let before = self.session_handshake.take_output();
        let session = match self.shared.sessions.authenticate(&resume.claim, &resume.proof) {
            Ok(session) => session,
            Err(end) => return Err(self.send(&before, end).await),
        };
        drop(self.dial);
        let resumption = Resumption {
            connection: self.connection,
            nonces: resume.claim.nonces,
            received: resume.claim.received,
            before,
            rest: resume.rest,
        };
        dispatch(&session, resumption).await
    }

    /// Sends the reason why there is no session, and closes the connection.
    async fn send(mut self, before: &[u8], end: EndReason) -> HandshakeFailure {
        // Closes the target's connection first, as the client's close may take seconds.
        drop(self.dial);
        let mut bytes = before.to_vec();
        let rest = self.session_handshake.take_output();
        if rest.is_empty() {
            Frame::End(end).encode(&mut bytes);
        }
        bytes.extend_from_slice(&rest);
        self.connection.stream.send_and_close(&bytes, RESPONSE_TIMEOUT).await;
        HandshakeFailure::Ended(end)
    }
}

/// Gives a connection to the task of the session that it has proved.
pub(super) async fn dispatch(
    session: &Sender<Resumption>,
    resumption: Resumption,
) -> Result<ClientKind, HandshakeFailure> {
    let deadline = resumption.connection.accepted + HANDSHAKE_TIMEOUT;
    match timeout_at(deadline, session.send(resumption)).await {
        Ok(Ok(())) => Ok(ClientKind::Resumed),
        // The session has ended just now.
        Ok(Err(SendError(resumption))) => {
            resumption.refuse().await;
            Err(HandshakeFailure::Ended(EndReason::NoSuchSession))
        }
        Err(_) => Err(HandshakeFailure::TimedOut),
    }
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

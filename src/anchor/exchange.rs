//! The exchange with which a connection begins: it finds out what the client is, and leads it there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::SendError;
use tokio::time::{Instant, timeout_at};

use super::final_frames;
use super::plain::Plain;
use super::probe::{Probe, silence};
use super::session::Carried;
use super::sessions::{Connection, Resumption};
use super::shared::Shared;
use crate::base::cold::cold;
use crate::net::socket;
use crate::protocol::resume::LONGEST_EXCHANGE;
use crate::protocol::resume::exchange::welcome::{New, Resume, Step, Welcome};
use crate::protocol::resume::frame::Frame;
use crate::protocol::resume::reason::End;
use crate::tunnel::limits::unfinished::{Membership, Standing, Ticket};

/// Welcomes a client, and serves it as long as it is not the carrier of a session, which has a task of its own.
pub(super) async fn serve(connection: Connection, shared: Arc<Shared>) {
    let ticket = Ticket {
        standing: Standing::Welcome,
        number: shared.next_number(),
    };
    let membership = Membership::join([Some(&shared.exchanges), None], ticket);
    let result = tokio::select! {
        biased;
        () = shared.stopping.cancelled() => Err(Fault::Stopping),
        () = membership.evicted() => Err(Fault::Evicted),
        result = cold(welcome(connection, &shared)) => result,
    };
    drop(membership);
    match result {
        Ok(admitted) => {
            shared.metrics.exchanges.count([admitted.label()]);
            if let Admitted::Plain(plain) = admitted {
                cold(plain.carry(&shared)).await;
            }
        }
        // Not a line: a stranger chooses how many there are.
        Err(fault) => shared.metrics.exchanges.count([fault.label()]),
    }
}

/// What a client is.
#[derive(Debug)]
pub(super) enum Admitted {
    Plain(Box<Plain>),
    /// Its session has a task.
    New,
    Resumed,
}

/// Why an exchange has led to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The client has left.
    Closed,
    /// It took too long.
    TimedOut,
    /// There were too many others.
    Evicted,
    /// The process ends.
    Stopping,
    /// The anchor has said why.
    Ended(End),
}

impl Admitted {
    fn label(&self) -> &'static str {
        match self {
            Self::Plain(_) => "plain",
            Self::New => "new",
            Self::Resumed => "resumed",
        }
    }
}

impl Fault {
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

impl From<io::Error> for Fault {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// The results of an exchange that the metrics know from the beginning.
pub(super) fn results() -> impl Iterator<Item = &'static str> {
    let ends = [End::Unreachable, End::Gone, End::Full, End::Malformed, End::Version];
    let faults = [Fault::Closed, Fault::TimedOut, Fault::Evicted, Fault::Stopping];
    ["plain", "new", "resumed"]
        .into_iter()
        .chain(faults.into_iter().map(Fault::label))
        .chain(ends.into_iter().map(End::label))
}

/// The exchange of one connection.
struct Exchange<'a> {
    connection: Connection,
    welcome: Welcome,
    probe: Probe,
    shared: &'a Arc<Shared>,
}

async fn welcome(connection: Connection, shared: &Arc<Shared>) -> Result<Admitted, Fault> {
    let deadline = connection.since + LONGEST_EXCHANGE;
    // Without random bytes there is no anchor.
    let welcome = Welcome::new(&shared.key).map_err(|_| Fault::Closed)?;
    let mut exchange = Exchange {
        probe: Probe::new(&shared.dialler, connection.since + silence(shared.sessions.len())),
        connection,
        welcome,
        shared,
    };
    let step = timeout_at(deadline, exchange.negotiate()).await;
    match step.unwrap_or(Err(Fault::TimedOut)) {
        Ok(Step::Plain(bytes)) => exchange.pass_on(bytes).await,
        Ok(Step::New(new)) => cold(exchange.begin(new)).await,
        Ok(Step::Resume(resume)) => cold(exchange.resume(resume)).await,
        Ok(Step::Undecided) => Err(Fault::TimedOut),
        Err(Fault::Ended(end)) => Err(exchange.say(&[], end).await),
        Err(fault) => Err(fault),
    }
}

impl Exchange<'_> {
    /// Reads until it is known what the client is.
    async fn negotiate(&mut self) -> Result<Step, Fault> {
        let stream = &mut self.connection.stream;
        let mut bytes = Vec::new();
        loop {
            // The announcement, and later the identification: what lets only SSH pass may hold the one back until the other.
            stream.write_all(&self.welcome.take_output()).await?;
            tokio::select! {
                biased;
                read = stream.read_buf(&mut bytes) => {
                    if read? == 0 {
                        return Err(Fault::Closed);
                    }
                    self.probe.halt();
                    let step = self.welcome.receive(&bytes, &self.shared.key).map_err(Fault::Ended)?;
                    bytes.clear();
                    if !matches!(step, Step::Undecided) {
                        return Ok(step);
                    }
                }
                raw = self.probe.next() => {
                    self.welcome.sent_raw(&raw);
                    stream.write_all(&raw).await?;
                }
            }
        }
    }

    async fn pass_on(self, bytes: Vec<u8>) -> Result<Admitted, Fault> {
        let slot = self.shared.plain.take().ok_or(Fault::Ended(End::Full))?;
        let dialled = self.probe.into_target().await;
        let dialled = dialled.map_err(|_| Fault::Ended(End::Unreachable))?;
        let Connection { stream, peer, since } = self.connection;
        if dialled.has_reset {
            socket::reset_on_drop(&stream);
            return Err(Fault::Closed);
        }
        // What the target has said so far is sent: its next bytes follow.
        Ok(Admitted::Plain(Box::new(Plain {
            transports: Plain::between(stream, dialled.stream, bytes),
            peer,
            target: dialled.address,
            since,
            slot,
        })))
    }

    /// Begins a session. It has its place among the others before the target is reached: one that cannot be is not dialled.
    async fn begin(mut self, new: New) -> Result<Admitted, Fault> {
        let before = self.welcome.take_output();
        let opened = match self.shared.sessions.open(new.keys) {
            Ok(opened) => opened,
            Err(end) => return Err(self.say(&before, end).await),
        };
        let probe = std::mem::replace(&mut self.probe, Probe::new(&self.shared.dialler, Instant::now()));
        let Ok(dialled) = probe.into_target().await else {
            return Err(self.say(&before, End::Unreachable).await);
        };
        let first = Resumption {
            connection: self.connection,
            nonces: new.nonces,
            received: 0,
            before,
            rest: new.rest,
        };
        Carried::begin(opened, dialled, first, self.shared);
        Ok(Admitted::New)
    }

    /// Hands the connection over to the session that it claims.
    async fn resume(mut self, resume: Resume) -> Result<Admitted, Fault> {
        let before = self.welcome.take_output();
        let session = match self.shared.sessions.prove(&resume.claim, &resume.proof) {
            Ok(session) => session,
            Err(end) => return Err(self.say(&before, end).await),
        };
        drop(self.probe);
        let resumption = Resumption {
            connection: self.connection,
            nonces: resume.claim.nonces,
            received: resume.claim.received,
            before,
            rest: resume.rest,
        };
        hand_over(&session, resumption).await
    }

    /// Says why there is no session, and closes the connection.
    async fn say(mut self, before: &[u8], end: End) -> Fault {
        // The target does not wait for the client's close.
        drop(self.probe);
        let mut bytes = before.to_vec();
        let rest = self.welcome.take_output();
        if rest.is_empty() {
            Frame::End(end).encode(&mut bytes);
        }
        bytes.extend_from_slice(&rest);
        final_frames::say(self.connection.stream, &bytes, LONGEST_ANSWER).await;
        Fault::Ended(end)
    }
}

/// Gives a connection to the task of the session that it has proved.
pub(super) async fn hand_over(session: &Sender<Resumption>, resumption: Resumption) -> Result<Admitted, Fault> {
    let deadline = resumption.connection.since + LONGEST_EXCHANGE;
    match timeout_at(deadline, session.send(resumption)).await {
        Ok(Ok(())) => Ok(Admitted::Resumed),
        // The session has ended just now.
        Ok(Err(SendError(resumption))) => {
            resumption.refuse().await;
            Err(Fault::Ended(End::Gone))
        }
        Err(_) => Err(Fault::TimedOut),
    }
}

const LONGEST_ANSWER: Duration = Duration::from_secs(5);

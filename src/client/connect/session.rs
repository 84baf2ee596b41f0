//! A session of ssh with an anchor, over one tunnel after the other.

use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::time::{Instant, sleep_until, timeout};

use self::backoff::Backoff;
use self::report::Report;
use super::hangup::{Exit, Leaving};
use super::login::Login;
use super::relay;
use super::stdio::Local;
use crate::client::dial::deadline::Step;
use crate::client::dial::dialing::Dialing;
use crate::client::dial::transport::Stream;
use crate::client::error::{ClientError, Retry};
use crate::client::options::{Options, Settings};
use crate::protocol::resume::driver::{Driver, Event, Exchanged, Link, Side};
use crate::protocol::resume::exchange::opening::{Failure, Opening, Secrets};
use crate::protocol::resume::reason::End;
use crate::protocol::resume::session;
use crate::protocol::resume::{self, LONGEST_EXCHANGE, LONGEST_UNCONFIRMED};

mod backoff;
mod error;
mod exchange;
mod reconnect;
mod report;

pub(in crate::client) use self::exchange::{Found, find};

/// The way in which a session has left its tunnel for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Both sides have said that it is over.
    Over(End),
    /// The time to say so is over.
    Unheard,
}

/// The client's side of a session.
pub(in crate::client) struct Session<'a, R, W> {
    options: &'a Options,
    grace: Duration,
    local: &'a mut Local<R, W>,
    driver: Driver,
    /// What proves the session, once the anchor has answered.
    secrets: Option<Secrets>,
    exit: Exit,
    hung_up: Option<Instant>,
    is_leaving: bool,
    /// The error to report once the anchor knows that the session is over.
    error: Option<ClientError>,
    clock: fn() -> SystemTime,
    /// When there was a look at the session last, by `clock`.
    looked_at: SystemTime,
    dialing: Dialing,
    report: Report,
    backoff: Backoff,
    /// The offset up to which the anchor has received, as of the last resume.
    delivered: u64,
    next_look: Instant,
    /// When the anchor has to have answered a new session.
    confirmation: Option<Instant>,
    /// When the anchor has to have heard that the session is over.
    farewell: Option<Instant>,
}

impl<'a, R, W> Session<'a, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// A session that has not begun.
    pub(in crate::client) fn new(
        options: &'a Options,
        settings: &Settings,
        local: &'a mut Local<R, W>,
        exit: Exit,
    ) -> Self {
        let session = session::Session::new(resume::Options {
            window: settings.window,
            timing: settings.timing,
        });
        Self {
            options,
            grace: settings.grace,
            local,
            driver: Driver::new(session, Side::Client),
            secrets: None,
            exit,
            hung_up: None,
            is_leaving: false,
            error: None,
            clock: settings.clock,
            looked_at: (settings.clock)(),
            dialing: Dialing::default(),
            report: Report::new(settings.remarks.clone(), options.proxy.host()),
            backoff: Backoff::default(),
            delivered: 0,
            next_look: Instant::now(),
            confirmation: None,
            farewell: None,
        }
    }

    /// Begins at an anchor that was found.
    async fn begin(&mut self, stream: Stream, opening: Box<Opening>) -> Result<Left, ClientError> {
        self.confirmation = Some(Instant::now() + LONGEST_CONFIRMATION);
        let link = self.driver.attach_early(stream, opening);
        self.carry(link).await
    }

    /// Begins at the anchor of the first tunnel, which was reached by `dialing`, and goes on until the session is over.
    pub(in crate::client) async fn run(
        mut self,
        (stream, opening): (Stream, Box<Opening>),
        dialing: Dialing,
        login: &mut Login,
    ) -> Result<(), ClientError> {
        self.dialing = dialing;
        let begun = Box::pin(self.begin(stream, opening));
        let mut carried = begun.await;
        loop {
            let error = match carried {
                Ok(left) => return self.end(left),
                Err(error) => error,
            };
            // The other side cannot be told any more; or it was, and only its answer is lost.
            let is_final = error.retry() == Retry::Never;
            if (self.is_leaving || self.driver.session().is_complete()) && is_final {
                return self.error.map_or(Ok(()), Err);
            }
            if is_final {
                return Err(error);
            }
            self.report.lost(&error);
            self.backoff.heed(&error, self.dialing.step > Step::Connect);
            carried = Box::pin(self.reconnect(login)).await;
        }
    }

    fn end(self, left: Left) -> Result<(), ClientError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if let Some(violation) = self.driver.session().violation() {
            return Err(error::violated(violation));
        }
        match left {
            Left::Over(_) | Left::Unheard if self.is_leaving => Ok(()),
            Left::Over(End::Done) | Left::Unheard => Ok(()),
            Left::Over(end) => Err(error::ended(end)),
        }
    }

    /// Proves the session over a tunnel, and goes on there.
    async fn resume(&mut self, stream: Stream, early: Vec<u8>) -> Result<Left, ClientError> {
        let Some(secrets) = self.secrets.clone() else {
            return self.begin_anew(stream, early).await;
        };
        let received = self.driver.session().received();
        let opening = Opening::resume(secrets, received).map_err(Failure::from)?;
        let exchange = timeout(LONGEST_EXCHANGE, exchange::resume(stream, early, opening));
        let (stream, attached) = match self.beside(Box::pin(exchange)).await {
            Ok(Ok(exchanged)) => exchanged?,
            Ok(Err(_)) => return Err(error::unanswered()),
            Err(left) => return left,
        };
        // The connection before has served, if only for an upload.
        if attached.received > self.delivered {
            self.delivered = attached.received;
            self.backoff.reset();
        }
        let exchanged = Exchanged {
            answer: Vec::new(),
            received: attached.received,
            rest: &attached.rest,
        };
        let link = self.driver.attach(stream, exchanged);
        self.report.connected();
        self.carry(link).await
    }

    /// Begins once more with the same bytes, as the anchor never answered.
    async fn begin_anew(&mut self, stream: Stream, early: Vec<u8>) -> Result<Left, ClientError> {
        self.driver.session_mut().restart().map_err(error::violated)?;
        match self.beside(Box::pin(find(stream, early))).await {
            Ok(found) => match found? {
                Found::Anchor { stream, opening } => self.begin(stream, opening).await,
                Found::Plain { .. } => Err(Failure::NoAnchor.into()),
                Found::Broken { error, .. } => Err(error.into()),
            },
            Err(left) => left,
        }
    }

    /// Moves bytes over a connection until the session leaves it. Ok: the session is over. Err: reconnect, unless its [`Retry`]
    /// is never.
    async fn carry(&mut self, mut link: Link<Stream>) -> Result<Left, ClientError> {
        let (since, received) = (Instant::now(), self.driver.session().received());
        let left = loop {
            if let Some(left) = self.step(Some(&mut link)).await.transpose() {
                break left;
            }
        };
        // A connection that has served is followed by another one at once.
        if since.elapsed() >= SHORTEST_SERVICE || self.driver.session().received() > received {
            self.backoff.reset();
        }
        left
    }

    /// Moves bytes until there is something to decide, and decides it. An error: the session goes on over another
    /// connection, unless the error is final.
    async fn step(&mut self, link: Option<&mut Link<Stream>>) -> Result<Option<Left>, ClientError> {
        let (is_linked, wake) = (link.is_some(), self.wake());
        let mut program = join(&mut self.local.stdin, &mut self.local.stdout);
        let asked = self.hung_up.map_or(Leaving::Soon, |_| Leaving::Now);
        // In random order: bytes that never end must not hide a signal or a timer.
        let event = tokio::select! {
            event = self.driver.run(link, &mut program) => event,
            leaving = self.exit.asked(asked), if !self.is_leaving => {
                self.asked(leaving);
                return Ok(None);
            }
            () = self.dialing.moved() => return Err(self.leave_path("the network of this host has changed")),
            () = sleep_until(wake) => return self.look(is_linked),
        };
        match event {
            Event::Over(end) => return Ok(Some(Left::Over(end))),
            Event::Unlinked(unlinked) => return Err(unlinked.into()),
            Event::Confirmed(secrets) => {
                self.secrets = Some(secrets);
                self.confirmation = None;
                self.report.connected();
            }
            Event::SourceFailed(error) => {
                self.error.get_or_insert(relay::unreadable(error));
                self.leave();
            }
            Event::SinkFailed(error) => {
                if !relay::is_reader_gone(&error) {
                    self.error.get_or_insert(relay::unwritable(error));
                }
                self.leave();
            }
        }
        Ok(None)
    }

    fn wake(&self) -> Instant {
        let hung_up = self.hung_up.filter(|_| !self.is_leaving).map(|at| at + LONGEST_LOGOUT);
        let deadlines = [self.confirmation, self.farewell, hung_up].into_iter().flatten();
        deadlines.fold(self.next_look, Instant::min)
    }

    /// Periodic checks: stdout's reader, deadlines, grace, suspend of the host.
    fn look(&mut self, is_linked: bool) -> Result<Option<Left>, ClientError> {
        let now = Instant::now();
        self.next_look = now + if is_linked { LINKED_LOOK } else { DETACHED_LOOK };
        self.report.look();
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let has_no_reader = self.local.is_abandoned.is_some_and(|look| look(&self.local.stdout));
        if has_no_reader || is_over(self.hung_up.map(|at| at + LONGEST_LOGOUT)) {
            self.leave();
        }
        // Where the other side has ended the session, what it has sent is passed on for as long as ssh takes it.
        let session = self.driver.session();
        if session.ending().is_some() && session.ended().is_none() {
            self.farewell.get_or_insert(now + LONGEST_FAREWELL);
        }
        if is_over(self.farewell) {
            self.driver.detach();
            return Ok(Some(Left::Unheard));
        }
        if is_linked && is_over(self.confirmation) {
            self.driver.detach();
            return Err(error::unanswered());
        }
        let grace = match self.secrets {
            Some(_) => self.grace,
            None => self.grace.min(LONGEST_UNCONFIRMED),
        };
        if let Some((outage, reason)) = self.report.outage().filter(|(outage, _)| *outage >= grace) {
            let outage = outage.as_secs();
            return Err(ClientError::Never(match self.secrets {
                Some(_) => anyhow!("the session is lost: it had no connection for {outage} s: {reason}"),
                None => anyhow!("no session has begun within {outage} s: {reason}"),
            }));
        }
        // No timer has run while the host was asleep, and its connections may be dead.
        let (clock, looked_at) = ((self.clock)(), self.looked_at);
        self.looked_at = clock;
        let since = clock.duration_since(looked_at);
        if since.is_ok_and(|since| since > LINKED_LOOK + LONGEST_NAP) {
            return Err(self.leave_path("this host was asleep"));
        }
        Ok(None)
    }

    /// Another network is worth an attempt at once.
    fn leave_path(&mut self, reason: &'static str) -> ClientError {
        self.backoff.reset();
        self.driver.detach();
        ClientError::Moved(reason)
    }

    fn asked(&mut self, leaving: Leaving) {
        match leaving {
            Leaving::No => {}
            Leaving::Soon => _ = self.hung_up.get_or_insert_with(Instant::now),
            // Ctrl-C, or a signal to this process alone: ssh sends SIGHUP.
            Leaving::Now => self.leave(),
        }
    }

    /// ssh is gone, or the process has to go: the anchor is told behind what was read of stdin.
    fn leave(&mut self) {
        self.is_leaving = true;
        self.driver.session_mut().end(End::Closed);
        let now = Instant::now();
        self.farewell.get_or_insert(now + LONGEST_FAREWELL);
        self.backoff.reset();
    }
}

/// The time for the anchor to answer a new session: its 10 s to reach the target, and those of the exchange.
const LONGEST_CONFIRMATION: Duration = Duration::from_secs(20);
/// The time to tell the anchor that ssh has left.
const LONGEST_FAREWELL: Duration = Duration::from_secs(1);
/// After SIGHUP: the time for ssh to close stdin and for the target to finish.
const LONGEST_LOGOUT: Duration = Duration::from_millis(500);
/// Between two looks at clocks and stdout while there is a connection.
const LINKED_LOOK: Duration = Duration::from_secs(1);
/// Between two looks while there is none.
const DETACHED_LOOK: Duration = Duration::from_millis(250);
/// A look that is late by no more is no sleep: no connection notices it, and a process may wait for a processor.
const LONGEST_NAP: Duration = Duration::from_secs(5);
/// A connection that has lasted so long was a good one.
const SHORTEST_SERVICE: Duration = Duration::from_secs(10);

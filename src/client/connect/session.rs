//! A session of ssh with an anchor, over one tunnel after the other.

use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::time::{Instant, sleep_until};

use self::backoff::Backoff;
use self::report::OutageReporter;
use super::relay;
use super::signals::{ExitRequest, ExitSignals};
use super::stdio::Stdio;
use crate::client::options::{Options, Settings};
use crate::protocol::resume::driver::{Attachment, Driver, Event, Side};
use crate::protocol::resume::handshake::client_handshake::{ClientHandshake, HandshakeError, ResumptionSecrets};
use crate::protocol::resume::reason::EndReason;
use crate::protocol::resume::session;
use crate::protocol::resume::{self, CONFIRMATION_TIMEOUT};
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::deadline::Step;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::dial::io::BoxedIo;
use crate::uplink::error::{ClientError, Retry};

mod backoff;
mod error;
mod handshake;
mod reconnect;
mod report;

pub(in crate::client) use self::handshake::{FarEnd, detect};

/// The way in which a session has left its tunnel, or the wait for one.
#[derive(Debug)]
enum SessionExit {
    /// Both sides have said that it is over.
    Over(EndReason),
    /// The other side has not confirmed the end in time.
    Unacknowledged,
    /// It goes on over another tunnel, unless the [`Retry`] of the error is never.
    Detached(ClientError),
}

impl From<ClientError> for SessionExit {
    fn from(error: ClientError) -> Self {
        Self::Detached(error)
    }
}

impl From<HandshakeError> for SessionExit {
    fn from(error: HandshakeError) -> Self {
        Self::Detached(error.into())
    }
}

/// The client's side of a session.
pub(in crate::client) struct ClientSession<'a, R, W> {
    options: &'a Options,
    grace: Duration,
    stdio: &'a mut Stdio<R, W>,
    driver: Driver,
    /// The secrets that prove the session; `None` before the anchor has answered.
    secrets: Option<ResumptionSecrets>,
    exit: ExitSignals,
    hung_up: Option<Instant>,
    is_leaving: bool,
    /// The error to report once the anchor knows that the session is over.
    error: Option<ClientError>,
    clock: fn() -> SystemTime,
    /// The last [`tick`](Self::tick), by `clock`.
    looked_at: SystemTime,
    /// The bytes of both streams, and when, by `clock`, the last one had come.
    moved: (u64, SystemTime),
    dialer: ProxyDialer,
    report: OutageReporter,
    backoff: Backoff,
    /// The offset up to which the anchor had received at the last resume.
    delivered: u64,
    next_look: Instant,
    /// The deadline of the anchor's answer to a new session; else `None`.
    confirmation: Option<Instant>,
    /// The number of anchors that announced themselves and did not answer.
    unanswered: u32,
    /// The deadline to finish a session that ends; else `None`.
    flush_timeout: Option<Instant>,
}

impl<'a, R, W> ClientSession<'a, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Creates a session that has not begun.
    pub(in crate::client) fn new(
        options: &'a Options,
        settings: &Settings,
        stdio: &'a mut Stdio<R, W>,
        exit: ExitSignals,
    ) -> Self {
        let session = session::Session::new(resume::Options {
            window: settings.window,
            timing: settings.timing,
        });
        Self {
            options,
            grace: settings.grace,
            stdio,
            driver: Driver::new(session, Side::Client),
            secrets: None,
            exit,
            hung_up: None,
            is_leaving: false,
            error: None,
            clock: settings.clock,
            looked_at: (settings.clock)(),
            moved: (0, (settings.clock)()),
            dialer: ProxyDialer::default(),
            report: OutageReporter::new(options.output.clone(), options.uplink.proxy.host()),
            backoff: Backoff::default(),
            delivered: 0,
            next_look: Instant::now(),
            confirmation: None,
            unanswered: 0,
            flush_timeout: None,
        }
    }

    /// Begins at an anchor that was found.
    fn begin(&mut self, stream: BoxedIo, handshake: Box<ClientHandshake>) -> Attachment<BoxedIo> {
        self.confirmation = Some(Instant::now() + NEW_SESSION_TIMEOUT);
        self.driver.attach_early(stream, handshake)
    }

    /// Begins at the anchor of the first tunnel, which was reached by `dialer`, and goes on until the session is over.
    pub(in crate::client) async fn run(
        mut self,
        (stream, handshake): (BoxedIo, Box<ClientHandshake>),
        dialer: ProxyDialer,
        login: &mut CachedLogin,
    ) -> Result<(), ClientError> {
        self.dialer = dialer;
        let mut attached = Ok(self.begin(stream, handshake));
        loop {
            let exit = match attached {
                Ok(attachment) => Box::pin(self.relay(attachment)).await,
                Err(exit) => exit,
            };
            let error = match exit {
                SessionExit::Over(end) => return self.end(Some(end)),
                SessionExit::Unacknowledged => return self.end(None),
                SessionExit::Detached(error) => error,
            };
            // The end cannot reach the anchor any more; or the anchor has it, and only the answer was lost.
            let is_final = error.retry() == Retry::Never;
            if (self.is_leaving || self.driver.session().is_complete()) && is_final {
                return self.error.map_or(Ok(()), Err);
            }
            if is_final {
                return Err(error);
            }
            self.report.lost(&error);
            self.backoff.heed(&error, self.dialer.step > Step::Connect);
            attached = Box::pin(self.reconnect(login)).await;
        }
    }

    /// Returns the result of a session that is over. `end`: the reason that both sides have said.
    fn end(self, end: Option<EndReason>) -> Result<(), ClientError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if let Some(violation) = self.driver.session().violation() {
            return Err(error::violated(violation));
        }
        match end {
            Some(end) if !self.is_leaving && end != EndReason::Completed => Err(error::ended(end)),
            Some(_) | None => Ok(()),
        }
    }

    /// Moves bytes over a connection until the session leaves it.
    async fn relay(&mut self, mut attachment: Attachment<BoxedIo>) -> SessionExit {
        let (since, received) = (Instant::now(), self.driver.session().received());
        let exit = loop {
            if let Some(exit) = self.step(Some(&mut attachment)).await {
                break exit;
            }
        };
        // A connection that has served is followed by another one at once.
        if since.elapsed() >= MIN_GOOD_CONNECTION || self.driver.session().received() > received {
            self.backoff.reset();
        }
        let SessionExit::Detached(error) = exit else {
            return exit;
        };
        if self.secrets.is_some() || matches!(error, ClientError::Moved(_) | ClientError::Never(_)) {
            return SessionExit::Detached(error);
        }
        self.unanswered += 1;
        SessionExit::Detached(match self.unanswered {
            MAX_UNANSWERED => ClientError::Never(anyhow!(error).context(NOT_BEGUN)),
            _ => error,
        })
    }

    /// Moves bytes until there is something to decide, and decides it. `None`: the session goes on as it is.
    async fn step(&mut self, attachment: Option<&mut Attachment<BoxedIo>>) -> Option<SessionExit> {
        let is_linked = attachment.is_some();
        let wake = self.wake(is_linked);
        let mut program = join(&mut self.stdio.stdin, &mut self.stdio.stdout);
        let asked = self.hung_up.map_or(ExitRequest::Graceful, |_| ExitRequest::Immediate);
        // In random order: bytes that never end must not hide a signal or a timer.
        let event = tokio::select! {
            event = self.driver.run(attachment, &mut program) => event,
            request = self.exit.requested(asked), if !self.is_leaving => {
                self.on_exit_request(request);
                return None;
            }
            () = self.dialer.path_changed() => return Some(self.leave_path("the network of this host has changed")),
            () = sleep_until(wake) => return self.tick(is_linked),
        };
        match event {
            Event::Over(end) => return Some(SessionExit::Over(end)),
            Event::Detached(cause) => return Some(SessionExit::Detached(cause.into())),
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
        None
    }

    fn wake(&self, is_linked: bool) -> Instant {
        // Without a connection there is no anchor that could answer.
        let confirmation = self.confirmation.filter(|_| is_linked);
        let hung_up = self.hung_up.filter(|_| !self.is_leaving).map(|at| at + LOGOUT_TIMEOUT);
        let deadlines = [confirmation, self.flush_timeout, hung_up].into_iter().flatten();
        deadlines.fold(self.next_look, Instant::min)
    }

    /// Checks periodically: stdout's reader, deadlines, grace, suspend of the host.
    fn tick(&mut self, is_linked: bool) -> Option<SessionExit> {
        let now = Instant::now();
        self.next_look = now + if is_linked { LINKED_LOOK } else { DETACHED_LOOK };
        self.report.tick();
        self.note_use();
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let has_no_reader = self.stdio.is_abandoned.is_some_and(|look| look(&self.stdio.stdout));
        if has_no_reader || is_over(self.hung_up.map(|at| at + LOGOUT_TIMEOUT)) {
            self.leave();
        }
        // No deadline if the other side has ended the session: ssh may take any time to read the received bytes.
        let session = self.driver.session();
        if session.ending().is_some() && session.ended().is_none() {
            self.flush_timeout.get_or_insert(now + FLUSH_TIMEOUT);
        }
        if is_over(self.flush_timeout) {
            self.driver.detach();
            return Some(SessionExit::Unacknowledged);
        }
        if is_linked && is_over(self.confirmation) {
            self.driver.detach();
            return Some(error::unanswered().into());
        }
        let grace = match self.secrets {
            Some(_) => self.grace,
            None => self.grace.min(CONFIRMATION_TIMEOUT),
        };
        if let Some((outage, reason)) = self.report.outage().filter(|(outage, _)| *outage >= grace) {
            let outage = outage.as_secs();
            let lost = match self.secrets {
                Some(_) => anyhow!("the session is lost: it had no connection for {outage} s: {reason}"),
                None => anyhow!("no session has begun within {outage} s: {reason}"),
            };
            return Some(ClientError::Never(lost).into());
        }
        // No timer has run while the host was asleep, and its connections may be dead.
        let (clock, looked_at) = ((self.clock)(), self.looked_at);
        self.looked_at = clock;
        let since = clock.duration_since(looked_at);
        if since.is_ok_and(|since| since > LINKED_LOOK + MAX_TICK_DELAY) {
            return Some(self.leave_path("this host was asleep"));
        }
        None
    }

    /// Notes the bytes that have come since the last tick. A host that sleeps does so after them.
    fn note_use(&mut self) {
        let moved = self.driver.session().moved();
        if self.moved.0 != moved {
            self.moved = (moved, self.looked_at);
        }
    }

    /// Leaves the connection. The next attempt comes at once, because the network may be another one.
    fn leave_path(&mut self, reason: &'static str) -> SessionExit {
        self.backoff.reset();
        self.driver.detach();
        SessionExit::Detached(ClientError::Moved(reason))
    }

    fn on_exit_request(&mut self, request: ExitRequest) {
        match request {
            ExitRequest::No => {}
            ExitRequest::Graceful => _ = self.hung_up.get_or_insert_with(Instant::now),
            // Ctrl-C, or a signal to this process alone: ssh sends SIGHUP.
            ExitRequest::Immediate => self.leave(),
        }
    }

    /// Ends the session, as ssh is gone or the process has to exit. The end follows the bytes already read from stdin.
    fn leave(&mut self) {
        self.is_leaving = true;
        self.driver.session_mut().end(EndReason::ProgramExited);
        let now = Instant::now();
        self.flush_timeout.get_or_insert(now + FLUSH_TIMEOUT);
        self.backoff.reset();
    }
}

/// The time for the anchor to answer a new session: 10 s to reach the target, and 10 s for the handshake.
const NEW_SESSION_TIMEOUT: Duration = Duration::from_secs(20);
/// The failed handshakes after which a session that never began is abandoned.
const MAX_UNANSWERED: u32 = 3;
const NOT_BEGUN: &str = "the anchor beside the SSH server begins no session";
/// The time to tell the anchor that ssh has left.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// After SIGHUP: the time for ssh to close stdin and for the target to finish.
const LOGOUT_TIMEOUT: Duration = Duration::from_millis(500);
/// The interval between ticks while there is a connection.
const LINKED_LOOK: Duration = Duration::from_secs(1);
/// The interval between ticks while there is no connection.
const DETACHED_LOOK: Duration = Duration::from_millis(250);
/// The maximum delay of a tick on a busy host. After a longer delay the host was asleep.
const MAX_TICK_DELAY: Duration = Duration::from_secs(5);
/// The least time of a connection after which the next attempt comes at once.
const MIN_GOOD_CONNECTION: Duration = Duration::from_secs(10);

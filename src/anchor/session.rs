//! The task of one session: moves the session's bytes over one connection after the other, and ends the session.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::link::Link;
use super::memory::MemoryShare;
use super::record::SessionRecord;
use super::registry::{Resumption, SessionGuard, SessionStatus};
use super::shared::{SHUTDOWN_TIMEOUT, Shared};
use super::target::{Target, TargetConnection};
use crate::base::boxed::boxed;
use crate::protocol::resume::driver::{Attachment, DetachCause, Driver, Event, HandshakeOutput, Side};
use crate::protocol::resume::frame::Frame;
use crate::protocol::resume::handshake::anchor_handshake::attached;
use crate::protocol::resume::keys::ResumeClaim;
use crate::protocol::resume::reason::{DetachReason, EndReason};
use crate::protocol::resume::session::Session;
use crate::protocol::resume::{CONFIRMATION_TIMEOUT, Options};

/// A session, its connection and its target.
#[derive(Debug)]
pub(super) struct SessionTask {
    guard: SessionGuard,
    relay: SessionRelay,
    /// When the newest of its connections was accepted.
    newest: Instant,
    /// When the session was detached; `None` while it is attached.
    detached: Option<Instant>,
    /// When the shutdown ended the session; `None` before.
    stopping: Option<Instant>,
    /// The task that closes the last displaced connection. Replacing the handle aborts the task.
    displaced: Option<AbortOnDropHandle<()>>,
    shared: Arc<Shared>,
}

/// An event of the session's task.
enum TaskEvent {
    Resumption(Box<Resumption>),
    /// The session was evicted for a new one: nothing can resume it.
    Unreachable,
    Shutdown,
    Evicted,
    TimedOut,
    /// Either side has ended the session.
    Ending,
    Event(Event),
}

impl SessionTask {
    /// Spawns the task of a session, and attaches its first connection.
    pub(super) fn begin(guard: SessionGuard, target: TargetConnection, resumption: Resumption, shared: &Arc<Shared>) {
        let since = resumption.connection.accepted;
        let addresses = [resumption.connection.peer, target.address];
        let record = SessionRecord::begin("session", shared.next_number(), addresses, since);
        let widest = shared.options.window;
        let window = shared.sessions.memory().window(widest, widest);
        let options = Options {
            window,
            ..Options::default()
        };
        let mut task = Self {
            guard,
            relay: SessionRelay {
                driver: Driver::new(Session::new(options), Side::Anchor),
                attachment: None,
                target: Target::new(target, shared.metrics.session_bytes()),
                window,
                share: MemoryShare::new(shared.sessions.memory()),
                ending: None,
            },
            newest: since,
            detached: None,
            stopping: None,
            displaced: None,
            shared: Arc::clone(shared),
        };
        task.attach(resumption);
        shared.tasks.spawn(task.run(record));
    }

    /// Runs the session to its end.
    async fn run(mut self, mut record: SessionRecord) {
        let end = loop {
            match self.next_event().await {
                // The client has abandoned this connection for the newer one. The late proof must not displace the
                // newer connection.
                TaskEvent::Resumption(resumption) if resumption.connection.accepted < self.newest => {}
                TaskEvent::Resumption(resumption) => {
                    self.newest = resumption.connection.accepted;
                    // A connection that only learns of the end does not count.
                    if self.relay.ending.is_none() {
                        record.attached(resumption.connection.peer, Instant::now());
                    }
                    self.attach(*resumption);
                }
                TaskEvent::Event(Event::Over(end)) => break end,
                TaskEvent::Event(Event::SourceFailed(_) | Event::SinkFailed(_)) => {
                    self.relay.driver.session_mut().end(EndReason::Reset);
                    self.begin_ending();
                }
                TaskEvent::Event(Event::Detached(cause)) => {
                    if let (DetachCause::Silent, Some(attachment)) = (cause, &mut self.relay.attachment) {
                        // A FIN would queue after bytes that the proxy has no room for, and the tunnel would keep its
                        // slot. A reset loses nothing: unacknowledged bytes are sent again.
                        attachment.stream.reset_on_drop();
                    }
                    let now = Instant::now();
                    if self.relay.ending.is_none() {
                        record.detached(now);
                    }
                    self.relay.attachment = None;
                    self.detached = Some(now);
                    self.guard.status.state.lock().detached = Some(now);
                    if self.stopping.is_some() {
                        break EndReason::Stopping;
                    }
                }
                // Only a client's driver returns it.
                TaskEvent::Event(Event::Confirmed(_)) => {}
                TaskEvent::Ending => self.begin_ending(),
                TaskEvent::Evicted => self.abort(EndReason::Memory),
                // The key exchange has ended during the wait, which moved the deadline.
                TaskEvent::TimedOut if self.deadline().is_none_or(|deadline| deadline > Instant::now()) => {}
                TaskEvent::TimedOut if self.relay.ending.is_none() => self.abort(EndReason::Expired),
                TaskEvent::Shutdown if self.relay.attachment.is_some() => {
                    self.stopping = Some(Instant::now());
                    self.abort(EndReason::Stopping);
                }
                TaskEvent::Shutdown => break EndReason::Stopping,
                // The session has an end reason by now, which `finish` uses instead of this one.
                TaskEvent::TimedOut => break EndReason::Expired,
                TaskEvent::Unreachable => break EndReason::TooManySessions,
            }
        };
        boxed(self.finish(end, record)).await;
    }

    /// Relays bytes until the next event.
    async fn next_event(&mut self) -> TaskEvent {
        let deadline = self.deadline();
        let is_stopping = self.stopping.is_some();
        let Self {
            guard, relay, shared, ..
        } = self;
        tokio::select! {
            biased;
            () = shared.stopping.cancelled(), if !is_stopping => TaskEvent::Shutdown,
            resumption = guard.resumptions.recv() => match resumption {
                Some(resumption) => TaskEvent::Resumption(Box::new(resumption)),
                None => TaskEvent::Unreachable,
            },
            () = guard.status.eviction.notified() => TaskEvent::Evicted,
            () = until(deadline) => TaskEvent::TimedOut,
            turn = poll_fn(|context| relay.poll(context, &guard.status, shared)) => turn,
        }
    }

    /// Returns when the session ends if nothing happens before; `None` for an attached one that has not ended.
    fn deadline(&self) -> Option<Instant> {
        if let Some(since) = self.stopping {
            return Some(since + SHUTDOWN_TIMEOUT);
        }
        if let Some(since) = self.relay.ending {
            return Some(since + END_RETENTION);
        }
        let detached = self.detached?;
        let max = match self.guard.status.login_timeout(detached) {
            Some(timeout) => timeout,
            None if self.relay.driver.session().is_confirmed() => Duration::MAX,
            None => CONFIRMATION_TIMEOUT,
        };
        // On overflow there is no deadline.
        detached.checked_add(max.min(self.shared.options.grace))
    }

    /// Attaches a connection. Reads the offset of this side's claim and attaches without yielding, so that the older
    /// connection delivers nothing in between.
    fn attach(&mut self, resumption: Resumption) {
        let Resumption {
            connection,
            nonces,
            received,
            mut before,
            rest,
        } = resumption;
        self.displace();
        let driver = &mut self.relay.driver;
        let claim = ResumeClaim {
            nonces,
            id: self.guard.id,
            received: driver.session().received(),
        };
        attached(&self.guard.keys, &claim).encode(&mut before);
        let output = HandshakeOutput {
            answer: before,
            received,
            rest: &rest,
        };
        self.relay.attachment = Some(driver.attach(connection.stream, output));
        self.detached = None;
        self.guard.status.state.lock().detached = None;
        self.shared.metrics.attachments.inc();
    }

    /// Detaches the current connection, if any, and sends its client the reason in a task of its own.
    fn displace(&mut self) {
        let rest = self.relay.driver.detach();
        let Some((attachment, mut rest)) = self.relay.attachment.take().zip(rest) else {
            return;
        };
        Frame::Going(DetachReason::Displaced).encode(&mut rest);
        let last_words = async move { attachment.stream.send_and_close(&rest, DETACH_TIMEOUT).await };
        let task = self.shared.tasks.spawn(last_words);
        self.displaced = Some(AbortOnDropHandle::new(task));
    }

    /// Ends the session at once.
    fn abort(&mut self, end: EndReason) {
        self.relay.driver.session_mut().abort(end);
        self.begin_ending();
    }

    /// Begins the end of the session. If the client has ended it, the client's bytes are still passed on. Otherwise the
    /// target is closed.
    fn begin_ending(&mut self) {
        if self.relay.ending.is_some() {
            return;
        }
        self.relay.ending = Some(Instant::now());
        self.guard.status.state.lock().is_ended = true;
        if self.relay.driver.session().ended().is_none() {
            self.close_target(false);
        }
    }

    /// Closes the connection to the target, in a task of its own, as that may take a second.
    fn close_target(&mut self, is_orderly: bool) {
        if let Some(close) = self.relay.target.close(is_orderly) {
            self.shared.tasks.spawn(close);
        }
    }

    async fn finish(mut self, end: EndReason, record: SessionRecord) {
        // This side's own reason takes precedence.
        let end = self.relay.driver.session().ending().unwrap_or(end);
        self.close_target(end == EndReason::Completed);
        let Self {
            guard, relay, shared, ..
        } = self;
        let SessionRelay {
            attachment,
            target,
            ending,
            ..
        } = relay;
        guard.close(&shared.tasks);
        shared.metrics.session_ends.count([end.label()]);
        record.close(
            end.label(),
            target.passed,
            ending.unwrap_or_else(Instant::now),
            &shared.lines,
        );
        if let Some(mut attachment) = attachment {
            attachment.stream.shutdown_gracefully().await;
        }
    }
}

/// The relay of a session.
#[derive(Debug)]
struct SessionRelay {
    driver: Driver,
    attachment: Option<Attachment<Link>>,
    target: Target,
    window: u32,
    share: MemoryShare,
    /// When either side ended the session; `None` before.
    ending: Option<Instant>,
}

impl SessionRelay {
    /// Relays bytes with the window that the memory of all sessions allows, then accounts for the buffered ones.
    fn poll(&mut self, context: &mut Context<'_>, status: &SessionStatus, shared: &Shared) -> Poll<TaskEvent> {
        let sessions = &shared.sessions;
        let window = sessions.memory().window(self.window, shared.options.window);
        if window != self.window {
            self.window = window;
            let now = Instant::now().into_std();
            self.driver.session_mut().set_window(window, now);
        }
        // The future is cancel safe: dropped here, and created again at the next poll.
        let polled = pin!(self.driver.run(self.attachment.as_mut(), &mut self.target)).poll(context);
        if std::mem::take(&mut self.target.has_just_ended) {
            status.state.lock().target_gone = Some(Instant::now());
        }
        if std::mem::take(&mut self.target.has_just_exchanged_keys) {
            status.state.lock().has_keys = true;
        }
        let memory = self.driver.memory();
        if self.share.set(memory) {
            status.state.lock().memory = memory;
            if sessions.memory().is_short() {
                sessions.evict_for_memory();
            }
        }
        match polled {
            Poll::Ready(event) => Poll::Ready(TaskEvent::Event(event)),
            Poll::Pending if self.ending.is_none() && self.driver.session().ending().is_some() => {
                Poll::Ready(TaskEvent::Ending)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// How long an ended session is kept to tell a client that resumes it.
const END_RETENTION: Duration = Duration::from_secs(300);
/// How long a displaced connection has to take its last frames.
const DETACH_TIMEOUT: Duration = Duration::from_secs(1);

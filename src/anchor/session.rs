//! The task of one session: it moves the session's bytes over one connection after the other, and ends it.

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

/// A session, with what carries it.
#[derive(Debug)]
pub(super) struct SessionTask {
    opened: SessionGuard,
    moving: SessionPoll,
    /// When the newest of its connections was accepted.
    newest: Instant,
    /// Since when there is no connection.
    detached: Option<Instant>,
    /// Since when the process ends.
    stopping: Option<Instant>,
    /// The last frame on a connection that was displaced: no more than one at a time.
    displaced: Option<AbortOnDropHandle<()>>,
    shared: Arc<Shared>,
}

/// An event of the session's task.
enum TaskEvent {
    Resumption(Box<Resumption>),
    /// Nothing can resume the session any more.
    Unreachable,
    Shutdown,
    Evicted,
    TimedOut,
    /// One of both sides has ended the session.
    Ending,
    Event(Event),
}

impl SessionTask {
    /// Starts the task of a session, whose first connection carries it from here on.
    pub(super) fn begin(opened: SessionGuard, dialled: TargetConnection, first: Resumption, shared: &Arc<Shared>) {
        let since = first.connection.accepted;
        let addresses = [first.connection.peer, dialled.address];
        let record = SessionRecord::begin("session", shared.next_number(), addresses, since);
        let widest = shared.options.window;
        let window = shared.sessions.memory().window(widest, widest);
        let options = Options {
            window,
            ..Options::default()
        };
        let mut carried = Self {
            opened,
            moving: SessionPoll {
                driver: Driver::new(Session::new(options), Side::Anchor),
                link: None,
                target: Target::new(dialled, shared.metrics.session_bytes()),
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
        carried.attach(first);
        shared.tasks.spawn(carried.run(record));
    }

    /// Carries the session to its end.
    async fn run(mut self, mut record: SessionRecord) {
        let end = loop {
            match self.next_event().await {
                // The client had the announcement of this one before it began the newer one: it has given it up since, and
                // its proof was still under way. It must not displace what the client uses now.
                TaskEvent::Resumption(resumption) if resumption.connection.accepted < self.newest => {}
                TaskEvent::Resumption(resumption) => {
                    self.newest = resumption.connection.accepted;
                    record.attached(resumption.connection.peer, Instant::now());
                    self.attach(*resumption);
                }
                TaskEvent::Event(Event::Over(end)) => break end,
                TaskEvent::Event(Event::SourceFailed(_) | Event::SinkFailed(_)) => {
                    self.moving.driver.session_mut().end(EndReason::Reset);
                    self.begin_ending();
                }
                TaskEvent::Event(Event::Detached(unlinked)) => {
                    if let (DetachCause::Silent, Some(link)) = (unlinked, &mut self.moving.link) {
                        // A FIN would stand after what the proxy has no room for, which would keep the tunnel's slot. All
                        // that was not acknowledged is sent again.
                        link.stream.reset_on_drop();
                    }
                    let now = Instant::now();
                    record.detached(now);
                    self.moving.link = None;
                    self.detached = Some(now);
                    self.opened.account.state.lock().detached = Some(now);
                    if self.stopping.is_some() {
                        break EndReason::Stopping;
                    }
                }
                // Of a client only.
                TaskEvent::Event(Event::Confirmed(_)) => {}
                TaskEvent::Ending => self.begin_ending(),
                TaskEvent::Evicted => self.abort(EndReason::Memory),
                // A key exchange that has ended in the same turn has moved the deadline.
                TaskEvent::TimedOut if self.deadline().is_none_or(|deadline| deadline > Instant::now()) => {}
                TaskEvent::TimedOut if self.moving.ending.is_none() => self.abort(EndReason::Expired),
                TaskEvent::Shutdown if self.moving.link.is_some() => {
                    self.stopping = Some(Instant::now());
                    self.abort(EndReason::Stopping);
                }
                TaskEvent::Shutdown => break EndReason::Stopping,
                // The session has an end of its own by now, which `finish` puts in place of this one.
                TaskEvent::TimedOut => break EndReason::Expired,
                TaskEvent::Unreachable => break EndReason::TooManySessions,
            }
        };
        boxed(self.finish(end, record)).await;
    }

    /// Moves bytes until there is something to decide.
    async fn next_event(&mut self) -> TaskEvent {
        let deadline = self.deadline();
        let is_stopping = self.stopping.is_some();
        let Self {
            opened, moving, shared, ..
        } = self;
        tokio::select! {
            biased;
            () = shared.stopping.cancelled(), if !is_stopping => TaskEvent::Shutdown,
            resumption = opened.resumptions.recv() => match resumption {
                Some(resumption) => TaskEvent::Resumption(Box::new(resumption)),
                None => TaskEvent::Unreachable,
            },
            () = opened.account.eviction.notified() => TaskEvent::Evicted,
            () = until(deadline) => TaskEvent::TimedOut,
            turn = poll_fn(|context| moving.poll(context, &opened.account, shared)) => turn,
        }
    }

    /// When the session is given up, if nothing happens before.
    fn deadline(&self) -> Option<Instant> {
        if let Some(since) = self.stopping {
            return Some(since + SHUTDOWN_TIMEOUT);
        }
        if let Some(since) = self.moving.ending {
            return Some(since + END_RETENTION);
        }
        let detached = self.detached?;
        let max = match self.opened.account.login_timeout(detached) {
            Some(timeout) => timeout,
            None if self.moving.driver.session().is_confirmed() => Duration::MAX,
            None => CONFIRMATION_TIMEOUT,
        };
        // On overflow there is no deadline.
        detached.checked_add(max.min(self.shared.options.grace))
    }

    /// Lets a connection carry the session. What it claims is read and said in one step, so that an older one brings nothing
    /// in between.
    fn attach(&mut self, resumption: Resumption) {
        let Resumption {
            connection,
            nonces,
            received,
            mut before,
            rest,
        } = resumption;
        self.displace();
        let driver = &mut self.moving.driver;
        let claim = ResumeClaim {
            nonces,
            id: self.opened.id,
            received: driver.session().received(),
        };
        attached(&self.opened.keys, &claim).encode(&mut before);
        let output = HandshakeOutput {
            answer: before,
            received,
            rest: &rest,
        };
        self.moving.link = Some(driver.attach(connection.stream, output));
        self.detached = None;
        self.opened.account.state.lock().detached = None;
        self.shared.metrics.attachments.inc();
    }

    /// Tells the client on the connection that has carried the session so far that another one does now.
    fn displace(&mut self) {
        let rest = self.moving.driver.detach();
        let Some((link, mut rest)) = self.moving.link.take().zip(rest) else {
            return;
        };
        Frame::Going(DetachReason::Displaced).encode(&mut rest);
        let last_words = async move { link.stream.send_and_close(&rest, DETACH_TIMEOUT).await };
        let task = self.shared.tasks.spawn(last_words);
        self.displaced = Some(AbortOnDropHandle::new(task));
    }

    /// Ends the session at once.
    fn abort(&mut self, end: EndReason) {
        self.moving.driver.session_mut().abort(end);
        self.begin_ending();
    }

    /// One of both sides has ended the session. If the client ended it, its bytes are still passed on; else the target is
    /// cut off.
    fn begin_ending(&mut self) {
        if self.moving.ending.is_some() {
            return;
        }
        self.moving.ending = Some(Instant::now());
        self.opened.account.state.lock().is_ended = true;
        if self.moving.driver.session().ended().is_none() {
            self.close_target(false);
        }
    }

    /// Closes the connection to the target, in a task of its own, as that may take a second.
    fn close_target(&mut self, is_orderly: bool) {
        if let Some(close) = self.moving.target.close(is_orderly) {
            self.shared.tasks.spawn(close);
        }
    }

    async fn finish(mut self, end: EndReason, record: SessionRecord) {
        // The reason is this side's own, whatever the answer says.
        let end = self.moving.driver.session().ending().unwrap_or(end);
        self.close_target(end == EndReason::Completed);
        let Self {
            opened, moving, shared, ..
        } = self;
        let SessionPoll { link, target, .. } = moving;
        opened.close(&shared.tasks);
        shared.metrics.session_ends.count([end.label()]);
        record.close(end.label(), target.passed, &shared.lines);
        if let Some(mut link) = link {
            link.stream.shutdown_gracefully().await;
        }
    }
}

/// The byte mover of a session.
#[derive(Debug)]
struct SessionPoll {
    driver: Driver,
    link: Option<Attachment<Link>>,
    target: Target,
    window: u32,
    share: MemoryShare,
    /// Since when the session is over for one of both sides.
    ending: Option<Instant>,
}

impl SessionPoll {
    /// Moves bytes with the window that the memory of all sessions allows, and accounts for what is kept after that.
    fn poll(&mut self, context: &mut Context<'_>, account: &SessionStatus, shared: &Shared) -> Poll<TaskEvent> {
        let sessions = &shared.sessions;
        let window = sessions.memory().window(self.window, shared.options.window);
        if window != self.window {
            self.window = window;
            let now = Instant::now().into_std();
            self.driver.session_mut().set_window(window, now);
        }
        // Nothing is lost when it is dropped, and made again at the next poll.
        let polled = pin!(self.driver.run(self.link.as_mut(), &mut self.target)).poll(context);
        if std::mem::take(&mut self.target.has_just_ended) {
            account.state.lock().target_gone = Some(Instant::now());
        }
        if std::mem::take(&mut self.target.has_just_exchanged_keys) {
            account.state.lock().has_keys = true;
        }
        let memory = self.driver.memory();
        if self.share.set(memory) {
            account.state.lock().memory = memory;
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

/// How long a session is kept after its end, to say it to a client that resumes it.
const END_RETENTION: Duration = Duration::from_secs(300);
/// How long an older connection has to take its last frames.
const DETACH_TIMEOUT: Duration = Duration::from_secs(1);

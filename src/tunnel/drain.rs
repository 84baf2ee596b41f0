//! A drain: stop accepting, close the tunnels whose sessions go on elsewhere, let the others end by themselves, close
//! the rest gracefully.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use self::counts::Counts;
pub use self::counts::TunnelGuard;
use crate::base::boxed::boxed;
use crate::base::yaml::forms;

mod counts;

/// The longest times of the phases of a drain, which takes at most `delay + timeout + spread + 9 s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The time for a load balancer to notice: not ready, but still accepting.
    #[serde(deserialize_with = "forms::one::<forms::AnyDuration, _>")]
    pub delay: Duration,
    /// The time for tunnels to end by themselves after that.
    #[serde(deserialize_with = "forms::one::<forms::AnyDuration, _>")]
    pub timeout: Duration,
    /// The time over which closing the rest is spread, idle tunnels first.
    #[serde(deserialize_with = "forms::one::<forms::AnyDuration, _>")]
    pub spread: Duration,
    /// The time over which closing resumable tunnels is spread, once the ports are closed. Never longer than `timeout +
    /// spread`.
    #[serde(deserialize_with = "forms::one::<forms::AnyDuration, _>")]
    pub resumable_spread: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(5),
            timeout: Duration::from_secs(3600),
            spread: Duration::from_secs(300),
            resumable_spread: Duration::from_secs(5),
        }
    }
}

/// The phase of a drain. It only ever goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the drain.
    Serving,
    /// Not ready, but still accepting.
    NotReady,
    /// The ports are closing. Connections that have been accepted are still served.
    ClosingListeners,
    /// No new tunnels: pending connections are refused. Resumable tunnels are closed, the others may end by themselves.
    Draining,
    /// The deadline has passed: tunnels are closed from `started` on, over `spread`.
    Closing {
        /// When it began.
        started: Instant,
        /// How long it may take.
        spread: Duration,
    },
    /// Every tunnel ends at once.
    Terminated,
}

impl Phase {
    /// Returns whether new tunnels may begin.
    pub fn accepts_tunnels(self) -> bool {
        match self {
            Self::Serving | Self::NotReady | Self::ClosingListeners => true,
            Self::Draining | Self::Closing { .. } | Self::Terminated => false,
        }
    }

    /// Returns the name of the phase for operators.
    pub fn label(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::NotReady => "not_ready",
            Self::ClosingListeners => "closing_listeners",
            Self::Draining => "draining",
            Self::Closing { .. } => "closing",
            Self::Terminated => "terminated",
        }
    }
}

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainResult {
    /// Every tunnel ended by itself, or its session goes on in another tunnel.
    Clean,
    /// Tunnels had to be closed.
    Cut,
}

/// The view of a drain that listeners and tunnels hold.
#[derive(Clone, Debug)]
pub struct Drain {
    phase: watch::Receiver<Phase>,
    /// Cancelled once the ports are closed. An idle tunnel waits only for this token, which takes half the memory of a
    /// wait for a watch.
    draining: ShardedToken,
    /// Cancelled at the deadline.
    deadline: ShardedToken,
    /// The window for resumable tunnels: set before `draining` is cancelled, unless everything ends at once.
    moving: Arc<OnceLock<ResumableWindow>>,
    counts: Arc<Counts>,
}

/// A cancellation that many tasks wait for. Each wait takes a lock twice: with one lock for all, threads would contend
/// for it.
#[derive(Clone, Debug, Default)]
struct ShardedToken(Arc<[TokenShard; PARTS]>);

/// Aligned: two in one cache line would cause false sharing.
#[derive(Debug, Default)]
#[repr(align(128))]
struct TokenShard(CancellationToken);

impl ShardedToken {
    fn cancel(&self) {
        for TokenShard(token) in self.0.iter() {
            token.cancel();
        }
    }

    /// Returns the token for the connection or tunnel of that number.
    fn shard_for(&self, number: u64) -> &CancellationToken {
        let [first, rest @ ..] = &*self.0;
        let part = usize::try_from(number % PARTS as u64).unwrap_or_default();
        &rest.get(part).unwrap_or(first).0
    }
}

/// The time in which resumable tunnels are closed.
#[derive(Clone, Copy, Debug)]
struct ResumableWindow {
    started: Instant,
    spread: Duration,
}

impl Drain {
    /// Counts a tunnel as open. A connection that never has a tunnel does not make a drain [`Cut`](DrainResult::Cut).
    pub fn opened(&self) -> TunnelGuard {
        TunnelGuard::new(Arc::clone(&self.counts))
    }

    /// Returns the number of open tunnels that are resumable.
    pub fn resumable(&self) -> usize {
        self.counts.resumable()
    }

    /// Returns the phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Completes when the ports have to close.
    pub async fn listeners_closing(mut self) {
        self.wait_for(|phase| !matches!(phase, Phase::Serving | Phase::NotReady))
            .await;
    }

    /// Completes when no new tunnel may begin, for the connection of that number.
    pub async fn draining(&self, number: u64) {
        self.draining.shard_for(number).cancelled().await;
    }

    /// Completes when the deadline has passed, for the connection of that number: a dial in progress is abandoned.
    pub async fn deadline(&self, number: u64) {
        self.deadline.shard_for(number).cancelled().await;
    }

    /// Completes when the tunnel of that number has to close. `last_active` returns the time of the last byte of its last
    /// active minute.
    ///
    /// A resumable tunnel closes soon after the ports. Its client comes back at once: a load balancer could send the
    /// client here again while the ports are open, but sends it to another process once they are closed. In a rolling
    /// update, that process is ready before this one drains. Other tunnels close after the deadline: idle tunnels in
    /// the first tenth of the spread, the others in the rest.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps each argument twice, for as long as the tunnel is idle"
    )]
    pub fn close_due(
        &self,
        number: u64,
        tunnel: &TunnelGuard,
        last_active: impl Fn() -> Instant,
    ) -> impl Future<Output = ()> {
        async move {
            self.draining.shard_for(number).cancelled().await;
            boxed(self.closes_in_drain(number, tunnel, last_active)).await;
        }
    }

    async fn closes_in_drain(&self, number: u64, tunnel: &TunnelGuard, last_active: impl Fn() -> Instant) {
        tokio::select! {
            biased;
            () = tunnel.becomes_resumable() => self.resumable_close_due(number).await,
            () = self.plain_close_due(number, last_active) => {}
        }
    }

    /// Completes when the resumable tunnel of that number has to close.
    async fn resumable_close_due(&self, number: u64) {
        if let Some(ResumableWindow { started, spread }) = self.moving.get() {
            let closes = *started + spread.mul_f64(spread_evenly(number));
            timeout_at(closes, self.clone().ended()).await.ok();
        }
    }

    async fn plain_close_due(&self, number: u64, last_active: impl Fn() -> Instant) {
        self.deadline(number).await;
        if let Phase::Closing { started, spread } = self.phase() {
            let idle = last_active().elapsed() >= IDLE;
            let closes = started + spread.mul_f64(close_offset(number, idle));
            timeout_at(closes, self.clone().ended()).await.ok();
        }
    }

    /// Completes when every connection has to end at once.
    pub async fn ended(mut self) {
        self.wait_for(|phase| *phase == Phase::Terminated).await;
    }

    async fn wait_for(&mut self, enough: impl FnMut(&Phase) -> bool) {
        // It fails only after the controller is dropped, which lives as long as the process.
        self.phase.wait_for(enough).await.ok();
    }
}

/// The tasks that a drain waits for.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    /// One for each public port.
    pub acceptors: TaskTracker,
    /// One for each connection, tunnel or not.
    pub connections: TaskTracker,
}

/// The controller of a drain: begins it and takes it through its phases.
#[derive(Debug)]
pub struct DrainController {
    phase: watch::Sender<Phase>,
    drain: Drain,
}

impl DrainController {
    /// Creates a drain that has not begun, and the view of it.
    pub fn new() -> (Self, Drain) {
        let (phase, receiver) = watch::channel(Phase::Serving);
        let drain = Drain {
            phase: receiver,
            draining: ShardedToken::default(),
            deadline: ShardedToken::default(),
            moving: Arc::default(),
            counts: Arc::default(),
        };
        let view = drain.clone();
        (Self { phase, drain }, view)
    }

    /// Drains; when `now` completes, everything that is left ends at once.
    pub async fn run(self, options: &Options, tasks: &Tasks, now: impl Future<Output = ()>) -> DrainResult {
        let Tasks { acceptors, connections } = tasks;
        acceptors.close();
        connections.close();
        tokio::select! {
            biased;
            () = now => {}
            drained = self.run_phases(options, tasks) => return drained,
        }
        let (tunnels, cut) = (self.drain.counts.all(), self.drain.counts.plain());
        warn!(
            tunnels,
            resumable = self.drain.counts.resumable(),
            "asked again to drain: ending at once"
        );
        self.end(connections).await;
        if cut == 0 { DrainResult::Clean } else { DrainResult::Cut }
    }

    async fn run_phases(&self, options: &Options, Tasks { acceptors, connections }: &Tasks) -> DrainResult {
        let (tunnels, resumable) = (|| self.drain.counts.all(), || self.drain.counts.resumable());
        info!(tunnels = tunnels(), resumable = resumable(), delay = ?options.delay, "draining: not ready, still accepting");
        self.phase.send_replace(Phase::NotReady);
        sleep(options.delay).await;
        info!(
            tunnels = tunnels(),
            resumable = resumable(),
            "draining: closing the ports"
        );
        self.phase.send_replace(Phase::ClosingListeners);
        // Acceptors empty the backlog without waiting; those of shared ports (`reuse_port`) take 2.5 s.
        acceptors.wait().await;
        info!(tunnels = tunnels(), resumable = resumable(), timeout = ?options.timeout, "draining: waiting for tunnels to end");
        let moving_ends = self.stop(options);
        if timeout(options.timeout, connections.wait()).await.is_ok() {
            info!("drained: every tunnel has ended");
            return DrainResult::Clean;
        }
        let (drained, spread) = match self.drain.counts.plain() {
            // Dials in progress, and refusals that are not read yet: they need [`LAST_WAIT`] at most.
            0 if resumable() == 0 => (DrainResult::Clean, LAST_WAIT),
            0 => {
                let rest = moving_ends.saturating_duration_since(Instant::now());
                (DrainResult::Clean, rest + LAST_WAIT)
            }
            tunnels => {
                let spread = options.spread;
                warn!(tunnels, ?spread, "drain deadline passed: closing tunnels");
                (DrainResult::Cut, spread)
            }
        };
        let since = Instant::now();
        self.phase.send_replace(Phase::Closing { started: since, spread });
        self.drain.deadline.cancel();
        if timeout(spread, connections.wait()).await.is_err() {
            self.end(connections).await;
        }
        drained
    }

    /// Ends the admission of tunnels. Returns the time by which the last resumable tunnel has to close.
    fn stop(&self, options: &Options) -> Instant {
        let since = Instant::now();
        let spread = options.resumable_spread.min(options.timeout + options.spread);
        // Never fails: the window is set only here.
        self.drain.moving.set(ResumableWindow { started: since, spread }).ok();
        self.phase.send_replace(Phase::Draining);
        self.drain.draining.cancel();
        since + spread
    }

    async fn end(&self, connections: &TaskTracker) {
        self.phase.send_replace(Phase::Terminated);
        self.drain.draining.cancel();
        self.drain.deadline.cancel();
        if timeout(LAST_WAIT, connections.wait()).await.is_err() {
            let (tunnels, resumable) = (self.drain.counts.all(), self.drain.counts.resumable());
            warn!(
                tunnels,
                resumable,
                connections = connections.len(),
                "not all of them ended in time"
            );
        }
    }
}

/// Returns the part of the spread, 0 to 1, after which a tunnel closes.
fn close_offset(number: u64, idle: bool) -> f64 {
    if idle {
        IDLE_PART * spread_evenly(number)
    } else {
        IDLE_PART + (1.0 - IDLE_PART) * spread_evenly(number)
    }
}

/// Returns a number from 0 to 1 for each tunnel.
///
/// Multiples of the golden ratio fall evenly, whatever run of numbers is left (Knuth 6.4): no random numbers needed.
fn spread_evenly(number: u64) -> f64 {
    let scattered = number.wrapping_mul(GOLDEN_RATIO) >> 32;
    #[expect(clippy::cast_precision_loss, reason = "32 bits fit the 53 of an f64")]
    let even = scattered as f64 / f64::from(u32::MAX);
    even
}

/// The shards, each with a lock, of a token.
const PARTS: usize = 16;
/// A tunnel without an active minute for this long is idle.
const IDLE: Duration = Duration::from_secs(60);
/// The part of the spread in which idle tunnels close.
const IDLE_PART: f64 = 0.1;
/// 2^64 divided by the golden ratio.
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
/// The time in which connections flush what was read and write their log lines, once they have to end.
const LAST_WAIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;

//! A drain: stop accepting, close the tunnels whose sessions go on elsewhere, let the others end by themselves, close the
//! rest gently.

use std::future::{Future, poll_fn};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use self::tunnels::Counts;
pub use self::tunnels::{Open, State};
use crate::cold::cold;

mod tunnels;

/// The longest times of the phases of a drain, which takes at most `delay + timeout + spread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The time for a load balancer to notice: not ready, but still accepting.
    pub delay: Duration,
    /// The time for tunnels to end by themselves after that.
    pub timeout: Duration,
    /// The time over which closing the rest is spread, idle tunnels first.
    pub spread: Duration,
    /// The time over which closing resumable tunnels is spread, from the moment on at which the ports are closed. Never
    /// longer than `timeout + spread`.
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
    Leaving,
    /// The ports are closing. Connections that have been accepted are still served.
    Parting,
    /// No new tunnels: pending connections are refused. Resumable tunnels are closed, the others may end by themselves.
    Stopped,
    /// The deadline has passed: tunnels are closed from `since` on, over `spread`.
    Closing {
        /// When it began.
        since: Instant,
        /// How long it may take.
        spread: Duration,
    },
    /// Every tunnel ends at once.
    Ended,
}

impl Phase {
    /// Whether new tunnels may begin.
    pub fn takes_tunnels(self) -> bool {
        match self {
            Self::Serving | Self::Leaving | Self::Parting => true,
            Self::Stopped | Self::Closing { .. } | Self::Ended => false,
        }
    }

    /// The name of the phase for operators.
    pub fn label(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Parting => "parting",
            Self::Stopped => "stopped",
            Self::Closing { .. } => "closing",
            Self::Ended => "ended",
        }
    }
}

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every tunnel ended by itself, or its session goes on by another tunnel.
    Clean,
    /// Tunnels had to be closed.
    Cut,
}

/// The view of a drain that listeners and tunnels hold.
#[derive(Clone, Debug)]
pub struct Drain {
    phase: watch::Receiver<Phase>,
    /// Cancelled when the ports are closed. A token takes half the memory of a watch receiver; an idle tunnel holds this
    /// alone.
    stopped: CancellationToken,
    /// Cancelled at the deadline.
    deadline: CancellationToken,
    /// When resumable tunnels are closed: known when `stopped` is cancelled, unless everything ends at once.
    moving: Arc<OnceLock<Moving>>,
    counts: Arc<Counts>,
}

/// The time in which resumable tunnels are closed.
#[derive(Clone, Copy, Debug)]
struct Moving {
    since: Instant,
    spread: Duration,
}

impl Drain {
    /// Counts a tunnel as open. A connection that never has a tunnel does not make a drain [`Cut`](Drained::Cut).
    pub fn opened(&self) -> Open {
        Open::new(Arc::clone(&self.counts))
    }

    /// The number of open tunnels that are resumable.
    pub fn resumable(&self) -> usize {
        self.counts.resumable()
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Completes when the ports have to close.
    pub async fn parting(mut self) {
        self.reaches(|phase| !matches!(phase, Phase::Serving | Phase::Leaving))
            .await;
    }

    /// Completes when no new tunnel may begin.
    pub async fn stopped(mut self) {
        self.reaches(|phase| !phase.takes_tunnels()).await;
    }

    /// Completes when the deadline has passed: a dial in progress is given up.
    pub async fn deadline(&self) {
        self.deadline.cancelled().await;
    }

    /// Completes when a tunnel has to close. `tunnel` is called only once the drain has begun.
    ///
    /// A resumable tunnel closes soon after the ports: its client comes back at once, and would be accepted here again, and
    /// closed again, for as long as a load balancer sends connections here. When the ports are closed it reaches another
    /// process, which in a rolling update is ready before this one drains. Other tunnels close after the deadline, idle ones
    /// in the first tenth of the spread, the others in the rest of it.
    ///
    /// Nothing wakes this when a tunnel becomes resumable. So that happens only in the task that polls this, which has to
    /// poll it next: in `identify` of `tunnel/established.rs` and in `inspect` of `relay/beginning.rs`.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn keeps each argument twice, for as long as the tunnel is idle"
    )]
    pub fn closes(&self, tunnel: impl Fn() -> State) -> impl Future<Output = ()> {
        async move {
            self.stopped.cancelled().await;
            cold(self.closes_in_drain(tunnel)).await;
        }
    }

    async fn closes_in_drain(&self, tunnel: impl Fn() -> State) {
        let becomes_resumable = poll_fn(|_| match tunnel().is_resumable {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        tokio::select! {
            biased;
            () = becomes_resumable => self.moves(tunnel().number).await,
            () = self.closes_plain(&tunnel) => {}
        }
    }

    /// Completes when the resumable tunnel of that number has to close.
    async fn moves(&self, number: u64) {
        if let Some(Moving { since, spread }) = self.moving.get() {
            let closes = *since + spread.mul_f64(evenly(number));
            timeout_at(closes, self.clone().ended()).await.ok();
        }
    }

    async fn closes_plain(&self, tunnel: impl Fn() -> State) {
        self.deadline.cancelled().await;
        if let Phase::Closing { since, spread } = self.phase() {
            let State { number, last_moved, .. } = tunnel();
            let idle = last_moved.elapsed() >= IDLE;
            let closes = since + spread.mul_f64(part_of_spread(number, idle));
            timeout_at(closes, self.clone().ended()).await.ok();
        }
    }

    /// Completes when every connection has to end at once.
    pub async fn ended(mut self) {
        self.reaches(|phase| *phase == Phase::Ended).await;
    }

    async fn reaches(&mut self, enough: impl FnMut(&Phase) -> bool) {
        // It fails without a conductor, which lives as long as the process.
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

/// The conductor of a drain: begins it and takes it through its phases.
#[derive(Debug)]
pub struct Conductor {
    phase: watch::Sender<Phase>,
    stopped: CancellationToken,
    deadline: CancellationToken,
    moving: Arc<OnceLock<Moving>>,
    counts: Arc<Counts>,
}

impl Conductor {
    /// A drain that has not begun, and the view of it.
    pub fn new() -> (Self, Drain) {
        let (sender, receiver) = watch::channel(Phase::Serving);
        let drain = Drain {
            phase: receiver,
            stopped: CancellationToken::new(),
            deadline: CancellationToken::new(),
            moving: Arc::default(),
            counts: Arc::default(),
        };
        let conductor = Self {
            phase: sender,
            stopped: drain.stopped.clone(),
            deadline: drain.deadline.clone(),
            moving: Arc::clone(&drain.moving),
            counts: Arc::clone(&drain.counts),
        };
        (conductor, drain)
    }

    /// Drains; when `now` completes, everything that is left ends at once.
    pub async fn run(self, options: &Options, tasks: &Tasks, now: impl Future<Output = ()>) -> Drained {
        let Tasks { acceptors, connections } = tasks;
        acceptors.close();
        connections.close();
        tokio::select! {
            biased;
            () = now => {}
            drained = self.run_phases(options, tasks) => return drained,
        }
        let (tunnels, cut) = (self.counts.all(), self.counts.plain());
        warn!(
            tunnels,
            resumable = tunnels - cut,
            "asked again to drain: ending at once"
        );
        self.end(connections).await;
        if cut == 0 { Drained::Clean } else { Drained::Cut }
    }

    async fn run_phases(&self, options: &Options, Tasks { acceptors, connections }: &Tasks) -> Drained {
        let (tunnels, resumable) = (|| self.counts.all(), || self.counts.resumable());
        info!(tunnels = tunnels(), resumable = resumable(), delay = ?options.delay, "draining: not ready, still accepting");
        self.phase.send_replace(Phase::Leaving);
        sleep(options.delay).await;
        info!(
            tunnels = tunnels(),
            resumable = resumable(),
            "draining: closing the ports"
        );
        self.phase.send_replace(Phase::Parting);
        // Acceptors empty the backlog without waiting; shared ports (`reuse_port`) take a moment.
        acceptors.wait().await;
        info!(tunnels = tunnels(), resumable = resumable(), timeout = ?options.timeout, "draining: waiting for tunnels to end");
        let moving_ends = self.stop(options);
        if timeout(options.timeout, connections.wait()).await.is_ok() {
            info!("drained: every tunnel has ended");
            return Drained::Clean;
        }
        let (drained, spread) = match self.counts.plain() {
            // Dials in progress and refusals that are not read yet: they need no more than a moment.
            0 if resumable() == 0 => (Drained::Clean, LAST_WAIT),
            0 => {
                let rest = moving_ends.saturating_duration_since(Instant::now());
                (Drained::Clean, rest + LAST_WAIT)
            }
            tunnels => {
                let spread = options.spread;
                warn!(tunnels, ?spread, "drain deadline passed: closing tunnels");
                (Drained::Cut, spread)
            }
        };
        let since = Instant::now();
        self.phase.send_replace(Phase::Closing { since, spread });
        self.deadline.cancel();
        if timeout(spread, connections.wait()).await.is_err() {
            self.end(connections).await;
        }
        drained
    }

    /// No new tunnels from now on. Returns when the last resumable tunnel has to close.
    fn stop(&self, options: &Options) -> Instant {
        let since = Instant::now();
        let spread = options.resumable_spread.min(options.timeout + options.spread);
        // It is not set before.
        self.moving.set(Moving { since, spread }).ok();
        self.phase.send_replace(Phase::Stopped);
        self.stopped.cancel();
        since + spread
    }

    async fn end(&self, connections: &TaskTracker) {
        self.phase.send_replace(Phase::Ended);
        self.stopped.cancel();
        self.deadline.cancel();
        if timeout(LAST_WAIT, connections.wait()).await.is_err() {
            let (tunnels, resumable) = (self.counts.all(), self.counts.resumable());
            warn!(
                tunnels,
                resumable,
                connections = connections.len(),
                "not all of them ended in time"
            );
        }
    }
}

/// When a tunnel closes, as a part of the spread, 0 to 1.
fn part_of_spread(number: u64, idle: bool) -> f64 {
    if idle {
        IDLE_PART * evenly(number)
    } else {
        IDLE_PART + (1.0 - IDLE_PART) * evenly(number)
    }
}

/// A number from 0 to 1 for each tunnel.
///
/// Multiples of the golden ratio fall evenly, whatever run of numbers is left (Knuth 6.4): no random numbers needed.
fn evenly(number: u64) -> f64 {
    let scattered = number.wrapping_mul(GOLDEN_RATIO) >> 32;
    #[expect(clippy::cast_precision_loss, reason = "32 bits fit the 53 of an f64")]
    let even = scattered as f64 / f64::from(u32::MAX);
    even
}

/// A tunnel without a byte for this long is idle.
const IDLE: Duration = Duration::from_secs(60);
/// The part of the spread in which idle tunnels close.
const IDLE_PART: f64 = 0.1;
/// 2^64 divided by the golden ratio.
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
/// The time for connections that have to end to flush what was read and to write their log lines.
const LAST_WAIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn options(delay: u64, timeout: u64, spread: u64) -> Options {
        Options {
            delay: Duration::from_secs(delay),
            timeout: Duration::from_secs(timeout),
            spread: Duration::from_secs(spread),
            ..Options::default()
        }
    }

    /// The task of a tunnel that lasts until `ends` completes.
    async fn tunnel(open: Open, ends: impl Future<Output = ()>) {
        ends.await;
        drop(open);
    }

    /// The task of a tunnel that lasts until the drain closes it.
    fn until_closed(drain: &Drain, open: Open, id: u64) -> impl Future<Output = ()> + use<> {
        let drain = drain.clone();
        async move { drain.closes(|| busy(id, &open)).await }
    }

    /// The state of a tunnel that is never idle.
    fn busy(number: u64, open: &Open) -> State {
        State {
            number,
            last_moved: Instant::now(),
            is_resumable: open.is_resumable(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_is_clean_when_tunnels_end_by_themselves() {
        let (conductor, drain) = Conductor::new();
        let tasks = Tasks::default();
        tasks
            .connections
            .spawn(tunnel(drain.opened(), sleep(Duration::from_secs(60))));
        let start = Instant::now();
        let stopped = drain.clone();
        let stopped = tokio::spawn(async move {
            stopped.stopped().await;
            start.elapsed().as_secs()
        });
        let drained = conductor.run(&options(5, 3600, 300), &tasks, pending()).await;
        assert_eq!((drained, start.elapsed().as_secs()), (Drained::Clean, 60));
        assert_eq!(stopped.await.unwrap(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn past_the_deadline_idle_tunnels_close_first_and_the_rest_is_spread() {
        let (conductor, drain) = Conductor::new();
        let tasks = Tasks::default();
        let start = Instant::now();
        let closes: Vec<_> = (0..40)
            .map(|id| {
                let (drain, idle) = (drain.clone(), id % 2 == 0);
                let open = drain.opened();
                tasks.connections.spawn(async move {
                    let state = || State {
                        last_moved: if idle { start } else { Instant::now() },
                        ..busy(id, &open)
                    };
                    drain.closes(state).await;
                    drop(open);
                    (idle, start.elapsed())
                })
            })
            .collect();
        let drained = conductor.run(&options(5, 100, 300), &tasks, pending()).await;
        assert_eq!(drained, Drained::Cut);
        let mut busy = Vec::new();
        for task in closes {
            let (idle, closed) = task.await.unwrap();
            let closed = closed.as_secs();
            assert!(
                if idle {
                    (105..=135).contains(&closed)
                } else {
                    (135..=405).contains(&closed)
                },
                "{closed}"
            );
            if !idle {
                busy.push(closed);
            }
        }
        busy.sort_unstable();
        assert!(busy.windows(2).all(|pair| pair[1] - pair[0] < 60), "{busy:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_request_ends_the_drain_at_once() {
        for tunnels_open in [0, 3] {
            let (conductor, drain) = Conductor::new();
            let tasks = Tasks::default();
            for id in 0..tunnels_open {
                tasks.connections.spawn(until_closed(&drain, drain.opened(), id));
            }
            let start = Instant::now();
            let now = sleep(Duration::from_secs(2));
            let drained = conductor.run(&options(5, 100, 300), &tasks, now).await;
            let expected = if tunnels_open == 0 {
                Drained::Clean
            } else {
                Drained::Cut
            };
            assert_eq!((drained, start.elapsed().as_secs()), (expected, 2));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_end_does_not_hold_the_process() {
        let (conductor, drain) = Conductor::new();
        let tasks = Tasks::default();
        tasks.connections.spawn(tunnel(drain.opened(), pending()));
        let start = Instant::now();
        assert_eq!(conductor.run(&options(1, 1, 1), &tasks, pending()).await, Drained::Cut);
        assert_eq!(start.elapsed(), Duration::from_secs(3) + LAST_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pending_connection_is_waited_for_only_until_the_ports_are_closed() {
        let (conductor, drain) = Conductor::new();
        let tasks = Tasks::default();
        tasks.connections.spawn(drain.clone().stopped());
        let start = Instant::now();
        let drained = conductor.run(&options(5, 3600, 300), &tasks, pending()).await;
        assert_eq!((drained, start.elapsed().as_secs()), (Drained::Clean, 5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dial_in_progress_at_the_deadline_is_no_cut_tunnel() {
        let (conductor, drain) = Conductor::new();
        let tasks = Tasks::default();
        tasks.connections.spawn(async move { drain.deadline().await });
        let start = Instant::now();
        let drained = conductor.run(&options(5, 100, 300), &tasks, pending()).await;
        assert_eq!((drained, start.elapsed().as_secs()), (Drained::Clean, 105));
    }

    /// Tunnels that are closed by the drain, every second one of them resumable: for each the seconds when it closed, in the
    /// order of their numbers.
    async fn closed(options: &Options, tunnels: u64, resumable: impl Fn(u64) -> bool) -> (Drained, Vec<(bool, f64)>) {
        let (conductor, drain) = Conductor::new();
        let tasks = Tasks::default();
        let start = Instant::now();
        let closing: Vec<_> = (0..tunnels)
            .map(|id| {
                let (open, is_resumable) = (drain.opened(), resumable(id));
                if is_resumable {
                    open.set_resumable();
                    open.set_resumable();
                }
                let closes = until_closed(&drain, open, id);
                tasks.connections.spawn(async move {
                    closes.await;
                    (is_resumable, start.elapsed().as_secs_f64())
                })
            })
            .collect();
        assert_eq!(drain.resumable(), (0..tunnels).filter(|&id| resumable(id)).count());
        let drained = conductor.run(options, &tasks, pending()).await;
        let mut closed = Vec::new();
        for task in closing {
            closed.push(task.await.unwrap());
        }
        assert_eq!((drain.counts.plain(), drain.resumable()), (0, 0));
        (drained, closed)
    }

    #[tokio::test(start_paused = true)]
    async fn resumable_tunnels_close_when_the_ports_are_closed_and_the_others_at_the_deadline() {
        let (drained, closed) = closed(&options(5, 100, 300), 400, |id| id % 2 == 0).await;
        assert_eq!(drained, Drained::Cut);
        let (mut resumable, plain): (Vec<_>, Vec<_>) = closed.into_iter().partition(|&(resumable, _)| resumable);
        assert!(
            plain.iter().all(|(_, closed)| (135.0..=405.0).contains(closed)),
            "{plain:?}"
        );
        resumable.sort_by(|one, other| one.1.total_cmp(&other.1));
        assert!(resumable[0].1 >= 5.0 && resumable[199].1 <= 10.01, "{resumable:?}");
        // 200 in five seconds: in none of fifty tenths of a second are there more than twice as many as in the average one.
        for tenth in 50..100 {
            let tenth = f64::from(tenth) / 10.0;
            let together = resumable
                .iter()
                .filter(|(_, closed)| (tenth..tenth + 0.1).contains(closed));
            assert!(together.count() <= 8, "{resumable:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resumable_tunnels_are_not_cut() {
        for (delay, timeout, spread) in [(5, 100, 300), (0, 0, 60), (0, 1, 2), (0, 0, 0), (0, 2, 0)] {
            let options = options(delay, timeout, spread);
            let (drained, closed) = closed(&options, 100, |_| true).await;
            assert_eq!(drained, Drained::Clean);
            let first = closed.iter().map(|&(_, closed)| closed).fold(f64::MAX, f64::min);
            let last = closed.iter().map(|&(_, closed)| closed).fold(0.0, f64::max);
            let (begin, most) = (Duration::from_secs(delay).as_secs_f64(), (timeout + spread).min(5));
            let most = Duration::from_secs(most).as_secs_f64();
            assert!(
                first >= begin && last <= begin + most + 0.01,
                "{options:?}: {first} to {last}"
            );
            assert!(
                last >= begin + most * 0.9,
                "they are spread: {options:?}: {first} to {last}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_that_becomes_resumable_in_a_drain_closes_then() {
        for (after, by) in [(2, 11), (7, 11), (60, 60), (110, 110)] {
            let (conductor, drain) = Conductor::new();
            let tasks = Tasks::default();
            let open = drain.opened();
            let start = Instant::now();
            let closing = drain.clone();
            let task = tasks.connections.spawn(async move {
                tokio::select! {
                    biased;
                    () = async { sleep(Duration::from_secs(after)).await; open.set_resumable(); pending().await } => {}
                    () = closing.closes(|| busy(7, &open)) => {}
                }
                start.elapsed().as_secs()
            });
            let drained = conductor.run(&options(5, 100, 3000), &tasks, pending()).await;
            let closed = task.await.unwrap();
            assert!((5.max(after)..=by).contains(&closed), "{after}: {closed}");
            // At the deadline it was one of those that would be cut.
            assert_eq!(drained, if after > 105 { Drained::Cut } else { Drained::Clean });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_request_cuts_no_resumable_tunnel() {
        for (plain, expected) in [(0, Drained::Clean), (1, Drained::Cut)] {
            let (conductor, drain) = Conductor::new();
            let tasks = Tasks::default();
            for id in 0..3 {
                let open = drain.opened();
                if id >= plain {
                    open.set_resumable();
                }
                tasks.connections.spawn(until_closed(&drain, open, id));
            }
            let start = Instant::now();
            let drained = conductor
                .run(&options(5, 100, 300), &tasks, sleep(Duration::from_secs(2)))
                .await;
            assert_eq!((drained, start.elapsed().as_secs()), (expected, 2));
        }
    }
}

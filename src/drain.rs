//! A drain: stop accepting, let tunnels end by themselves, close the rest gently.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{info, warn};

use crate::cold::cold;

/// The longest times of the phases of a drain, which takes at most `delay + timeout + spread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The time for a load balancer to notice: not ready, but still accepting.
    pub delay: Duration,
    /// The time for tunnels to end by themselves after that.
    pub timeout: Duration,
    /// The time over which closing the rest is spread, idle tunnels first.
    pub spread: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(5),
            timeout: Duration::from_secs(3600),
            spread: Duration::from_secs(300),
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
    /// No new tunnels: pending connections are refused. Open tunnels may end by themselves.
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
    /// Every tunnel ended by itself.
    Clean,
    /// Tunnels had to be closed.
    Cut,
}

/// The view of a drain that listeners and tunnels hold.
#[derive(Clone, Debug)]
pub struct Drain {
    phase: watch::Receiver<Phase>,
    /// Cancelled when tunnels are to close. An open tunnel waits for nothing else: it takes half the memory of a watch.
    closing: CancellationToken,
    open: TaskTracker,
}

/// A tunnel that is open for as long as this is held.
#[derive(Debug)]
#[must_use = "dropping it says that the tunnel has ended"]
pub struct Open(#[expect(dead_code, reason = "it counts by being there")] TaskTrackerToken);

impl Drain {
    /// Counts a tunnel as open. A connection that never has a tunnel does not make a drain [`Cut`](Drained::Cut).
    pub fn opened(&self) -> Open {
        Open(self.open.token())
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
        self.closing.cancelled().await;
    }

    /// Completes when the tunnel number `id` has to close. `last_moved` is asked at the deadline whether it is idle.
    ///
    /// Idle tunnels close in the first tenth of the spread, the others in the rest of it.
    pub async fn closes(&self, id: u64, last_moved: impl Fn() -> Instant) {
        self.closing.cancelled().await;
        if let Phase::Closing { since, spread } = self.phase() {
            let idle = last_moved().elapsed() >= IDLE;
            let closes = since + spread.mul_f64(part_of_spread(id, idle));
            cold(timeout_at(closes, self.clone().ended())).await.ok();
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
    closing: CancellationToken,
    open: TaskTracker,
}

impl Conductor {
    /// A drain that has not begun, and the view of it.
    pub fn new() -> (Self, Drain) {
        let (sender, receiver) = watch::channel(Phase::Serving);
        let (closing, open) = (CancellationToken::new(), TaskTracker::new());
        let conductor = Self {
            phase: sender,
            closing: closing.clone(),
            open: open.clone(),
        };
        let drain = Drain {
            phase: receiver,
            closing,
            open,
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
        let left = self.open.len();
        warn!(tunnels = left, "asked again to drain: ending at once");
        self.end(connections).await;
        if left == 0 { Drained::Clean } else { Drained::Cut }
    }

    async fn run_phases(&self, options: &Options, Tasks { acceptors, connections }: &Tasks) -> Drained {
        info!(tunnels = self.open.len(), delay = ?options.delay, "draining: not ready, still accepting");
        self.phase.send_replace(Phase::Leaving);
        sleep(options.delay).await;
        info!(tunnels = self.open.len(), "draining: closing the ports");
        self.phase.send_replace(Phase::Parting);
        // They hand over the backlog, which takes no waiting; only shared ports take a moment.
        acceptors.wait().await;
        info!(tunnels = self.open.len(), timeout = ?options.timeout, "draining: waiting for tunnels to end");
        self.phase.send_replace(Phase::Stopped);
        if timeout(options.timeout, connections.wait()).await.is_ok() {
            info!("drained: every tunnel has ended");
            return Drained::Clean;
        }
        let (drained, spread) = match self.open.len() {
            // Dials in progress and refusals that are not read yet: they need no more than a moment.
            0 => (Drained::Clean, LAST_WAIT),
            tunnels => {
                let spread = options.spread;
                warn!(tunnels, ?spread, "drain deadline passed: closing tunnels");
                (Drained::Cut, spread)
            }
        };
        let since = Instant::now();
        self.phase.send_replace(Phase::Closing { since, spread });
        self.closing.cancel();
        if timeout(spread, connections.wait()).await.is_err() {
            self.end(connections).await;
        }
        drained
    }

    async fn end(&self, connections: &TaskTracker) {
        self.phase.send_replace(Phase::Ended);
        self.closing.cancel();
        if timeout(LAST_WAIT, connections.wait()).await.is_err() {
            let (tunnels, connections) = (self.open.len(), connections.len());
            warn!(tunnels, connections, "not all of them ended in time");
        }
    }
}

/// When a tunnel closes, as a part of the spread, 0 to 1.
///
/// Multiples of the golden ratio fall evenly, whatever run of numbers is left (Knuth 6.4): no random numbers needed.
fn part_of_spread(id: u64, idle: bool) -> f64 {
    let scattered = id.wrapping_mul(GOLDEN_RATIO) >> 32;
    #[expect(clippy::cast_precision_loss, reason = "32 bits fit the 53 of an f64")]
    let even = scattered as f64 / f64::from(u32::MAX);
    if idle {
        IDLE_PART * even
    } else {
        IDLE_PART + (1.0 - IDLE_PART) * even
    }
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
        }
    }

    /// The task of a tunnel that lasts until `ends` completes.
    async fn tunnel(open: Open, ends: impl Future<Output = ()>) {
        ends.await;
        drop(open);
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
                    drain.closes(id, || if idle { start } else { Instant::now() }).await;
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
                let closes = drain.clone();
                let closes = async move { closes.closes(id, Instant::now).await };
                tasks.connections.spawn(tunnel(drain.opened(), closes));
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
}

//! Whether a tunnel is used: its minutes, judged as they end.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::tunnel::metrics::TargetSeries;
use crate::tunnel::relay::activity_rule::History;
use crate::tunnel::relay::meter::Meter;

/// Whether a tunnel is used, and when it was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Whether its last minute was active, or the one that is not over is already.
    pub is_active: bool,
    /// The last byte of its last active minute; its beginning if there was none.
    pub last_active: SystemTime,
}

/// The judgements of one tunnel.
#[derive(Debug)]
pub(crate) struct Judged {
    state: Mutex<State>,
    /// Where its target's last activity is noted.
    series: Arc<TargetSeries>,
}

/// When a tunnel was established.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// By the host's clock.
    pub since: SystemTime,
    /// By a clock that is never set.
    pub established: Instant,
}

impl Start {
    /// Just now.
    pub(crate) fn now() -> Self {
        Self {
            since: SystemTime::now(),
            established: Instant::now(),
        }
    }

    /// A later moment by the clock of the host, as if that was not set meanwhile.
    fn by_the_hosts_clock(self, moment: Instant) -> SystemTime {
        self.since + moment.saturating_duration_since(self.established)
    }
}

#[derive(Debug)]
struct State {
    history: History,
    was_active: bool,
    last_active: Instant,
}

impl Judged {
    /// A tunnel that begins is active.
    pub(crate) fn new(series: &Arc<TargetSeries>, start: Start) -> Self {
        series.was_active(start.since);
        Self {
            state: Mutex::new(State {
                history: History::default(),
                was_active: true,
                last_active: start.established,
            }),
            series: Arc::clone(series),
        }
    }

    /// Ends a minute of the tunnel with that meter.
    pub(crate) fn end_minute(&self, meter: &Meter, start: Start) {
        let mut state = self.state.lock();
        state.was_active = state.history.end_minute(meter.so_far());
        if state.was_active {
            self.note(&mut state, meter, start);
        }
    }

    /// The state at this moment.
    pub(crate) fn now(&self, meter: &Meter, start: Start) -> Activity {
        let mut state = self.state.lock();
        let is_active_already = state.history.is_active_already(meter.so_far());
        if is_active_already {
            self.note(&mut state, meter, start);
        }
        Activity {
            is_active: state.was_active || is_active_already,
            last_active: start.by_the_hosts_clock(state.last_active),
        }
    }

    fn note(&self, state: &mut State, meter: &Meter, start: Start) {
        state.last_active = meter.last_moved();
        self.series.was_active(start.by_the_hosts_clock(state.last_active));
    }
}

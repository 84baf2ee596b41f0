//! Whether a tunnel is used: its minutes, judged as they end.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::TargetSeries;
use crate::relay::activity_rule::History;
use crate::relay::meter::Meter;

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
pub(super) struct Judged {
    state: Mutex<State>,
    /// Where its target's last activity is noted.
    series: Arc<TargetSeries>,
    /// When the tunnel has begun, by the host's clock and by one that is never set.
    began: (SystemTime, Instant),
}

#[derive(Debug)]
struct State {
    history: History,
    was_active: bool,
    last_active: Instant,
}

impl Judged {
    /// A tunnel that begins is active.
    pub(super) fn new(series: &Arc<TargetSeries>) -> Self {
        let began = (SystemTime::now(), Instant::now());
        series.was_active(began.0);
        Self {
            state: Mutex::new(State {
                history: History::default(),
                was_active: true,
                last_active: began.1,
            }),
            series: Arc::clone(series),
            began,
        }
    }

    /// Ends a minute of the tunnel with that meter.
    pub(super) fn end_minute(&self, meter: &Meter) {
        let mut state = self.state.lock();
        state.was_active = state.history.end_minute(meter.so_far());
        if state.was_active {
            self.note(&mut state, meter);
        }
    }

    /// The state at this moment.
    pub(super) fn now(&self, meter: &Meter) -> Activity {
        let mut state = self.state.lock();
        let is_active_already = state.history.is_active_already(meter.so_far());
        if is_active_already {
            self.note(&mut state, meter);
        }
        Activity {
            is_active: state.was_active || is_active_already,
            last_active: self.by_the_hosts_clock(state.last_active),
        }
    }

    fn note(&self, state: &mut State, meter: &Meter) {
        state.last_active = meter.last_moved();
        self.series.was_active(self.by_the_hosts_clock(state.last_active));
    }

    fn by_the_hosts_clock(&self, moment: Instant) -> SystemTime {
        let (since, established) = self.began;
        since + moment.saturating_duration_since(established)
    }
}

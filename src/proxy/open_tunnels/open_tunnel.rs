//! An open tunnel as operators see it and act on it. Its relay never waits for them.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::activity::{Activity, Judged, Start};
use super::facts::Facts;
use super::legs::{LastSeen, Trip};
use crate::base::text::excerpt;
use crate::net::sock_diag::{SockDiag, TcpInfo, Unknown};
use crate::tunnel::direction::Both;
use crate::tunnel::drain::Open;
use crate::tunnel::limits::bucket::OwnRate;
use crate::tunnel::metrics::TargetSeries;
use crate::tunnel::relay::meter::Meter;

/// A tunnel from its 200 to its end.
#[derive(Debug)]
pub struct OpenTunnel {
    /// What was learnt of it before its 200, and the SSH software of both sides behind that.
    pub facts: Facts,
    /// When it was established.
    pub start: Start,
    /// Its byte counts.
    pub meter: Meter,
    /// The tunnel in a drain.
    pub open: Open,
    /// Rates in place of those of its target.
    pub own_rates: Both<OwnRate>,
    /// Why an operator ends it, in the operator's words.
    closing: OnceLock<Box<str>>,
    /// That of the tunnel's task, which waits for `closing`. Not a `Notify`: an idle tunnel would keep its 72 bytes.
    closer: AtomicWaker,
    /// Whether it is used.
    judged: Judged,
    /// The last look at its counts.
    look: Mutex<Look>,
    /// The last looks at its connections.
    legs: LastSeen,
}

/// A look at the counts of a tunnel, and what came of it.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    bytes: Both<u64>,
    rates: Both<u64>,
}

impl OpenTunnel {
    /// A tunnel that was established just now; its bytes are also its target's.
    pub(crate) fn new(facts: Facts, series: &Arc<TargetSeries>, open: Open) -> Self {
        let start = Start::now();
        Self {
            facts,
            start,
            meter: Meter::new(Arc::clone(&series.totals)),
            open,
            own_rates: Default::default(),
            closing: OnceLock::new(),
            closer: AtomicWaker::new(),
            judged: Judged::new(series, start),
            look: Mutex::new(Look {
                at: start.established,
                bytes: Both::default(),
                rates: Both::default(),
            }),
            legs: LastSeen::default(),
        }
    }

    /// Whether it is used, at this moment.
    pub fn activity(&self) -> Activity {
        self.judged.now(&self.meter, self.start)
    }

    /// Ends a minute, as the rule of [`activity`](crate::tunnel::relay::activity_rule) counts them.
    pub(crate) fn end_minute(&self) {
        self.judged.end_minute(&self.meter, self.start);
    }

    /// Bytes a second between the last two looks that were at least a second apart; the first look was when it began.
    pub fn rates(&self) -> Both<u64> {
        let mut look = self.look.lock();
        let millis = look.at.elapsed().as_millis();
        if millis < SHORTEST_LOOK.as_millis() {
            return look.rates;
        }
        let bytes = Both::from_fn(|direction| self.meter.bytes(direction));
        let rate = |moved: u64| u64::try_from(u128::from(moved) * 1000 / millis).unwrap_or(u64::MAX);
        *look = Look {
            at: Instant::now(),
            bytes,
            rates: Both::from_fn(|direction| rate(bytes[direction] - look.bytes[direction])),
        };
        look.rates
    }

    /// What the kernel knows of the connections of the client and of the target. It takes some microseconds.
    pub fn legs(&self, diag: &SockDiag) -> [Result<TcpInfo, Unknown>; 2] {
        self.legs.look(self.facts.ends(), diag)
    }

    /// Looks at the connections for the last time.
    pub(crate) fn look_at_end(&self, diag: &SockDiag) {
        self.legs.look_at_end(self.facts.ends(), diag);
    }

    /// Their round trips at the last look.
    pub(crate) fn trips(&self) -> [Option<Trip>; 2] {
        self.legs.trips()
    }

    /// Ends the tunnel, with a reason for the access log. Whether it is the first to do so.
    pub fn close(&self, reason: &str) -> bool {
        let is_first = self.closing.set(excerpt(reason, LONGEST_REASON).into()).is_ok();
        self.closer.wake();
        is_first
    }

    /// The reason of the operator that has ended the tunnel.
    pub fn closing(&self) -> Option<&str> {
        self.closing.get().map(|reason| &**reason)
    }

    /// Completes when an operator ends the tunnel. Only its own task waits for it.
    pub(crate) async fn closed_by_operator(&self) {
        poll_fn(|context| {
            self.closer.register(context.waker());
            match self.closing() {
                Some(_) => Poll::Ready(()),
                None => Poll::Pending,
            }
        })
        .await;
    }
}

/// Characters of an operator's reason.
const LONGEST_REASON: usize = 200;
const SHORTEST_LOOK: Duration = Duration::from_secs(1);

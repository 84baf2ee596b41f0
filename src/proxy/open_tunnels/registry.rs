//! The tunnels that are open in this process, for operators. A relay never waits for a reader of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use super::ended_sessions::EndedSessions;
use super::events::{Event, Events};
use super::open_tunnel::OpenTunnel;
use super::past::EndedTunnels;
use super::refusals::Refusals;
use super::restrictions::Restrictions;
use crate::net::sock_diag::SockDiag;
use crate::tunnel::outcome::Close;

/// The open tunnels, by number.
#[derive(Debug, Default)]
pub struct Registry {
    /// Sharded by the low bits of the number, so that threads seldom contend for a lock.
    shards: [Mutex<HashMap<u64, Arc<OpenTunnel>>>; SHARDS],
    /// The events of tunnels.
    pub events: Arc<Events>,
    /// The sessions that operators have ended.
    pub ended_sessions: EndedSessions,
    /// The restrictions of operators.
    pub restrictions: Restrictions,
    /// The tunnels that have ended in the last hour.
    pub ended: EndedTunnels,
    /// Refusals since the start of the process.
    pub refusals: Refusals,
    /// The access to the kernel's counts of the tunnels' connections.
    pub sock_diag: SockDiag,
}

impl Registry {
    /// Returns the tunnels that are open now, in no order.
    pub fn all(&self) -> Vec<Arc<OpenTunnel>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().values().cloned());
        }
        all
    }

    /// Every minute, ends the minute of each tunnel and checks its windows; never returns. The shards take turns:
    /// 10,000 tunnels at once would occupy a thread for milliseconds. Also forgets what is more than an hour ago.
    pub async fn keep_judging(&self) {
        let mut ticks = interval(MINUTE / PARTS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for part in (0..PARTS).cycle() {
            ticks.tick().await;
            if part == 0 {
                self.ended.expire();
                self.refusals.expire();
            }
            if self.restrictions.expire() {
                self.apply_limits();
            }
            let tunnels: Vec<_> = self.shard(part.into()).lock().values().cloned().collect();
            for tunnel in tunnels {
                tunnel.end_minute();
                tunnel.look_at_windows(&self.sock_diag);
            }
        }
    }

    /// Returns the open tunnel of that number; `None` without one.
    pub fn get(&self, number: u64) -> Option<Arc<OpenTunnel>> {
        self.shard(number).lock().get(&number).cloned()
    }

    /// Sets the rates of all tunnels, after a change of the restrictions.
    pub(crate) fn apply_limits(&self) {
        self.all()
            .iter()
            .for_each(|tunnel| tunnel.apply_limits(&self.restrictions));
    }

    /// Lists a tunnel for as long as the registration is held. Restrictions apply to it, also those of a moment ago: a
    /// later one finds it in the list.
    pub(crate) fn enter(&self, tunnel: Arc<OpenTunnel>) -> Registration<'_> {
        let number = tunnel.info.id.number;
        self.shard(number).lock().insert(number, Arc::clone(&tunnel));
        tunnel.apply_limits(&self.restrictions);
        if let Some(reason) = self.restrictions.close_reason(&tunnel.info.subject()) {
            tunnel.close(&reason, true);
        }
        self.events.publish(|| Event::Opened(Arc::clone(&tunnel)));
        Registration { registry: self, tunnel }
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Arc<OpenTunnel>>> {
        let [first, rest @ ..] = &self.shards;
        let shard = usize::try_from(number % SHARDS as u64).unwrap_or_default();
        rest.get(shard).unwrap_or(first)
    }
}

/// A listed tunnel; its drop takes it off the list, and a drain counts it no longer.
#[derive(Debug)]
#[must_use = "dropping it takes the tunnel off the list"]
pub(crate) struct Registration<'a> {
    registry: &'a Registry,
    tunnel: Arc<OpenTunnel>,
}

impl Registration<'_> {
    pub(crate) fn tunnel(&self) -> &OpenTunnel {
        &self.tunnel
    }

    /// Notes the end of the tunnel, and publishes it.
    pub(crate) fn closed(&self, close: Close) {
        self.registry.ended.note(&self.tunnel, close);
        let tunnel = || Arc::clone(&self.tunnel);
        self.registry.events.publish(|| Event::Closed(tunnel(), close));
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let number = self.tunnel.info.id.number;
        self.registry.shard(number).lock().remove(&number);
        // Not left to the tunnel's drop: unread events own the tunnel for as long as their reader stalls.
        self.tunnel.guard.end();
    }
}

const PARTS: u32 = 16;
const SHARDS: usize = PARTS as usize;
const MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use tokio::time::{Instant, sleep};

    use crate::daemon::admin::api::Query;
    use crate::proxy::open_tunnels::restrictions::{Effect, Restriction};
    use crate::proxy::record::{Ids, RequestInfo};
    use crate::tunnel::direction::Direction;
    use crate::tunnel::drain::DrainController;
    use crate::tunnel::exposition;
    use crate::tunnel::target_metrics::{TargetMetrics, TargetSeries};

    fn series() -> Arc<TargetSeries> {
        TargetMetrics::new(&exposition::registry().unwrap())
            .unwrap()
            .series("a", "b")
    }

    fn tunnel(number: u64, series: &Arc<TargetSeries>) -> Arc<OpenTunnel> {
        let mut id = Ids::default().next();
        id.number = number;
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let info = RequestInfo::new(id, [address, address], Instant::now());
        let (_, drain) = DrainController::new();
        Arc::new(OpenTunnel::new(info, series, drain.opened()))
    }

    fn keystrokes(tunnel: &OpenTunnel, count: usize) {
        for _ in 0..count {
            tunnel.meter.record(Direction::Upload, 36);
            tunnel.meter.record(Direction::Download, 36);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_is_idle_once_its_minutes_repeat_and_active_at_the_first_command() {
        let registry: &Registry = Box::leak(Box::default());
        let series = series();
        assert_eq!(series.last_activity(), None);
        // The last part, so that a minute of the test ends before one of the tunnel.
        let tunnel = tunnel(15, &series);
        let _listed = registry.enter(Arc::clone(&tunnel));
        assert!(
            series.last_activity().is_some() && tunnel.activity().is_active,
            "it has just begun"
        );
        let judging = tokio::spawn(registry.keep_judging());
        for minute in 0..6 {
            keystrokes(&tunnel, 4);
            sleep(MINUTE).await;
            assert_eq!(tunnel.activity().is_active, minute < 3, "minute {minute}");
        }
        let idle_since = tunnel.activity().last_active;
        keystrokes(&tunnel, 8);
        let active = tunnel.activity();
        assert!(active.is_active && active.last_active > idle_since);
        // The series knows milliseconds.
        let noted = series.last_activity().unwrap();
        assert!(
            tunnel
                .start
                .to_system_time(active.last_active)
                .duration_since(noted)
                .unwrap()
                < Duration::from_millis(1)
        );
        for _ in 0..2 {
            sleep(MINUTE).await;
            keystrokes(&tunnel, 4);
        }
        let idle = tunnel.activity();
        assert_eq!((idle.is_active, idle.last_active), (false, active.last_active));
        // The bytes of now are no activity.
        assert_eq!(idle.last_active.elapsed(), 2 * MINUTE);
        judging.abort();
    }

    /// Looks until the client's window is noted to be closed, or open; that of the target has no connection.
    fn look_until(tunnel: &OpenTunnel, diag: &SockDiag, is_closed: bool) {
        let started = std::time::Instant::now();
        while tunnel.meter.is_window_closed(Direction::Download) != is_closed {
            assert!(started.elapsed() < Duration::from_secs(60));
            tunnel.look_at_windows(diag);
        }
        assert!(!tunnel.meter.is_window_closed(Direction::Upload));
    }

    #[test]
    fn a_side_that_reads_nothing_is_noted_until_it_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, peer) = listener.accept().unwrap();
        let mut info = RequestInfo::new(Ids::default().next(), [peer, peer], Instant::now());
        info.locals[0] = Some(accepted.local_addr().unwrap());
        let series = series();
        let (_conductor, drain) = DrainController::new();
        let tunnel = OpenTunnel::new(info, &series, drain.opened());
        let diag = SockDiag::default();
        accepted.set_nonblocking(true).unwrap();
        for _ in 0..2 {
            let mut bytes = 0;
            while let Ok(written) = accepted.write(&[7; 65_536]) {
                bytes += written;
            }
            look_until(&tunnel, &diag, true);
            client.read_exact(&mut vec![0; bytes]).unwrap();
            look_until(&tunnel, &diag, false);
        }
    }

    /// A request may be between its check and its tunnel while the block begins.
    #[tokio::test]
    async fn a_tunnel_that_begins_during_a_block_ends_unless_open_tunnels_are_kept() {
        let registry = Registry::default();
        let series = series();
        for keeps_tunnels in [true, false] {
            let of = Query {
                client: Some([192, 0, 2, 1].into()),
                ..Query::default()
            };
            let effect = Effect::Block {
                reason: "it floods".into(),
                keeps_tunnels,
            };
            let until = Instant::now() + MINUTE;
            assert!(registry.restrictions.add(Restriction { of, effect, until }));
            let tunnel = tunnel(1, &series);
            let _listed = registry.enter(Arc::clone(&tunnel));
            assert_eq!(tunnel.close_reason(), (!keeps_tunnels).then_some("it floods"));
        }
    }

    #[test]
    fn a_final_end_replaces_a_move_and_nothing_replaces_a_final_end() {
        let series = series();
        let (_conductor, drain) = DrainController::new();
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let info = RequestInfo::new(Ids::default().next(), [address, address], Instant::now());
        let tunnel = OpenTunnel::new(info, &series, drain.opened());
        assert!(tunnel.close("drain of a node", false) && !tunnel.close("again", false));
        assert_eq!(
            (tunnel.close_reason(), tunnel.is_end_final()),
            (Some("drain of a node"), false)
        );
        assert!(tunnel.close("abuse", true) && !tunnel.close("again", true) && !tunnel.close("again", false));
        assert_eq!((tunnel.close_reason(), tunnel.is_end_final()), (Some("abuse"), true));
    }

    #[test]
    fn a_drain_counts_no_tunnel_for_an_event_that_is_not_read() {
        let registry = Registry::default();
        let series = series();
        let _unread = registry.events.watch().unwrap();
        let (_conductor, drain) = DrainController::new();
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        let info = RequestInfo::new(Ids::default().next(), [address, address], Instant::now());
        let tunnel = Arc::new(OpenTunnel::new(info, &series, drain.opened()));
        tunnel.guard.set_resumable();
        let listed = registry.enter(tunnel);
        assert_eq!(drain.resumable(), 1);
        drop(listed);
        assert_eq!(drain.resumable(), 0);
    }
}

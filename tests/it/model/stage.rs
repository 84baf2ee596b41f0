//! Performs a schedule on real connections with the relay between them, and holds what is seen to the reference.

use std::cell::Cell;
use std::future::pending;
use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use switchboard::tunnel::direction::Direction;
use switchboard::tunnel::outcome::{Close, CloseReason};
use switchboard::tunnel::relay::{EarlyData, Options, RelayConfig, Transports, relay};
use switchboard::tunnel::stream::Stream;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{advance, pause};

use super::peer::{Orders, Peer, Wire, stream};
use super::reference::{HALF_CLOSED, IDLE, Reference, Seen};
use super::schedule::{Role, Schedule, Step};
use crate::harness::loopback::Rig;

/// A tunnel that did what it must not.
#[derive(Debug)]
#[expect(dead_code, reason = "to be read by whom the failure is shown")]
pub(crate) struct Disagreement {
    what: &'static str,
    /// So many of the schedule's steps were done.
    steps: usize,
    seen: Seen,
    reference: Reference,
}

/// The two sides, the relay's meter and what it returned.
struct Scene<'a> {
    rig: &'a Rig,
    peers: &'a [Peer; 2],
    close: &'a Cell<Option<Close>>,
}

/// The protocol between a client and the relay.
pub(crate) trait Downstream {
    /// Has a tunnel relayed, of whose client these bytes were read already, and does all that goes on beside it.
    async fn carry(self, relayed: impl AsyncFnOnce(Stream, Vec<u8>));
}

/// Nothing: the relay has the end of a client of which so many bytes were read.
pub(crate) struct Direct<D>(pub(crate) D, pub(crate) usize);

impl<D: Into<Stream>> Downstream for Direct<D> {
    async fn carry(self, relayed: impl AsyncFnOnce(Stream, Vec<u8>)) {
        relayed(self.0.into(), stream(Role::Client)[..self.1].to_vec()).await;
    }
}

/// Performs a schedule between a client and a target, of which the relay has the other ends.
pub(crate) async fn perform<D: Downstream>(
    schedule: &Schedule,
    rig: &Rig,
    (client, downstream): (impl Wire, D),
    (target, upstream): (TcpStream, TcpStream),
) -> Result<Close, Box<Disagreement>> {
    // The clock stands still but for the steps that move it: while a thread is busy, tokio does not move it by itself.
    pause();
    let (until_here, is_over) = mpsc::channel::<()>();
    let busy = spawn_blocking(move || is_over.recv().unwrap_err());
    let early = schedule.early;
    let options = Options {
        idle: Some(IDLE),
        half_closed: HALF_CLOSED,
    };
    let terms = RelayConfig {
        options: &options,
        ..rig.terms()
    };
    let (begun, close) = (Notify::new(), Cell::new(None));
    let peers = [Peer::new(Role::Client, early), Peer::new(Role::Target, 0)];
    let relayed = async |downstream, upload| {
        begun.notify_one();
        let mut ends = Transports {
            downstream,
            upstream: Stream::from(upstream),
            early: Some(Box::new(EarlyData {
                upload,
                ..EarlyData::default()
            })),
        };
        let returned = relay(&mut ends, &terms, pin!(pending())).await;
        assert!(ends.early.is_none(), "an idle tunnel would hold it");
        drop(ends);
        close.set(Some(returned));
    };
    let [at_client, at_target] = &peers;
    let scene = Scene {
        rig,
        peers: &peers,
        close: &close,
    };
    let directed = async {
        begun.notified().await;
        scene.direct(schedule).await
    };
    let carried = downstream.carry(relayed);
    let done = tokio::select! {
        done = directed => done,
        _ = async { tokio::join!(carried, at_client.live(client, early), at_target.live(target, 0), pending::<()>()) } => {
            unreachable!("one of them never ends")
        }
    };
    drop(until_here);
    busy.await.unwrap();
    done
}

impl Scene<'_> {
    async fn direct(&self, schedule: &Schedule) -> Result<Close, Box<Disagreement>> {
        let mut reference = Reference::new(schedule.early);
        for (index, step) in schedule.whole().enumerate() {
            if !reference.can(step) {
                continue;
            }
            if let Step::Pass(_) | Step::Settle = step {
                reference = self.settle(reference, index).await?;
            }
            reference.follow(step, &self.seen());
            self.order(step).await;
            if let Step::Pass(_) = step {
                reference = self.settle(reference, index).await?;
            }
        }
        let are_right = self.counts_are_right();
        self.hold(
            are_right,
            "a count of bytes, or a pipe that was kept",
            &reference,
            usize::MAX,
        )?;
        Ok(self.close.get().unwrap())
    }

    async fn order(&self, step: Step) {
        let tell = |who: Role, change: &dyn Fn(&mut Orders)| self.peers[who.index()].orders.send_modify(change);
        match step {
            Step::Send(who, bytes) => tell(who, &|orders| orders.send += bytes),
            Step::Finish(who) => tell(who, &|orders| orders.finish = true),
            Step::Reset(who) => tell(who, &|orders| orders.reset = true),
            Step::Stall(who) => tell(who, &|orders| orders.stall = true),
            Step::Resume(who) => tell(who, &|orders| orders.stall = false),
            Step::Settle => {}
            Step::Pass(seconds) => advance(Duration::from_secs(seconds.into())).await,
        }
    }

    /// Waits until all that must happen has happened.
    async fn settle(&self, mut reference: Reference, steps: usize) -> Result<Reference, Box<Disagreement>> {
        let started = Instant::now();
        let mut rounds = 0;
        while !reference.settled(&self.seen()) {
            let wrong = self.peers.iter().find_map(|peer| peer.wrong.get());
            let in_time = started.elapsed() < PATIENCE;
            self.hold(wrong.is_none(), wrong.unwrap_or_default(), &reference, steps)?;
            self.hold(in_time, "what must happen does not", &reference, steps)?;
            yield_now().await;
            rounds += 1;
            // A side that was told to leave gets a moment, on a clock that stands still; so does a flush that may be all that is left.
            let may_flush = started.elapsed() > PATIENCE / 4 && reference.may_flush();
            if rounds % ROUNDS_A_TICK == 0 && (may_flush || reference.must_return()) {
                advance(TICK).await;
            }
        }
        Ok(reference)
    }

    fn seen(&self) -> Seen {
        let [client, target] = self.peers;
        Seen {
            received: [client.received.get(), target.received.get()],
            end: [client.end.get(), target.end.get()],
            counted: [Direction::Upload, Direction::Download].map(|direction| self.rig.meter.bytes(direction)),
            close: self.close.get(),
        }
    }

    fn hold(
        &self,
        holds: bool,
        what: &'static str,
        reference: &Reference,
        steps: usize,
    ) -> Result<(), Box<Disagreement>> {
        if holds {
            return Ok(());
        }
        Err(Box::new(Disagreement {
            what,
            steps,
            seen: self.seen(),
            reference: reference.clone(),
        }))
    }

    /// The count lies between the bytes received and those sent, and is equal to them when both sides finished.
    fn counts_are_right(&self) -> bool {
        let Seen {
            received,
            counted,
            close,
            ..
        } = self.seen();
        let is_whole = close.is_some_and(|close| close.reason == CloseReason::Eof);
        let each = Role::BOTH.into_iter().all(|who| {
            let sent = self.peers[who.index()].orders.borrow().send;
            let (counted, received) = (counted[who.index()], received[who.other().index()]);
            (received as u64..=sent as u64).contains(&counted) && (!is_whole || counted == sent as u64)
        });
        each && self.rig.resources.pipes_in_use() == 0 && self.peers.iter().all(|peer| peer.wrong.get().is_none())
    }
}

/// A connection over loopback: the peer's end and the relay's.
pub(crate) async fn pair(tight: bool) -> (TcpStream, TcpStream) {
    let listening = TcpSocket::new_v4().unwrap();
    let peer = TcpSocket::new_v4().unwrap();
    if tight {
        listening.set_send_buffer_size(SMALL).unwrap();
        peer.set_recv_buffer_size(SMALL).unwrap();
    }
    listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listening.listen(1).unwrap();
    let (peer, ours) = tokio::join!(peer.connect(listener.local_addr().unwrap()), listener.accept());
    let (peer, ours) = (peer.unwrap(), ours.unwrap().0);
    for stream in [&peer, &ours] {
        stream.set_nodelay(true).unwrap();
    }
    (peer, ours)
}

/// The deadline of a step, which takes milliseconds: it only ends a schedule that hangs, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(20);
const ROUNDS_A_TICK: usize = 20;
const TICK: Duration = Duration::from_millis(100);
const SMALL: u32 = 32 * 1024;

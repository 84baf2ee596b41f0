//! The relay against a small reference of one tunnel: random schedules on both sides, real connections between them.
//!
//! `SWITCHBOARD_MODEL_CASES=5000` tries more schedules than usual, and `PROPTEST_RNG_SEED=7` others. One that fails is shrunk and
//! printed: its steps can be put into `KNOWN` as they are.

mod http2;
mod peer;
mod reference;
mod schedule;
mod stage;
mod tls;

use std::env;
use std::time::Duration;

use crate::harness::loopback::{Rig, SETUPS, Setup, Splices};
use http2::Resets;
use proptest::prelude::*;
use schedule::{Role, Schedule, Step, schedule};
use socket2::SockRef;
use stage::{Direct, Disagreement, pair, perform};
use switchboard::tunnel::outcome::{Close, CloseReason, Side};
use tls::Protocol;
use tokio::runtime::Builder;

use Role::{Client, Target};
use Step::{Finish, Pass, Reset, Resume, Send, Settle, Stall};

/// The carrier of the client's end of the tunnel.
#[derive(Clone, Copy, Debug)]
enum Downstream {
    Plain,
    Tls,
    Http2(Resets),
    Http2OverTls,
}

impl Downstream {
    const ALL: [Self; 5] = [
        Self::Plain,
        Self::Tls,
        Self::Http2(Resets::Stream),
        Self::Http2(Resets::Connection),
        Self::Http2OverTls,
    ];

    /// The kernel cannot move what is encrypted or framed: relays that splice fall back.
    fn setups(self) -> &'static [Setup] {
        match self {
            Self::Plain => &SETUPS,
            Self::Tls | Self::Http2(Resets::Stream) => &[(Splices::Bulk, 4), (Splices::All, 4)],
            Self::Http2(Resets::Connection) | Self::Http2OverTls => &[(Splices::Bulk, 4)],
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_time: MAX_SHRINK,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_relay_does_what_the_reference_says(schedule in schedule()) {
        for downstream in Downstream::ALL {
            for &setup in downstream.setups() {
                let done = performed(&schedule, downstream, &Rig::new(setup));
                prop_assert!(done.is_ok(), "{downstream:?} {setup:?}: {done:#?}");
            }
        }
    }
}

#[test]
fn known_schedules_end_as_they_should() {
    for (steps, by, reason) in KNOWN {
        for (downstream, tight) in Downstream::ALL.into_iter().flat_map(|all| [(all, false), (all, true)]) {
            let (early, steps) = (0, steps.to_vec());
            let schedule = Schedule { early, tight, steps };
            for &setup in downstream.setups() {
                let done = performed(&schedule, downstream, &Rig::new(setup));
                let close = done.unwrap_or_else(|wrong| panic!("{schedule:?} {downstream:?} {setup:?}: {wrong:#?}"));
                assert_eq!(
                    (close.by, close.reason),
                    (*by, *reason),
                    "{schedule:?} {downstream:?} {setup:?}"
                );
            }
        }
    }
}

#[test]
fn bytes_that_come_while_the_proxy_flushes_are_lost_with_the_tunnel() {
    let steps = vec![
        Stall(Target),
        Send(Client, 289_089),
        Pass(25),
        Finish(Client),
        Pass(19),
        Pass(28),
        Send(Target, 161_771),
        Pass(15),
    ];
    let (early, tight) = (844, true);
    let schedule = Schedule { early, tight, steps };
    let done = performed(&schedule, Downstream::Plain, &Rig::new((Splices::All, 4)));
    let close = done.unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    assert_eq!((close.by, close.reason), (Side::Proxy, CloseReason::Idle));
}

/// Between real connections, on a thread of its own.
fn performed(schedule: &Schedule, downstream: Downstream, rig: &Rig) -> Result<Close, Box<Disagreement>> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (wires, target) = (pair(schedule.tight).await, pair(schedule.tight).await);
        match downstream {
            Downstream::Plain => {
                let (client, ours) = wires;
                perform(schedule, rig, (client, Direct(ours, schedule.early)), target).await
            }
            Downstream::Tls => {
                let (client, session) = tls::over(wires, Protocol::Http1).await;
                perform(schedule, rig, (client, Direct(session, schedule.early)), target).await
            }
            Downstream::Http2(resets) => {
                let linger = (resets == Resets::Connection).then_some(Duration::ZERO);
                SockRef::from(&wires.0).set_linger(linger).unwrap();
                let ends = http2::over(wires, schedule, resets).await;
                perform(schedule, rig, ends, target).await
            }
            Downstream::Http2OverTls => {
                let sessions = tls::over(wires, Protocol::Http2).await;
                let ends = http2::over(sessions, schedule, Resets::Stream).await;
                perform(schedule, rig, ends, target).await
            }
        }
    })
}

fn cases() -> u32 {
    match env::var("SWITCHBOARD_MODEL_CASES") {
        Ok(cases) => cases.parse().expect("SWITCHBOARD_MODEL_CASES is a number"),
        Err(_) => USUAL,
    }
}

/// Schedules that leave nothing to chance, and how they have to end.
const KNOWN: &[(&[Step], Side, CloseReason)] = &[
    (
        &[Send(Client, 5), Send(Target, 300_000)],
        Side::Client,
        CloseReason::Eof,
    ),
    (
        &[Finish(Target), Settle, Send(Client, 9)],
        Side::Target,
        CloseReason::Eof,
    ),
    // A side that stalls loses nothing, and hides no reset of the other.
    (
        &[Stall(Target), Send(Client, 500_000), Pass(9), Resume(Target)],
        Side::Client,
        CloseReason::Eof,
    ),
    (&TYPED_AHEAD, Side::Client, CloseReason::Eof),
    (
        &[Stall(Target), Send(Client, 500_000), Settle, Reset(Client)],
        Side::Client,
        CloseReason::Reset,
    ),
    (
        &[Stall(Client), Send(Target, 500_000), Settle, Reset(Client)],
        Side::Client,
        CloseReason::Reset,
    ),
    (
        &[Send(Target, 9_000), Settle, Reset(Target)],
        Side::Target,
        CloseReason::Reset,
    ),
    // Half of a tunnel can be reset as well, and a side that has finished takes nothing back by it.
    (
        &[Finish(Client), Settle, Reset(Target)],
        Side::Target,
        CloseReason::Reset,
    ),
    (
        &[Send(Target, 200_000), Finish(Target), Settle, Reset(Target)],
        Side::Target,
        CloseReason::Reset,
    ),
    (
        &[Send(Client, 9), Finish(Client), Settle, Send(Target, 9), Reset(Client)],
        Side::Client,
        CloseReason::Reset,
    ),
    // Silence is counted from the last byte; half a tunnel has less time.
    (
        &[Pass(29), Send(Client, 1), Pass(29), Pass(29)],
        Side::Client,
        CloseReason::Eof,
    ),
    (&[Pass(29), Pass(29), Pass(29)], Side::Proxy, CloseReason::Idle),
    (&[Pass(29), Finish(Target), Pass(19)], Side::Target, CloseReason::Eof),
    // A side that finishes late leaves the other all of its time.
    (
        &[Pass(29), Pass(29), Finish(Client), Pass(19)],
        Side::Client,
        CloseReason::Eof,
    ),
    (
        &[Pass(29), Finish(Target), Pass(10), Send(Client, 1), Pass(19), Pass(1)],
        Side::Proxy,
        CloseReason::Idle,
    ),
];
/// More keystrokes than a target takes that reads nothing, one by one: over HTTP/2 each is a frame that has to wait.
const TYPED_AHEAD: [Step; 82] = {
    let mut steps = [Pass(1); 82];
    steps[0] = Stall(Target);
    let mut step = 1;
    while step < 81 {
        steps[step] = Send(Client, 4_000);
        step += 2;
    }
    steps[81] = Resume(Target);
    steps
};
/// Milliseconds: what does not happen is waited for in vain.
const MAX_SHRINK: u32 = 60_000;
/// The number of schedules, each over every downstream and engine.
const USUAL: u32 = 200;

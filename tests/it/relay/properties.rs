//! Random courses of both sides: equal bytes, exact counts, and a reset that stays one.

use std::cell::Cell;
use std::future::pending;

use proptest::prelude::*;
use switchboard::tunnel::direction::Direction;
use switchboard::tunnel::outcome::{CloseReason, Side};

use super::{block_on, reset_by};
use crate::harness::loopback::{Part, Rig, SETUPS, Splices, Wires, play, play_and_reset};
use crate::harness::seccomp::{Call, ERRORS, refusing};

fn part() -> impl Strategy<Value = Part> {
    let bytes = prop_oneof![Just(0), 1_usize..100, 100_usize..100_000, 100_000_usize..3_000_000];
    let piece = || prop_oneof![1_usize..20, 20_usize..5_000, 5_000_usize..300_000];
    let pieces = move || proptest::collection::vec(piece(), 1..6);
    (bytes, any::<u8>(), pieces(), pieces()).prop_map(|(bytes, seed, writes, reads)| Part {
        // Tiny pieces only for small streams: a case is to take milliseconds.
        bytes: bytes.min(2_000 * writes.iter().chain(&reads).min().unwrap()),
        seed,
        writes,
        reads,
        finishes_last: false,
    })
}

fn room() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![3 => Just(None), 1 => (32_768_u32..262_144).prop_map(Some)]
}

/// The actions of both sides of a tunnel that closes gracefully.
#[derive(Clone, Debug)]
struct Course {
    early: Vec<u8>,
    client: Part,
    target: Part,
    /// The receive buffer of both.
    room: Option<u32>,
}

fn course() -> impl Strategy<Value = Course> {
    let early = proptest::collection::vec(any::<u8>(), 0..20_000);
    (early, part(), part(), 0..3, room()).prop_map(|(early, client, target, last, room)| Course {
        early,
        client: Part {
            finishes_last: last == 1,
            ..client
        },
        target: Part {
            finishes_last: last == 2,
            ..target
        },
        room,
    })
}

/// Relays both streams, to the byte.
fn follows(course: &Course, rig: &Rig) -> Result<(), TestCaseError> {
    let (close, (at_client, at_target)) = block_on(async {
        let wires = Wires::with(course.early.clone(), course.room).await;
        rig.carry(wires, pending(), async |mut client, mut target| {
            let (in_client, in_target) = (Cell::new(0), Cell::new(0));
            tokio::join!(
                play(&mut client, &course.client, &in_client),
                play(&mut target, &course.target, &in_target),
            )
        })
        .await
    });
    let upload = [course.early.as_slice(), &course.client.stream()].concat();
    prop_assert!(at_target.received == upload, "{rig:?} upload");
    prop_assert!(at_client.received == course.target.stream(), "{rig:?} download");
    prop_assert!(at_target.end.is_ok() && at_client.end.is_ok());
    prop_assert_eq!(rig.totals.bytes(Direction::Upload), upload.len() as u64);
    prop_assert_eq!(rig.meter.bytes(Direction::Upload), upload.len() as u64);
    prop_assert_eq!(rig.meter.bytes(Direction::Download), course.target.bytes as u64);
    prop_assert_eq!(rig.resources.pipes_in_use(), 0);
    prop_assert_eq!(close.reason, CloseReason::Eof);
    match (course.client.finishes_last, course.target.finishes_last) {
        (true, _) => prop_assert_eq!(close.by, Side::Target),
        (_, true) => prop_assert_eq!(close.by, Side::Client),
        _ => prop_assert_ne!(close.by, Side::Proxy),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn both_streams_arrive_whole_and_are_counted_to_the_byte(
        course in course(),
    ) {
        for setup in SETUPS {
            follows(&course, &Rig::new(setup))?;
        }
    }

    #[test]
    fn both_streams_arrive_whole_where_the_system_refuses_to_splice(
        course in course(),
        below in 1_u32..=1 << 20,
        error in proptest::sample::select(ERRORS.to_vec()),
    ) {
        for call in [Call::Splice, Call::SpliceBelow(below), Call::SpliceBelow(1 << 20), Call::Pipe2] {
            for splices in [Splices::All, Splices::Bulk] {
                let rig = Rig::new((splices, 4));
                refusing(call, error, || follows(&course, &rig))?;
                // By the first byte, or by the end of the stream.
                if splices == Splices::All && matches!(call, Call::Splice | Call::Pipe2) {
                    prop_assert!(!rig.resources.splices());
                }
            }
        }
    }

    #[test]
    fn a_reset_at_any_moment_is_passed_on_as_a_reset(
        parts in (part(), part()),
        by_client in any::<bool>(),
        moment in 0.0..1.0_f64,
        room in room(),
    ) {
        let (breaking, other) = parts;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a length")]
        let moment = (breaking.bytes as f64 * moment) as usize;
        let side = if by_client { Side::Client } else { Side::Target };
        for setup in SETUPS {
            let rig = Rig::new(setup);
            let (close, (sent, seen)) = block_on(async {
                let wires = Wires::with(Vec::new(), room).await;
                rig.carry(wires, pending(), async |client, target| {
                    let (breaks, mut stays) = if by_client { (client, target) } else { (target, client) };
                    let moved = Cell::new(0);
                    tokio::join!(play_and_reset(breaks, &breaking, moment), play(&mut stays, &other, &moved))
                }).await
            });
            prop_assert_eq!(close, reset_by(side), "{:?}", setup);
            prop_assert!(seen.reset(), "{:?}: {:?} {:?}", setup, seen.sent, seen.end);
            let received = &seen.received;
            prop_assert!(sent[..received.len()] == received[..], "{setup:?} sent something else");
            let direction = if by_client { Direction::Upload } else { Direction::Download };
            let counted = rig.meter.bytes(direction);
            prop_assert!((received.len() as u64..=sent.len() as u64).contains(&counted), "{setup:?} {counted}");
            prop_assert_eq!(rig.resources.pipes_in_use(), 0);
        }
    }
}

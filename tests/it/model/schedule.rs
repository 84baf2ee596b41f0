//! The actions of both sides of one tunnel, in order: random, and shrunk when they fail.

use proptest::prelude::*;
use switchboard::tunnel::outcome::Side;

/// One of the two sides of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Target,
}

impl Role {
    pub(crate) const BOTH: [Self; 2] = [Self::Client, Self::Target];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Target,
            Self::Target => Self::Client,
        }
    }

    pub(crate) fn side(self) -> Side {
        match self {
            Self::Client => Side::Client,
            Self::Target => Side::Target,
        }
    }

    /// Its index in an array of both.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Target => 1,
        }
    }
}

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// That side sends so many bytes.
    Send(Role, usize),
    /// It sends the end of stream.
    Finish(Role),
    /// It resets its connection.
    Reset(Role),
    /// It reads no more.
    Stall(Role),
    /// It reads again.
    Resume(Role),
    /// All that has to happen happens before the next step. Without it, steps race with the relay.
    Settle,
    /// So many seconds go by.
    Pass(u32),
}

/// One tunnel's life, up to the point where both sides finish.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    /// So many bytes of the client are read before the relay begins.
    pub(crate) early: usize,
    /// True if the sockets have small buffers, so that a stall soon reaches the other side.
    pub(crate) tight: bool,
    pub(crate) steps: Vec<Step>,
}

impl Schedule {
    /// Its steps, and those that end every tunnel.
    pub(crate) fn whole(&self) -> impl Iterator<Item = Step> {
        let ending = [
            Step::Resume(Role::Client),
            Step::Resume(Role::Target),
            Step::Settle,
            Step::Finish(Role::Client),
            Step::Settle,
            Step::Finish(Role::Target),
            Step::Settle,
        ];
        self.steps.iter().copied().chain(ending)
    }
}

/// Any schedule.
pub(crate) fn schedule() -> impl Strategy<Value = Schedule> {
    let early = prop_oneof![3 => Just(0), 1 => 1_usize..20_000];
    (early, any::<bool>(), proptest::collection::vec(step(), 0..24)).prop_map(|(early, tight, steps)| Schedule {
        early,
        tight,
        steps,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let who = || prop_oneof![Just(Role::Client), Just(Role::Target)];
    let bytes = prop_oneof![4 => 1_usize..100, 3 => 100_usize..10_000, 3 => 10_000_usize..500_000];
    prop_oneof![
        8 => (who(), bytes).prop_map(|(who, bytes)| Step::Send(who, bytes)),
        1 => who().prop_map(Step::Finish),
        1 => who().prop_map(Step::Reset),
        2 => who().prop_map(Step::Stall),
        2 => who().prop_map(Step::Resume),
        6 => Just(Step::Settle),
        2 => (1_u32..30).prop_map(Step::Pass),
    ]
}

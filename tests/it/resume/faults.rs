//! How connections fail, in an order of chance that a seed repeats.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// A fault of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Both sides are closed in order.
    Close,
    /// Both sides are reset.
    Reset,
    /// Nothing passes any more, and both sides stay open.
    Silence,
    /// Half-open: the client's side is reset, and the proxy's is silent.
    ResetOfClient,
    /// Half-open: the proxy's side is reset, and the client's is silent.
    ResetOfProxy,
    /// The client's process is stopped for a moment, and goes on.
    Stop,
}

/// Faults that are still to happen.
pub(crate) struct Faults {
    seed: u64,
    state: u64,
    next: VecDeque<Fault>,
}

impl Faults {
    /// None at all.
    pub(crate) fn none() -> Self {
        Self::shuffled(0, 1)
    }

    /// That one, on the first connection.
    pub(crate) fn one(fault: Fault) -> Self {
        let mut faults = Self::none();
        faults.next.push_back(fault);
        faults
    }

    /// So many, by the seed of the variable SEED or that of all properties. Those that take a client seconds to find out are one in
    /// sixteen.
    pub(crate) fn random(count: usize) -> Self {
        let mut seeds = ["SEED", "PROPTEST_RNG_SEED"]
            .into_iter()
            .filter_map(|name| std::env::var(name).ok());
        let seed: u64 = seeds.next().map_or(1, |text| text.parse().expect("a number"));
        Self::shuffled(count, seed | 1)
    }

    fn shuffled(count: usize, seed: u64) -> Self {
        let mut all: Vec<Fault> = (0..count)
            .map(|number| match number % 32 {
                0 => Fault::Silence,
                1 => Fault::ResetOfProxy,
                2 | 3 => Fault::ResetOfClient,
                4 | 5 => Fault::Stop,
                number if number % 2 == 0 => Fault::Reset,
                _ => Fault::Close,
            })
            .collect();
        let mut faults = Self {
            seed,
            state: seed,
            next: VecDeque::new(),
        };
        // Fisher and Yates.
        for left in (1..all.len()).rev() {
            all.swap(left, faults.below(left + 1));
        }
        faults.next = all.into();
        faults
    }

    /// Returns the next fault.
    pub(crate) fn next(&mut self) -> Option<Fault> {
        self.next.pop_front()
    }

    /// The bytes of a connection before its next fault: behind the handshake and the exchange, as a first connection that fails
    /// ends ssh, as without sessions.
    pub(crate) fn budget(&mut self) -> usize {
        12_000 + self.below(97) * 2_500
    }

    /// Within which time all of them are over, even on a busy machine: few cost more than a second.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(2) * u32::try_from(self.next.len()).unwrap()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_empty()
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    fn below(&mut self, bound: usize) -> usize {
        // xorshift64 (Marsaglia 2003).
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % bound
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (SEED={})", self.next, self.seed)
    }
}

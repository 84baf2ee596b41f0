//! One tunnel as it should be, in few words: what may have become of it so far, and what each side then sees.
//!
//! The order in which the relay notices things that happen at once is its own affair, so there is not one state but all
//! that are possible. What is seen rules states out; when none is left, the relay does what it must not.

use std::time::Duration;

use switchboard::tunnel::outcome::{Close, CloseReason, Side};

use super::schedule::{Role, Step};

/// The end of a stream at the side that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Eof,
    Reset,
}

/// The visible state of a tunnel. The pairs are the client's and the target's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Bytes that have come to this side.
    pub(crate) received: [usize; 2],
    /// The end of each stream.
    pub(crate) end: [Option<End>; 2],
    /// Bytes from this side that the meter has counted.
    pub(crate) counted: [u64; 2],
    /// The relay's result.
    pub(crate) close: Option<Close>,
}

/// All that may be true of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    sides: [Actions; 2],
    possible: Vec<State>,
}

/// The known actions of a side.
#[derive(Clone, Copy, Debug, Default)]
struct Actions {
    sent: usize,
    is_stalled: bool,
    /// It had received so much when it stalled.
    had: usize,
    has_reset: bool,
    has_finished: bool,
}

/// One thing that may be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    /// The state of each side's end of stream.
    finish: [Finish; 2],
    /// Whose reset is under way.
    reset: [bool; 2],
    /// The side that finished first.
    first: Option<Role>,
    /// Seconds since anything moved.
    quiet: u32,
    /// The end that each side has to see.
    sees: [Option<End>; 2],
    over: Option<Over>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    NotYet,
    Sent,
    PassedOn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Over {
    close: Close,
    /// So many bytes of each side have to arrive, whatever it was.
    owed: [usize; 2],
    /// A side is given time to leave.
    lingers: bool,
}

impl Reference {
    /// A tunnel that begins, with so many bytes of the client.
    pub(crate) fn new(early: usize) -> Self {
        let mut sides = [Actions::default(); 2];
        sides[Role::Client.index()].sent = early;
        let begun = State {
            finish: [Finish::NotYet; 2],
            reset: [false; 2],
            first: None,
            quiet: 0,
            sees: [None; 2],
            over: None,
        };
        Self {
            sides,
            possible: vec![begun],
        }
    }

    /// Returns whether that step can be done: a side that has finished or reset sends no more, and resets once.
    pub(crate) fn can(&self, step: Step) -> bool {
        match step {
            Step::Send(who, _) | Step::Finish(who) => {
                let Actions {
                    has_finished,
                    has_reset,
                    ..
                } = self.sides[who.index()];
                !has_finished && !has_reset
            }
            Step::Reset(who) => !self.sides[who.index()].has_reset,
            Step::Stall(who) => !self.sides[who.index()].is_stalled,
            Step::Resume(who) => self.sides[who.index()].is_stalled,
            Step::Settle | Step::Pass(_) => true,
        }
    }

    /// That step is done, and that was seen last.
    pub(crate) fn follow(&mut self, step: Step, seen: &Seen) {
        match step {
            Step::Send(who, bytes) => {
                self.sides[who.index()].sent += bytes;
                self.something_moves(self.is_blocked(who));
            }
            Step::Finish(who) => {
                self.sides[who.index()].has_finished = true;
                self.each_running(|state| state.finish[who.index()] = Finish::Sent);
            }
            Step::Reset(who) => {
                self.sides[who.index()].has_reset = true;
                self.each_running(|state| state.reset[who.index()] = true);
            }
            Step::Stall(who) => {
                self.sides[who.index()].is_stalled = true;
                self.sides[who.index()].had = seen.received[who.index()];
            }
            Step::Resume(who) => {
                if self.is_blocked(who.other()) {
                    self.something_moves(true);
                }
                self.sides[who.index()].is_stalled = false;
            }
            Step::Settle => {}
            Step::Pass(seconds) => self.pass(seconds),
        }
        self.spread();
    }

    /// Returns whether `seen` is what is to be seen once nothing is under way. If so, it forgets what that rules out.
    pub(crate) fn settled(&mut self, seen: &Seen) -> bool {
        let left: Vec<_> = self.quiescent().filter(|state| !state.is_ruled_out(seen)).collect();
        let agrees = left.iter().any(|state| self.agrees(state, seen));
        if agrees {
            // The others too: some of what belongs to them may be yet to come.
            self.possible = left;
        }
        agrees
    }

    /// Returns whether the tunnel must be over, and the relay waits for nothing but the clock.
    pub(crate) fn must_return(&self) -> bool {
        self.quiescent().all(|state| state.over.is_some())
    }

    /// Returns whether the proxy may have given the tunnel up, and waits by the clock for what is not flushed.
    pub(crate) fn may_flush(&self) -> bool {
        let mut given_up = self.possible.iter().filter_map(|state| state.over);
        given_up.any(|over| over.close.by == Side::Proxy)
    }

    /// Returns whether bytes of that side may have to wait, since the other reads nothing.
    fn is_blocked(&self, who: Role) -> bool {
        let other = self.sides[who.other().index()];
        other.is_stalled && self.sides[who.index()].sent.saturating_sub(other.had) > ALWAYS_ROOM
    }

    fn each_running(&mut self, mut change: impl FnMut(&mut State)) {
        for state in self.possible.iter_mut().filter(|state| state.over.is_none()) {
            change(state);
        }
    }

    /// `perhaps`: or it does not.
    fn something_moves(&mut self, perhaps: bool) {
        let still = if perhaps { self.possible.clone() } else { Vec::new() };
        self.each_running(|state| state.quiet = 0);
        self.add(still);
    }

    fn pass(&mut self, seconds: u32) {
        let is_exact = !Role::BOTH.into_iter().any(|who| self.is_blocked(who));
        let mut after = Vec::new();
        for state in &self.possible {
            let quiet = [state.quiet + seconds, seconds, 0];
            for quiet in quiet.into_iter().take(if is_exact { 1 } else { 3 }) {
                let state = State { quiet, ..*state };
                let timeout = if state.first.is_some() { HALF_CLOSED } else { IDLE };
                if state.over.is_none() && Duration::from_secs(quiet.into()) >= timeout {
                    after.extend(self.given_up(state));
                } else {
                    after.push(state);
                }
            }
        }
        self.possible.clear();
        self.add(after);
    }

    /// The proxy ends it. All that was sent has arrived, unless a side did not read. A side whose stream has not ended is
    /// reset, as what it has is not all.
    fn given_up(&self, mut state: State) -> Vec<State> {
        let mut owed = [0; 2];
        for who in Role::BOTH {
            if !self.is_blocked(who) {
                owed[who.index()] = self.sides[who.index()].sent;
            }
        }
        let sees = state.sees;
        state.over = Some(Over {
            close: Close {
                by: Side::Proxy,
                reason: CloseReason::Idle,
            },
            owed,
            lingers: true,
        });
        let mut states = vec![state];
        let told = |who: &Role| sees[who.index()].is_none() || self.is_blocked(who.other());
        for who in Role::BOTH.into_iter().filter(told) {
            // Behind bytes that are not read there may be no room for an end of stream, and no time.
            let ends: &[End] = match sees[who.index()] {
                Some(_) => &[End::Eof, End::Reset],
                None => &[End::Reset],
            };
            states = states
                .into_iter()
                .flat_map(|state| {
                    ends.iter().map(move |end| {
                        let mut state = state;
                        state.sees[who.index()] = Some(*end);
                        state
                    })
                })
                .collect();
        }
        states
    }

    /// Adds what follows from what is possible, in every order.
    fn spread(&mut self) {
        let mut from = 0;
        while let Some(&state) = self.possible.get(from) {
            let next = self.next(state).map(|(state, _)| state).collect();
            self.add(next);
            from += 1;
        }
    }

    fn add(&mut self, states: Vec<State>) {
        for state in states {
            if !self.possible.contains(&state) {
                self.possible.push(state);
            }
        }
    }

    /// In which nothing more has to happen.
    fn quiescent(&self) -> impl Iterator<Item = State> {
        self.possible
            .iter()
            .copied()
            .filter(|state| !self.next(*state).any(|(_, must)| must))
    }

    /// The states after the relay's next step, and whether it has to take it.
    fn next(&self, state: State) -> impl Iterator<Item = (State, bool)> {
        let mut next = Vec::new();
        for who in Role::BOTH.into_iter().filter(|_| state.over.is_none()) {
            if state.reset[who.index()] {
                next.push((self.broken(state, who), true));
            }
            if state.finish[who.index()] == Finish::Sent {
                // It is not visible before the other side reads.
                let must = !self.sides[who.other().index()].is_stalled;
                next.push((self.finished(state, who), must));
            }
        }
        next.into_iter()
    }

    /// The end of stream of `who` has been passed on, behind all bytes.
    fn finished(&self, mut state: State, who: Role) -> State {
        let first = *state.first.get_or_insert(who);
        state.finish[who.index()] = Finish::PassedOn;
        state.sees[who.other().index()] = Some(End::Eof);
        state.quiet = 0;
        if state.finish == [Finish::PassedOn; 2] {
            state.over = Some(Over {
                close: Close {
                    by: first.side(),
                    reason: CloseReason::Eof,
                },
                owed: self.sides.map(|side| side.sent),
                lingers: false,
            });
        }
        state
    }

    /// The reset of `who` has been noticed. It is passed on, unless `who` had finished before: that takes back nothing.
    fn broken(&self, mut state: State, who: Role) -> State {
        let had_finished = state.finish[who.index()] == Finish::PassedOn;
        let mut owed = [0; 2];
        if had_finished {
            owed[who.index()] = self.sides[who.index()].sent;
        } else {
            state.sees[who.other().index()] = Some(End::Reset);
        }
        state.over = Some(Over {
            close: Close {
                by: who.side(),
                reason: CloseReason::Reset,
            },
            owed,
            lingers: had_finished,
        });
        state
    }

    fn agrees(&self, state: &State, seen: &Seen) -> bool {
        let returned = match (state.over, seen.close) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(over), None) => over.lingers && !self.must_return(),
            (Some(over), Some(close)) => over.close == close,
        };
        returned && Role::BOTH.into_iter().all(|who| self.sees_its_part(who, state, seen))
    }

    /// Returns whether one side sees what it has to: one that has reset or reads nothing sees nothing.
    fn sees_its_part(&self, who: Role, state: &State, seen: &Seen) -> bool {
        let (this, other) = (self.sides[who.index()], self.sides[who.other().index()]);
        let owed = match state.over {
            None => other.sent,
            Some(over) => over.owed[who.other().index()],
        };
        // Also for a side that does not read: it is in the kernel's buffers, as far as those go.
        let counted = seen.counted[who.other().index()];
        if this.has_reset {
            return true;
        }
        if this.is_stalled {
            let has_room = self.is_blocked(who.other()).then_some(this.had + ALWAYS_ROOM);
            return counted >= has_room.map_or(owed, |room| owed.min(room)) as u64;
        }
        let is_counted = counted >= owed as u64;
        is_counted && seen.received[who.index()] >= owed && seen.end[who.index()] == state.sees[who.index()]
    }
}

impl State {
    /// Nothing that is to come can make it true.
    fn is_ruled_out(&self, seen: &Seen) -> bool {
        let returned = seen.close.is_some() && seen.close != self.over.map(|over| over.close);
        let ended = Role::BOTH.into_iter().any(|who| {
            let end = seen.end[who.index()];
            end.is_some() && end != self.sees[who.index()]
        });
        returned || ended
    }
}

/// The longest silence, half a second off what whole seconds can add up to.
pub(crate) const IDLE: Duration = Duration::from_millis(59_500);
/// The same once a side has finished.
pub(crate) const HALF_CLOSED: Duration = Duration::from_millis(19_500);
/// The buffers of the smallest sockets here hold so many bytes for a side that does not read.
const ALWAYS_ROOM: usize = 8 * 1024;

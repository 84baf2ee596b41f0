//! The restrictions that operators have put on users, clients and targets for some time: rates of their tunnels, and blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::time::Instant;

use crate::daemon::admin::api::{Query, Subject};
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::limits::Rate;

/// A restriction.
#[derive(Clone, Debug)]
pub struct Restriction {
    /// The tunnels and requests that it is for: those of a user, a client or a target.
    pub of: Query,
    /// Its effect.
    pub effect: Effect,
    /// When it ends.
    pub until: Instant,
}

/// The effect of a restriction.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The rates of each tunnel; a direction without a rate keeps its own.
    Limit(Both<Option<Rate>>),
    /// No new tunnels.
    Block {
        /// The operator's reason, which the client reads.
        reason: Box<str>,
        /// True if the open tunnels go on.
        keeps_tunnels: bool,
    },
}

impl Restriction {
    /// Returns whether it is a block.
    pub fn is_block(&self) -> bool {
        matches!(self.effect, Effect::Block { .. })
    }

    fn replaces(&self, other: &Self) -> bool {
        self.is_block() == other.is_block() && self.of == other.of
    }

    fn is_due(&self) -> bool {
        self.until <= Instant::now()
    }
}

/// The restrictions of a process.
#[derive(Debug, Default)]
pub struct Restrictions {
    all: RwLock<Vec<Arc<Restriction>>>,
    /// The number of them: almost always 0, so that a tunnel need not take the lock.
    count: AtomicUsize,
}

impl Restrictions {
    /// Adds a restriction, which replaces one of the same kind for the same tunnels. Returns `false` if there are enough.
    pub fn add(&self, restriction: Restriction) -> bool {
        self.change(|all| {
            all.retain(|other| !restriction.replaces(other));
            let has_room = all.len() < MAX_RESTRICTIONS;
            if has_room {
                all.push(Arc::new(restriction));
            }
            has_room
        })
    }

    /// Removes and returns the block, or else the limit, for those tunnels; `None` if there is none.
    pub fn remove(&self, is_block: bool, of: &Query) -> Option<Arc<Restriction>> {
        self.change(|all| {
            let at = all.iter().position(|one| one.is_block() == is_block && one.of == *of)?;
            Some(all.remove(at))
        })
    }

    /// Removes those whose time is over. Returns whether there were any.
    pub(super) fn expire(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.list().iter().any(|one| one.is_due()) && {
            self.change(|_| ());
            true
        }
    }

    /// Returns all of them, the oldest first.
    pub fn list(&self) -> Vec<Arc<Restriction>> {
        self.all.read().clone()
    }

    /// Returns the lowest rate for a tunnel; `None` if none is set.
    pub(super) fn rate(&self, of: &Subject<'_>, direction: Direction) -> Option<Rate> {
        self.find(of, |restriction| match &restriction.effect {
            Effect::Limit(rates) => rates[direction],
            Effect::Block { .. } => None,
        })
        .into_iter()
        .min()
    }

    /// Returns the reason why the new tunnels of that subject are refused; `None` if they are not.
    pub(crate) fn block(&self, of: &Subject<'_>) -> Option<Box<str>> {
        self.find(of, |restriction| match &restriction.effect {
            Effect::Block { reason, .. } => Some(reason.clone()),
            Effect::Limit(_) => None,
        })
        .pop()
    }

    /// Returns the reason why a tunnel ends that has begun during a block.
    pub(super) fn close_reason(&self, of: &Subject<'_>) -> Option<Box<str>> {
        self.find(of, |restriction| match &restriction.effect {
            Effect::Block { reason, keeps_tunnels } => (!keeps_tunnels).then(|| reason.clone()),
            Effect::Limit(_) => None,
        })
        .pop()
    }

    fn find<T>(&self, of: &Subject<'_>, effect: impl Fn(&Restriction) -> Option<T>) -> Vec<T> {
        let all = match self.count.load(Ordering::Acquire) {
            0 => Vec::new(),
            _ => self.list(),
        };
        let found = all.iter().filter(|one| !one.is_due() && one.of.selects(of));
        found.filter_map(|one| effect(one)).collect()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<Restriction>>) -> T) -> T {
        let mut all = self.all.write();
        all.retain(|one| !one.is_due());
        let result = change(&mut all);
        self.count.store(all.len(), Ordering::Release);
        result
    }
}

/// One beyond the maximum is refused, and the operator reads that.
pub const MAX_RESTRICTIONS: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(user: &str) -> Query {
        Query {
            user: Some(user.to_owned()),
            ..Query::default()
        }
    }

    fn subject(user: &str) -> Subject<'_> {
        Subject {
            client: [192, 0, 2, 1].into(),
            user,
            target: ["static", "one:22"],
            node: "",
        }
    }

    fn limit(of: Query, rate: u64, minutes: u64) -> Restriction {
        Restriction {
            of,
            effect: Effect::Limit(Both::from_fn(|_| Rate::per_second(rate))),
            until: Instant::now() + Duration::from_mins(minutes),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_lowest_rate_counts_until_its_time_is_over_and_one_more_than_the_maximum_is_refused() {
        let restrictions = Restrictions::default();
        let rate = |user| restrictions.rate(&subject(user), Direction::Upload).map(Rate::get);
        assert!(!restrictions.expire() && rate("alice").is_none());
        let target = Query {
            target: Some("static/one:22".to_owned()),
            ..Query::default()
        };
        assert!(restrictions.add(limit(of("alice"), 100, 5)) && restrictions.add(limit(target.clone(), 50, 10)));
        assert_eq!([rate("alice"), rate("bob")], [Some(50), Some(50)]);
        assert!(restrictions.remove(true, &of("alice")).is_none());
        assert!(restrictions.remove(false, &target).is_some());
        assert!(restrictions.add(limit(of("alice"), 70, 5)));
        assert_eq!(
            (restrictions.list().len(), rate("alice"), rate("bob")),
            (1, Some(70), None)
        );
        tokio::time::advance(Duration::from_mins(5)).await;
        assert_eq!(rate("alice"), None);
        assert!(restrictions.expire() && restrictions.list().is_empty() && !restrictions.expire());
        for number in 0..MAX_RESTRICTIONS {
            assert!(restrictions.add(limit(of(&number.to_string()), 1, 1)));
        }
        assert!(!restrictions.add(limit(of("more"), 1, 1)) && restrictions.add(limit(of("7"), 1, 1)));
        assert!(restrictions.block(&subject("7")).is_none());
    }
}

//! Holds a list back that has lost most of its objects: an API server that has lost its data must not end every tunnel.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::model::Key;

/// The guard of one source. Only removals that a list implies are held; events, and what a list adds, apply at once.
#[derive(Debug, Default)]
pub(crate) struct Shrink {
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    since: Instant,
    missing: HashSet<Key>,
    /// When a list missed just these for the first time.
    missed: Instant,
}

impl Shrink {
    /// What to remove after a list: all that it misses of `known`, or nothing yet.
    pub(crate) fn listed(&mut self, known: Vec<Key>, listed: &HashSet<&Key>, now: Instant) -> Vec<Key> {
        let before = known.len();
        let missing: HashSet<Key> = known.into_iter().filter(|key| !listed.contains(key)).collect();
        let is_suspicious = missing.len() > FEW && missing.len() * 2 > before;
        let held = self.held.take();
        let since = held.as_ref().map_or(now, |held| held.since);
        let missed = held
            .filter(|held| held.missing == missing)
            .map_or(now, |held| held.missed);
        let is_confirmed = now >= missed + CONFIRMING || now >= since + LONGEST_HOLD;
        if !is_suspicious || is_confirmed {
            return missing.into_iter().collect();
        }
        self.held = Some(Held { since, missing, missed });
        Vec::new()
    }

    /// An event has told of that object: nothing is in doubt about it any more.
    pub(crate) fn told(&mut self, key: &Key) {
        if let Some(held) = &mut self.held {
            held.missing.remove(key);
        }
    }

    /// When what is held has to be let go.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.held.as_ref().map(|held| held.since + LONGEST_HOLD)
    }

    /// What was held, if it was held long enough.
    pub(crate) fn release(&mut self, now: Instant) -> Vec<Key> {
        match self.held.take_if(|held| now >= held.since + LONGEST_HOLD) {
            Some(held) => held.missing.into_iter().collect(),
            None => Vec::new(),
        }
    }
}

/// So many may go at once without suspicion.
const FEW: usize = 10;
/// A list confirms another one only after so long: a server that comes up empty may be asked twice before its data is
/// back, and at once when it drops its watches.
const CONFIRMING: Duration = Duration::from_secs(15);
const LONGEST_HOLD: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(range: std::ops::Range<usize>) -> Vec<Key> {
        let key = |index| Key {
            namespace: "n".into(),
            name: format!("s{index}").into(),
        };
        range.map(key).collect()
    }

    fn listed(shrink: &mut Shrink, known: &[Key], list: &[Key], now: Instant) -> usize {
        shrink.listed(known.to_vec(), &list.iter().collect(), now).len()
    }

    #[test]
    fn a_list_that_lost_most_is_held_until_it_is_confirmed() {
        let (known, now) = (keys(0..30), Instant::now());
        let mut shrink = Shrink::default();
        assert_eq!(listed(&mut shrink, &known, &keys(0..16), now), 14);
        assert_eq!(
            listed(&mut shrink, &known, &keys(0..15), now),
            15,
            "half is not more than half"
        );
        assert_eq!(listed(&mut shrink, &keys(0..10), &[], now), 10, "ten are few");
        assert_eq!(listed(&mut shrink, &known, &[], now), 0);
        assert_eq!(shrink.until(), Some(now + LONGEST_HOLD));
        assert_eq!(
            listed(&mut shrink, &known, &keys(0..2), now),
            0,
            "another list confirms nothing"
        );
        assert_eq!(listed(&mut shrink, &known, &keys(0..2), now), 0, "nor does one at once");
        let now = now + CONFIRMING;
        assert_eq!(listed(&mut shrink, &known, &keys(0..2), now), 28);
        assert_eq!(shrink.until(), None);
        assert_eq!(listed(&mut shrink, &known, &[], now), 0);
        assert_eq!(listed(&mut shrink, &known, &known, now), 0, "it was a mistake");
        assert_eq!(shrink.until(), None);
    }

    #[test]
    fn what_is_held_is_let_go_after_five_minutes_but_for_what_has_shown_itself() {
        let (known, now) = (keys(0..30), Instant::now());
        let mut shrink = Shrink::default();
        assert_eq!(listed(&mut shrink, &known, &[], now), 0);
        shrink.told(&known[7]);
        assert_eq!(shrink.release(now + LONGEST_HOLD - Duration::from_secs(1)), []);
        let gone = shrink.release(now + LONGEST_HOLD);
        assert_eq!((gone.len(), gone.contains(&known[7])), (29, false));
        assert_eq!(shrink.until(), None);
    }
}

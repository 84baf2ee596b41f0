//! Delays the removals of a list that has lost most of its objects: otherwise an API server that has lost its data would
//! close the tunnels of every Service.
//!
//! Removals are held until a later list confirms them, or for 5 minutes. An empty list is never confirmed: a server that has
//! lost its data keeps returning one, and so does a server whose RBAC is restored before its objects. The slices and
//! Namespace of a held Service are held with it. A held pod keeps its tunnels, and loses its addresses. Deletions by a watch event and additions apply at once. A reload of the
//! configuration ends no hold, unless it changes the source itself.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::kubernetes::objects::model::Key;

/// The held removals of one source, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct MassRemovalHold {
    held: Option<HeldRemovals>,
    /// Missing slices and Namespaces of Services whose removal is held.
    of_services: HashSet<Key>,
}

/// Removals that are held.
#[derive(Clone, Debug)]
struct HeldRemovals {
    /// The time of the first list that missed most objects.
    held_since: Instant,
    /// The time of the first empty list; `None` without one.
    empty_since: Option<Instant>,
    /// The objects that the last list missed.
    missing: HashSet<Key>,
    /// The time of the first list that missed exactly these objects.
    missing_since: Instant,
}

impl MassRemovalHold {
    /// Takes a complete list, and returns the objects to remove: the `known` ones that it misses, or none while removals
    /// are held.
    pub(crate) fn check_list(&mut self, known: Vec<Key>, listed: &HashSet<Key>, now: Instant) -> Vec<Key> {
        let before = known.len();
        let missing: HashSet<Key> = known.into_iter().filter(|key| !listed.contains(key)).collect();
        let is_empty = listed.is_empty() && before > 0;
        let is_suspicious = is_empty || (missing.len() > FEW && missing.len() * 2 > before);
        let last = self.held.take();
        let held = HeldRemovals {
            held_since: last.as_ref().map_or(now, |last| last.held_since),
            empty_since: last
                .as_ref()
                .and_then(|last| last.empty_since)
                .or(is_empty.then_some(now)),
            missing_since: last
                .filter(|last| last.missing == missing)
                .map_or(now, |last| last.missing_since),
            missing,
        };
        let is_confirmed = !is_empty && now >= held.missing_since + CONFIRMED_AFTER;
        if !is_suspicious || is_confirmed || now >= held.deadline() {
            return held.missing.into_iter().collect();
        }
        self.held = Some(held);
        Vec::new()
    }

    /// Notes a watch event about an object, which is therefore not held any longer.
    pub(crate) fn confirm(&mut self, key: &Key) {
        self.of_services.remove(key);
        if let Some(held) = &mut self.held {
            held.missing.remove(key);
        }
    }

    /// Keeps missing objects of held Services until the next list. They count for nothing else.
    pub(crate) fn hold_with_services(&mut self, missing: Vec<Key>) {
        self.of_services = missing.into_iter().collect();
    }

    /// Returns whether the removal of this object is held.
    pub(crate) fn holds(&self, key: &Key) -> bool {
        self.held.as_ref().is_some_and(|held| held.missing.contains(key))
    }

    /// Returns the objects whose removal is held.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Key> {
        self.held.iter().flat_map(|held| &held.missing)
    }

    /// Returns whether removals are held.
    pub(crate) fn is_active(&self) -> bool {
        self.held.is_some() || !self.of_services.is_empty()
    }

    /// Returns when held removals apply without confirmation; `None` if there are none.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(HeldRemovals::deadline)
    }

    /// Returns the held objects to remove, if the deadline has passed.
    pub(crate) fn release(&mut self, now: Instant) -> Vec<Key> {
        match self.held.take_if(|held| now >= held.deadline()) {
            Some(held) => held.missing.into_iter().collect(),
            None => Vec::new(),
        }
    }
}

impl HeldRemovals {
    /// Returns when the removals apply without confirmation.
    fn deadline(&self) -> Instant {
        self.empty_since.unwrap_or(self.held_since) + MAX_HOLD
    }
}

/// The most objects that a list may lose without suspicion, unless it is empty.
const FEW: usize = 10;
/// The time after which a list confirms an earlier one. A server that starts without its data drops its watches, so two
/// lists in short order may both lack the data.
const CONFIRMED_AFTER: Duration = Duration::from_secs(15);
const MAX_HOLD: Duration = Duration::from_secs(300);

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

    /// Returns the number of removals after a list.
    fn removals(hold: &mut MassRemovalHold, known: &[Key], list: &[Key], now: Instant) -> usize {
        hold.check_list(known.to_vec(), &list.iter().cloned().collect(), now)
            .len()
    }

    #[test]
    fn a_list_that_lost_most_is_held_until_it_is_confirmed() {
        let (known, now) = (keys(0..30), Instant::now());
        let mut hold = MassRemovalHold::default();
        assert_eq!(removals(&mut hold, &known, &keys(0..16), now), 14);
        assert_eq!(
            removals(&mut hold, &known, &keys(0..15), now),
            15,
            "half is not more than half"
        );
        assert_eq!(removals(&mut hold, &keys(0..11), &keys(0..1), now), 10, "ten are few");
        assert_eq!(removals(&mut hold, &known, &keys(0..1), now), 0);
        assert_eq!(hold.deadline(), Some(now + MAX_HOLD));
        assert_eq!(
            removals(&mut hold, &known, &keys(0..2), now),
            0,
            "a different list confirms nothing"
        );
        assert_eq!(
            removals(&mut hold, &known, &keys(0..2), now),
            0,
            "the same list at once confirms nothing"
        );
        let now = now + CONFIRMED_AFTER;
        assert_eq!(removals(&mut hold, &known, &keys(0..2), now), 28);
        assert!(!hold.is_active());
        assert_eq!(removals(&mut hold, &known, &keys(0..2), now), 0);
        assert_eq!(removals(&mut hold, &known, &known, now), 0, "all objects are back");
        assert_eq!(hold.deadline(), None);
    }

    #[test]
    fn objects_of_held_services_delay_no_confirmation() {
        let (known, now) = (keys(0..30), Instant::now());
        let mut hold = MassRemovalHold::default();
        assert_eq!(removals(&mut hold, &known, &keys(0..2), now), 0);
        hold.hold_with_services(keys(40..50));
        let later = now + CONFIRMED_AFTER;
        assert_eq!(removals(&mut hold, &known, &keys(0..2), later), 28);
        hold.hold_with_services(keys(40..50));
        assert!(hold.is_active());
        assert_eq!((hold.deadline(), hold.release(now + 2 * MAX_HOLD)), (None, Vec::new()));
        hold.hold_with_services(Vec::new());
        assert!(!hold.is_active());
    }

    #[test]
    fn held_objects_are_released_after_five_minutes_but_for_those_observed() {
        let (known, now) = (keys(0..30), Instant::now());
        let mut hold = MassRemovalHold::default();
        assert_eq!(removals(&mut hold, &known, &[], now), 0);
        hold.confirm(&known[7]);
        assert_eq!(hold.release(now + MAX_HOLD - Duration::from_secs(1)), []);
        let released = hold.release(now + MAX_HOLD);
        assert_eq!((released.len(), released.contains(&known[7])), (29, false));
        assert!(!hold.is_active());
    }

    #[test]
    fn a_list_without_any_object_is_held_for_five_minutes_however_often_it_is_repeated() {
        for (known, first) in [(keys(0..30), 0), (keys(0..1), 0), (keys(0..30), 2)] {
            let now = Instant::now();
            let mut hold = MassRemovalHold::default();
            let earlier = now - Duration::from_secs(10);
            assert_eq!(removals(&mut hold, &known, &known[..first], earlier), 0);
            let since = if first == 0 { earlier } else { now };
            for seconds in [0, 15, 60, 299] {
                let now = since + Duration::from_secs(seconds);
                assert_eq!(removals(&mut hold, &known, &[], now), 0, "after {seconds} s");
            }
            assert_eq!(hold.deadline(), Some(since + MAX_HOLD));
            assert_eq!(removals(&mut hold, &known, &[], since + MAX_HOLD), known.len());
            assert!(!hold.is_active());
        }
        let mut hold = MassRemovalHold::default();
        assert_eq!(removals(&mut hold, &[], &[], Instant::now()), 0);
        assert!(!hold.is_active(), "events have deleted all objects before");
    }
}

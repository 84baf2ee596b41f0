//! A counted resource: a limited number of slots, each free again when the value that represents it is dropped.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A number of slots, of which some are taken. The number may change at any time.
#[derive(Debug)]
pub struct Slots {
    taken: AtomicU32,
    max: AtomicU32,
}

impl Slots {
    /// Creates free slots. `None` is any number of them.
    pub fn new(max: Option<NonZeroU32>) -> Self {
        Self::exactly(number(max))
    }

    /// Creates `max` free slots; 0 is none at all.
    pub(crate) fn exactly(max: u32) -> Self {
        Self {
            taken: AtomicU32::new(0),
            max: AtomicU32::new(max),
        }
    }

    /// Changes the number of slots. Taken slots beyond a lower number stay valid.
    pub fn set(&self, max: Option<NonZeroU32>) {
        self.max.store(number(max), Ordering::Relaxed);
    }

    /// Returns the number of slots.
    pub(crate) fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns the number of slots that are taken.
    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes a slot; `None` if no slot is free.
    pub fn take(self: &Arc<Self>) -> Option<Slot> {
        let max = self.max();
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < max).then(|| taken + 1)
            })
            .ok()
            .map(|_| Slot {
                slots: Arc::clone(self),
            })
    }
}

/// One taken slot, which is free again when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it frees the slot"]
pub struct Slot {
    slots: Arc<Slots>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

fn number(max: Option<NonZeroU32>) -> u32 {
    max.map_or(u32::MAX, NonZeroU32::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_slots_are_taken_than_there_are() {
        let slots = Arc::new(Slots::new(NonZeroU32::new(2)));
        let first = slots.take().unwrap();
        let _second = slots.take().unwrap();
        assert!(slots.take().is_none());
        drop(first);
        let third = slots.take().unwrap();
        assert!(slots.take().is_none());
        slots.set(NonZeroU32::new(1));
        drop(third);
        assert!(slots.take().is_none());
        slots.set(None);
        let _more: Vec<_> = (0..10).map(|_| slots.take().unwrap()).collect();
    }

    #[test]
    fn threads_that_race_take_exactly_as_many_slots_as_there_are() {
        let slots = Arc::new(Slots::new(NonZeroU32::new(100)));
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..1000).filter_map(|_| slots.take()).collect::<Vec<_>>()))
                .collect();
            let held: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            held.iter().map(Vec::len).sum()
        });
        assert_eq!(taken, 100);
        assert_eq!(slots.taken(), 0);
    }
}

//! Counts who may be somewhere at once: so many slots, each free again when it is dropped.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// So many slots, of which some are taken. How many there are may change while they are.
#[derive(Debug)]
pub struct Slots {
    taken: AtomicU32,
    most: AtomicU32,
}

impl Slots {
    /// So many free slots; `None` for any number.
    pub fn new(most: Option<NonZeroU32>) -> Self {
        Self {
            taken: AtomicU32::new(0),
            most: AtomicU32::new(number(most)),
        }
    }

    /// Changes how many there are. Those that are taken stay so: with fewer slots nobody is thrown out.
    pub fn set(&self, most: Option<NonZeroU32>) {
        self.most.store(number(most), Ordering::Relaxed);
    }

    /// How many are taken.
    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes a slot, if one is free.
    pub fn enter(self: &Arc<Self>) -> Option<Slot> {
        let most = self.most.load(Ordering::Relaxed);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < most).then(|| taken + 1)
            })
            .ok()
            .map(|_| Slot { of: Arc::clone(self) })
    }
}

/// A slot, free again when it is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the slot away"]
pub struct Slot {
    of: Arc<Slots>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.of.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

fn number(most: Option<NonZeroU32>) -> u32 {
    most.map_or(u32::MAX, NonZeroU32::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_enter_than_there_are_slots() {
        let slots = Arc::new(Slots::new(NonZeroU32::new(2)));
        let first = slots.enter().unwrap();
        let _second = slots.enter().unwrap();
        assert!(slots.enter().is_none());
        drop(first);
        let third = slots.enter().unwrap();
        assert!(slots.enter().is_none());
        slots.set(NonZeroU32::new(1));
        drop(third);
        assert!(slots.enter().is_none());
        slots.set(None);
        let _more: Vec<_> = (0..10).map(|_| slots.enter().unwrap()).collect();
    }

    #[test]
    fn of_many_at_once_exactly_so_many_enter() {
        let slots = Arc::new(Slots::new(NonZeroU32::new(100)));
        let entered: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..1000).filter_map(|_| slots.enter()).collect::<Vec<_>>()))
                .collect();
            let held: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            held.iter().map(Vec::len).sum()
        });
        assert_eq!(entered, 100);
        assert_eq!(slots.taken.load(Ordering::Relaxed), 0);
    }
}

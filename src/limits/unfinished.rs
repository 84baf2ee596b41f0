//! Bounds those who have not said what they want: when one too many comes, whoever has waited longest has to go.
//!
//! Not the one who comes: a few hundred connections that trickle their bytes would keep everybody else out. A client in
//! earnest is through after a round trip, so who has waited longest is who means to wait.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// Those who wait in one place.
#[derive(Debug)]
pub struct Unfinished {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    most: Option<NonZeroU32>,
    next: u64,
    /// By their arrival. What they are told by is theirs in every crowd.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

impl Unfinished {
    /// Nobody, and at most so many; `None` for any number.
    pub fn new(most: Option<NonZeroU32>) -> Self {
        let state = State {
            most,
            next: 0,
            waiting: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Changes how many there may be, and sends those away who are too many now.
    pub fn set(&self, most: Option<NonZeroU32>) {
        let mut state = self.lock();
        state.most = most;
        state.send_away();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn enter(&self, told: Arc<Notify>) -> u64 {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, told);
        state.send_away();
        number
    }

    fn leave(&self, number: u64) {
        self.lock().waiting.remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn send_away(&mut self) {
        let Some(most) = self.most else { return };
        while self.waiting.len() > usize::try_from(most.get()).unwrap_or(usize::MAX) {
            let Some((_, oldest)) = self.waiting.pop_first() else {
                return;
            };
            oldest.notify_one();
        }
    }
}

/// One who waits, in several crowds at once; no longer when it is dropped.
#[derive(Debug)]
#[must_use = "dropping it leaves the crowds"]
pub struct Waiting<'a, const N: usize> {
    crowds: [&'a Unfinished; N],
    numbers: [u64; N],
    told: Arc<Notify>,
}

impl<'a, const N: usize> Waiting<'a, N> {
    /// Joins all of them. Somebody may have to go.
    pub fn among(crowds: [&'a Unfinished; N]) -> Self {
        let told = Arc::new(Notify::new());
        Self {
            numbers: crowds.map(|crowd| crowd.enter(Arc::clone(&told))),
            crowds,
            told,
        }
    }

    /// Completes when this one has to go, which it is told once.
    pub async fn sent_away(&self) {
        self.told.notified().await;
    }
}

impl<const N: usize> Drop for Waiting<'_, N> {
    fn drop(&mut self) {
        for (crowd, number) in self.crowds.iter().zip(self.numbers) {
            crowd.leave(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn is_sent_away<const N: usize>(waiting: &Waiting<'_, N>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(waiting.sent_away()).poll(&mut context).is_ready()
    }

    #[test]
    fn who_has_waited_longest_goes() {
        let crowd = Unfinished::new(NonZeroU32::new(2));
        let first = Waiting::among([&crowd]);
        let second = Waiting::among([&crowd]);
        assert!(!is_sent_away(&first));
        let third = Waiting::among([&crowd]);
        assert!(is_sent_away(&first));
        assert_eq!(crowd.len(), 2);
        drop(first);
        drop(second);
        let _fourth = Waiting::among([&crowd]);
        assert!(!is_sent_away(&third));
        crowd.set(NonZeroU32::new(1));
        assert!(is_sent_away(&third));
        crowd.set(None);
        let _more: Vec<_> = (0..10).map(|_| Waiting::among([&crowd])).collect();
        assert_eq!(crowd.len(), 11);
    }

    #[test]
    fn who_is_sent_away_from_one_crowd_leaves_the_others_when_it_goes() {
        let (own, all) = (Unfinished::new(NonZeroU32::new(1)), Unfinished::new(NonZeroU32::new(9)));
        let first = Waiting::among([&own, &all]);
        let second = Waiting::among([&own, &all]);
        assert!(is_sent_away(&first) && !is_sent_away(&second));
        assert_eq!((own.len(), all.len()), (1, 2));
        drop(first);
        drop(second);
        assert!(own.is_empty() && all.is_empty());
    }
}

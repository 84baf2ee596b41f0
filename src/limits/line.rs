//! Slots with a line before them: first come, first served, for as long as the line moves.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::slots::{Slot, Slots};

/// The slots of work that one peer answers, such as the dials of a target.
///
/// A peer that answers serves a thousand clients in a moment, so they may wait. A dead one would keep all of them, with
/// the connections that they hold, until they time out: when nothing has [succeeded](Permit::succeeded) for the time that
/// one try may take, the line is closed. A peer without any work has a new chance.
#[derive(Debug)]
pub(crate) struct Line {
    slots: Arc<Slots>,
    waiting: Arc<Slots>,
    /// Notified for each slot that is freed. It wakes those that wait in the order in which they came.
    freed: Notify,
    /// The last success, or the moment when the first slot of an idle peer was taken.
    moved: Mutex<Instant>,
}

/// The bounds on a wait in the line.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The whole wait.
    pub longest: Duration,
    /// The time in which something must succeed, or the line is closed.
    pub without_success: Duration,
}

/// One slot behind the line, free again when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it frees the slot"]
pub struct Permit {
    slot: Option<Slot>,
    line: Arc<Line>,
}

impl Line {
    /// A line before `most` slots; `None` is any number of them.
    pub(crate) fn new(most: Option<NonZeroU32>) -> Self {
        Self {
            slots: Arc::new(Slots::new(most)),
            waiting: Arc::new(Slots::new(MOST_WAITING)),
            freed: Notify::new(),
            moved: Mutex::new(Instant::now()),
        }
    }

    /// Changes the number of slots. Permits that are out stay valid, even if they are more.
    pub(crate) fn set(&self, most: Option<NonZeroU32>) {
        self.slots.set(most);
        self.freed.notify_waiters();
    }

    /// Takes a slot, at once or after those that came before. `None` if the line is full or closed, or the time over.
    pub(crate) async fn enter(self: &Arc<Self>, patience: Patience) -> Option<Permit> {
        if self.waiting.taken() == 0
            && let Some(permit) = self.take()
        {
            return Some(permit);
        }
        let _place = self.waiting.take()?;
        let end = Instant::now() + patience.longest;
        loop {
            let mut freed = pin!(self.freed.notified());
            // Enabled before the look, so that no slot that is freed behind it is missed.
            freed.as_mut().enable();
            if let Some(permit) = self.take() {
                return Some(permit);
            }
            loop {
                let until = end.min(*self.moved.lock() + patience.without_success);
                if until <= Instant::now() {
                    return None;
                }
                tokio::select! {
                    () = freed.as_mut() => break,
                    () = sleep_until(until) => {}
                }
            }
        }
    }

    fn take(self: &Arc<Self>) -> Option<Permit> {
        let was_idle = self.slots.taken() == 0;
        let slot = self.slots.take()?;
        if was_idle {
            *self.moved.lock() = Instant::now();
        }
        Some(Permit {
            slot: Some(slot),
            line: Arc::clone(self),
        })
    }
}

impl Permit {
    /// The work has succeeded: the line moves.
    pub fn succeeded(&self) {
        *self.line.moved.lock() = Instant::now();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Before the notice, so that what it wakes finds the slot free.
        self.slot = None;
        self.line.freed.notify_one();
    }
}

/// The length of the line. Each place holds a connection and a tunnel slot.
const MOST_WAITING: Option<NonZeroU32> = NonZeroU32::new(1024);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{advance, timeout};

    const SUCCESS: Duration = Duration::from_secs(1);
    const LONG: Patience = Patience {
        longest: Duration::from_secs(10),
        without_success: SUCCESS,
    };

    fn line(most: u32) -> Arc<Line> {
        Arc::new(Line::new(NonZeroU32::new(most)))
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_given_in_the_order_in_which_they_were_asked_for() {
        let line = line(1);
        let first = line.enter(LONG).await.unwrap();
        let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..100 {
            let (line, sender) = (Arc::clone(&line), sender.clone());
            tokio::spawn(async move {
                let permit = line.enter(LONG).await.unwrap();
                sender.send(number).unwrap();
                permit.succeeded();
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        for number in 0..100 {
            assert_eq!(served.recv().await, Some(number));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_goes_on_while_something_succeeds() {
        let line = line(2);
        let (working, _busy) = (line.enter(LONG).await.unwrap(), line.enter(LONG).await.unwrap());
        let mut waiting = pin!(line.enter(LONG));
        for _ in 0..5 {
            assert!(timeout(SUCCESS / 2, waiting.as_mut()).await.is_err());
            working.succeeded();
        }
        drop(working);
        assert!(waiting.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_answers_nothing_has_no_line() {
        let line = line(1);
        let held = line.enter(LONG).await.unwrap();
        let start = Instant::now();
        assert!(line.enter(LONG).await.is_none());
        assert_eq!(start.elapsed(), SUCCESS);
        // The next one is refused at once.
        assert!(line.enter(LONG).await.is_none());
        assert_eq!(start.elapsed(), SUCCESS);
        // Without any work it may prove itself again.
        drop(held);
        let _held = line.enter(LONG).await.unwrap();
        assert!(timeout(SUCCESS / 2, line.enter(LONG)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_and_the_wait_are_bounded() {
        let line = line(1);
        let held = line.enter(LONG).await.unwrap();
        let short = Patience {
            longest: SUCCESS / 4,
            ..LONG
        };
        let mut all: Vec<_> = (0..1024).map(|_| Box::pin(line.enter(short))).collect();
        for waiting in &mut all {
            assert!(timeout(Duration::ZERO, waiting.as_mut()).await.is_err());
        }
        assert!(line.enter(LONG).await.is_none());
        advance(SUCCESS / 2).await;
        for waiting in all {
            assert!(waiting.await.is_none());
        }
        assert_eq!(line.waiting.taken(), 0);
        line.set(NonZeroU32::new(2));
        assert!(line.enter(LONG).await.is_some());
        drop(held);
    }
}

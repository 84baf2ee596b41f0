//! Slots with a queue before them: first come, first served, for as long as requests succeed.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::slots::{Slot, Slots};

/// The slots for the dials of one target.
///
/// A target that answers serves a thousand clients quickly, so they may wait. A dead target would keep all of them,
/// with the connections that they hold, until they time out. So once nothing has [succeeded](Permit::succeeded) for
/// [`QueueTimeouts::stalled`], requests without a slot fail at once, until a dial succeeds or all slots are free.
#[derive(Debug)]
pub(crate) struct DialQueue {
    slots: Arc<Slots>,
    waiting: Arc<Slots>,
    /// Notified once for each slot that is freed; it wakes the request that has waited longest.
    freed: Notify,
    /// The last success, or the moment at which the first slot was taken while all were free.
    progress: Mutex<Instant>,
}

/// The bounds on a wait in the queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueTimeouts {
    /// The longest wait.
    pub total: Duration,
    /// The longest time without any success, after which no request waits.
    pub stalled: Duration,
}

/// One slot, free again when this is dropped.
#[derive(Debug)]
#[must_use = "dropping it frees the slot"]
pub struct Permit {
    slot: Option<Slot>,
    queue: Arc<DialQueue>,
}

impl DialQueue {
    /// Creates a queue before `max` slots; `None` is any number of them.
    pub(crate) fn new(max: Option<NonZeroU32>) -> Self {
        Self {
            slots: Arc::new(Slots::new(max)),
            waiting: Arc::new(Slots::new(MAX_WAITING)),
            freed: Notify::new(),
            progress: Mutex::new(Instant::now()),
        }
    }

    /// Changes the number of slots. Permits beyond a lower number stay valid.
    pub(crate) fn set(&self, max: Option<NonZeroU32>) {
        self.slots.set(max);
        self.freed.notify_waiters();
        // A request that leaves does not pass the other notification on.
        self.freed.notify_one();
    }

    /// Takes a slot, at once or after earlier requests. `None` if the queue is full, or `timeouts` run out.
    pub(crate) async fn acquire(self: &Arc<Self>, timeouts: QueueTimeouts) -> Option<Permit> {
        if self.waiting.taken() == 0
            && let Some(permit) = self.take()
        {
            return Some(permit);
        }
        let _waiting = self.waiting.take()?;
        let mut is_next = self.waiting.taken() == 1;
        let end = Instant::now() + timeouts.total;
        loop {
            let mut freed = pin!(self.freed.notified());
            // Enabled before `take`, so that a slot that is freed after it is not missed.
            // A slot that was freed while no request was enabled is for the first one.
            is_next |= freed.as_mut().enable();
            if is_next && let Some(permit) = self.take() {
                if self.slots.taken() < self.slots.max() {
                    // Slots that are freed in short order may have woken one request only.
                    self.freed.notify_one();
                }
                return Some(permit);
            }
            is_next = true;
            loop {
                let until = end.min(*self.progress.lock() + timeouts.stalled);
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
            *self.progress.lock() = Instant::now();
        }
        Some(Permit {
            slot: Some(slot),
            queue: Arc::clone(self),
        })
    }
}

impl Permit {
    /// Notes that the work has succeeded, which lets further requests wait.
    pub fn succeeded(&self) {
        *self.queue.progress.lock() = Instant::now();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Before the notification: the request that it wakes must find the slot free.
        self.slot = None;
        self.queue.freed.notify_one();
    }
}

/// The length of the queue. Each request in it holds a connection and its tunnel slots.
const MAX_WAITING: Option<NonZeroU32> = NonZeroU32::new(1024);

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Future as _, poll_fn};
    use std::task::{Context, Poll};
    use tokio::time::{advance, timeout};

    const SUCCESS: Duration = Duration::from_secs(1);
    const LONG: QueueTimeouts = QueueTimeouts {
        total: Duration::from_secs(10),
        stalled: SUCCESS,
    };

    fn queue(max: u32) -> Arc<DialQueue> {
        Arc::new(DialQueue::new(NonZeroU32::new(max)))
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_given_in_the_order_in_which_they_were_asked_for() {
        let queue = queue(1);
        let first = queue.acquire(LONG).await.unwrap();
        let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..100 {
            let (queue, sender) = (Arc::clone(&queue), sender.clone());
            tokio::spawn(async move {
                let permit = queue.acquire(LONG).await.unwrap();
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
    async fn a_newcomer_does_not_overtake_a_request_that_has_been_woken() {
        let queue = queue(1);
        let held = queue.acquire(LONG).await.unwrap();
        let first = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.acquire(LONG).await }
        });
        tokio::task::yield_now().await;
        drop(held);
        let mut newcomer = pin!(queue.acquire(LONG));
        let is_pending = |context: &mut Context<'_>| Poll::Ready(newcomer.as_mut().poll(context).is_pending());
        assert!(poll_fn(is_pending).await);
        let first = first.await.unwrap().unwrap();
        drop(first);
        assert!(newcomer.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn slots_that_are_freed_together_serve_all_that_wait() {
        let queue = queue(3);
        let held = [(); 3].map(|()| queue.slots.take().unwrap());
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(queue.acquire(LONG))).collect();
        for request in &mut waiting {
            assert!(timeout(Duration::ZERO, request.as_mut()).await.is_err());
        }
        drop(held);
        queue.freed.notify_one();
        let mut permits = Vec::new();
        for request in waiting {
            permits.push(request.await.unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_while_others_succeed() {
        let queue = queue(2);
        let (working, _busy) = (queue.acquire(LONG).await.unwrap(), queue.acquire(LONG).await.unwrap());
        let mut waiting = pin!(queue.acquire(LONG));
        for _ in 0..5 {
            assert!(timeout(SUCCESS / 2, waiting.as_mut()).await.is_err());
            working.succeeded();
        }
        drop(working);
        assert!(waiting.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn without_success_nothing_waits() {
        let queue = queue(1);
        let held = queue.acquire(LONG).await.unwrap();
        let start = Instant::now();
        assert!(queue.acquire(LONG).await.is_none());
        assert_eq!(start.elapsed(), SUCCESS);
        // The next one is refused at once.
        assert!(queue.acquire(LONG).await.is_none());
        assert_eq!(start.elapsed(), SUCCESS);
        // With all slots free the clock begins again.
        drop(held);
        let _held = queue.acquire(LONG).await.unwrap();
        assert!(timeout(SUCCESS / 2, queue.acquire(LONG)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_and_the_wait_are_bounded() {
        let queue = queue(1);
        let held = queue.acquire(LONG).await.unwrap();
        let short = QueueTimeouts {
            total: SUCCESS / 4,
            ..LONG
        };
        let mut all: Vec<_> = (0..1024).map(|_| Box::pin(queue.acquire(short))).collect();
        for waiting in &mut all {
            assert!(timeout(Duration::ZERO, waiting.as_mut()).await.is_err());
        }
        assert!(queue.acquire(LONG).await.is_none());
        advance(SUCCESS / 2).await;
        for waiting in all {
            assert!(waiting.await.is_none());
        }
        assert_eq!(queue.waiting.taken(), 0);
        queue.set(NonZeroU32::new(2));
        assert!(queue.acquire(LONG).await.is_some());
        drop(held);
    }
}

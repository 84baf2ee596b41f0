//! A waker of a task for itself: a wake from within the task polls it again at once, without tokio's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::task::coop::has_budget_remaining;

/// The local waker of one task.
///
/// A connection wakes its streams when it has sent, and they wake it when they have bytes to send, all within one task.
/// With the task's own waker, each wake would queue the task in tokio, which would wake an idle worker thread with cold
/// caches to steal it.
#[derive(Debug)]
pub(super) struct LocalWaker {
    state: Arc<State>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct State {
    /// True if the task is being polled: a wake now need not reach tokio.
    polling: AtomicBool,
    woken: AtomicBool,
    task: AtomicWaker,
}

impl LocalWaker {
    pub(super) fn new() -> Self {
        let state = Arc::<State>::default();
        Self {
            waker: Waker::from(Arc::clone(&state)),
            state,
        }
    }

    /// Polls `once`, and again after each poll that wakes the task, until it is ready or [`MAX_ROUNDS`] or the task's
    /// budget are used up.
    pub(super) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut once: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Self { state, waker } = self;
        state.task.register(context.waker());
        state.polling.store(true, Ordering::SeqCst);
        let mut polled = Poll::Pending;
        for _ in 0..MAX_ROUNDS {
            state.woken.store(false, Ordering::SeqCst);
            polled = once(&mut Context::from_waker(waker));
            if polled.is_ready() || !state.woken.load(Ordering::SeqCst) || !has_budget_remaining() {
                break;
            }
        }
        state.polling.store(false, Ordering::SeqCst);
        // Another thread has woken the task after the last round, or the rounds or the budget are used up.
        if polled.is_pending() && state.woken.load(Ordering::SeqCst) {
            context.waker().wake_by_ref();
        }
        polled
    }
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.polling.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// Maximum number of polls in a row. Each sends at most 512 KiB of bulk, a connection's send buffers.
const MAX_ROUNDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;
    use tokio::task::coop::consume_budget;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls a task that wakes itself `wakes` times in a row. The number of its rounds, and of wakes that reached tokio.
    fn poll(wakes: usize) -> (usize, usize) {
        let task = Arc::<Counted>::default();
        let mut rounds = 0;
        let polled: Poll<()> =
            LocalWaker::new().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task))), |context| {
                rounds += 1;
                if rounds <= wakes {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            });
        assert!(polled.is_pending());
        (rounds, task.0.load(Ordering::SeqCst))
    }

    #[test]
    fn a_task_that_wakes_itself_is_polled_again_at_once_until_its_rounds_are_used_up() {
        assert_eq!(poll(0), (1, 0));
        assert_eq!(poll(3), (4, 0));
        assert_eq!(poll(usize::MAX), (MAX_ROUNDS, 1));
    }

    #[tokio::test]
    async fn a_task_without_budget_is_polled_again_after_other_tasks() {
        let task = Arc::<Counted>::default();
        let mut rounds = 0;
        let polled: Poll<()> =
            LocalWaker::new().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task))), |context| {
                rounds += 1;
                while pin!(consume_budget()).poll(context).is_ready() {}
                context.waker().wake_by_ref();
                Poll::Pending
            });
        assert!(polled.is_pending());
        assert_eq!((rounds, task.0.load(Ordering::SeqCst)), (1, 1));
    }

    #[test]
    fn a_wake_from_outside_wakes_the_task() {
        let (local, task) = (LocalWaker::new(), Arc::<Counted>::default());
        let mut kept = None;
        let polled: Poll<()> = local.poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task))), |context| {
            kept = Some(context.waker().clone());
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
        kept.unwrap().wake();
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }
}

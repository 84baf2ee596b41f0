//! Runs a task that wakes itself for as long as it has something to do, before anybody else hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::task::coop::has_budget_remaining;

/// One task's turns.
///
/// A connection wakes its streams when it has sent, and they wake it when they have to send, all within one task. Each
/// of those would put the task into a queue again, and have tokio wake an idle thread to take it over, with cold caches.
#[derive(Debug)]
pub(super) struct LocalWaker {
    own: Arc<Own>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Own {
    /// Whoever wakes it now need not wake the task.
    running: AtomicBool,
    woken: AtomicBool,
    task: AtomicWaker,
}

impl LocalWaker {
    pub(super) fn new() -> Self {
        let own = Arc::<Own>::default();
        Self {
            waker: Waker::from(Arc::clone(&own)),
            own,
        }
    }

    /// Polls until it is ready, nothing has woken it meanwhile, or other tasks should have their turn.
    pub(super) fn poll<T>(
        &self,
        context: &mut Context<'_>,
        mut once: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Self { own, waker } = self;
        own.task.register(context.waker());
        own.running.store(true, Ordering::SeqCst);
        let mut polled = Poll::Pending;
        for _ in 0..MOST_ROUNDS {
            own.woken.store(false, Ordering::SeqCst);
            polled = once(&mut Context::from_waker(waker));
            if polled.is_ready() || !own.woken.load(Ordering::SeqCst) || !has_budget_remaining() {
                break;
            }
        }
        own.running.store(false, Ordering::SeqCst);
        // From outside, after the last look at it; or there is more to do than for one turn.
        if polled.is_pending() && own.woken.load(Ordering::SeqCst) {
            context.waker().wake_by_ref();
        }
        polled
    }
}

impl Wake for Own {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.running.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// Of at most as much as a connection has room for, if a stream is in bulk.
const MOST_ROUNDS: usize = 16;

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

    /// Polls once, waking itself `wakes` times in a row. How often it was run, and how often its task was woken.
    fn run(wakes: usize) -> (usize, usize) {
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
    fn who_wakes_itself_is_run_again_at_once_and_after_many_rounds_later() {
        assert_eq!(run(0), (1, 0));
        assert_eq!(run(3), (4, 0));
        assert_eq!(run(usize::MAX), (MOST_ROUNDS, 1));
    }

    #[tokio::test]
    async fn who_has_used_up_what_a_task_may_do_lets_other_tasks_run() {
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
    fn who_is_woken_from_outside_wakes_its_task() {
        let (turn, task) = (LocalWaker::new(), Arc::<Counted>::default());
        let mut kept = None;
        let polled: Poll<()> = turn.poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task))), |context| {
            kept = Some(context.waker().clone());
            Poll::Pending
        });
        assert!(polled.is_pending());
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
        kept.unwrap().wake();
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }
}

//! Spares an API server that does not answer, and the clients that would wait for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Whether questions of one kind are asked at all.
///
/// After some failures in a row a question of our own is asked. Only its failure opens the breaker, and only an answer
/// closes it: a client whose credential makes the API server fail cannot keep others from it.
#[derive(Debug, Default)]
pub(in crate::policy::access) struct Breaker {
    state: Mutex<State>,
    /// Notified when it is closed after it was open.
    pub(in crate::policy::access) closed: Notify,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    is_open: bool,
    is_probing: bool,
}

impl Breaker {
    /// Whether nothing is asked at the moment.
    pub(in crate::policy::access) fn is_open(&self) -> bool {
        self.state.lock().is_open
    }

    /// A question was answered.
    pub(in crate::policy::access) fn succeeded(&self) {
        self.close(false);
    }

    fn close(&self, ends_probe: bool) {
        let mut state = self.state.lock();
        state.failures = 0;
        state.is_probing &= !ends_probe;
        if std::mem::take(&mut state.is_open) {
            self.closed.notify_one();
        }
    }

    /// Notes a question without an answer. After [`MOST_FAILURES`] in a row, or `at_once`, `probe` asks one of our own each
    /// second, until it returns true: that one was answered.
    pub(in crate::policy::access) fn failed<F>(self: &Arc<Self>, at_once: bool, probe: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = bool> + Send,
    {
        {
            let mut state = self.state.lock();
            state.failures += 1;
            let is_due = at_once || state.failures >= MOST_FAILURES;
            if !is_due || std::mem::replace(&mut state.is_probing, true) {
                return;
            }
        }
        let probing = Probing(Arc::clone(self));
        tokio::spawn(async move { probing.run(probe).await });
    }
}

/// The one probe of a breaker, at the end of which, also by a panic, questions are asked again.
struct Probing(Arc<Breaker>);

impl Probing {
    async fn run<F: Future<Output = bool>>(self, probe: impl Fn() -> F) {
        while !probe().await {
            self.0.state.lock().is_open = true;
            sleep(PAUSE).await;
        }
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.close(true);
    }
}

/// Failures in a row before the probe.
const MOST_FAILURES: u32 = 5;
/// Between two probes. What was taken back during an outage ends so soon after it; one question a second is no load.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn it_opens_when_a_question_of_our_own_fails_too_and_closes_with_the_first_answer() {
        let breaker = Arc::new(Breaker::default());
        let (answers, probes) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let fail = |times| {
            for _ in 0..times {
                let (answers, probes) = (Arc::clone(&answers), Arc::clone(&probes));
                breaker.failed(false, move || {
                    probes.fetch_add(1, Ordering::Relaxed);
                    std::future::ready(answers.load(Ordering::Relaxed))
                });
            }
        };
        fail(4);
        breaker.succeeded();
        fail(4);
        tokio::task::yield_now().await;
        assert_eq!(probes.load(Ordering::Relaxed), 0);
        // The API server answers: the failures are those of a client.
        fail(1);
        tokio::task::yield_now().await;
        assert!(probes.load(Ordering::Relaxed) == 1 && !breaker.is_open());
        answers.store(false, Ordering::Relaxed);
        fail(50);
        tokio::task::yield_now().await;
        assert!(probes.load(Ordering::Relaxed) == 2 && breaker.is_open());
        sleep(Duration::from_secs(120)).await;
        let asked = probes.load(Ordering::Relaxed);
        assert!((120..=123).contains(&asked) && breaker.is_open(), "{asked}");
        answers.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while breaker.is_open() {
            sleep(Duration::from_millis(100)).await;
        }
        assert!(start.elapsed() <= PAUSE + Duration::from_millis(100));
        breaker.closed.notified().await;
    }
}

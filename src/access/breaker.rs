//! Spares an API server that does not answer, and the clients that would wait for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

/// Whether questions of one kind are asked at all.
///
/// After some failures in a row a question of our own is asked. Only its failure opens the breaker, and only an answer
/// closes it: a client whose credential makes the API server fail cannot keep others from it.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    is_open: bool,
    is_probing: bool,
}

impl Breaker {
    /// Whether nothing is asked at the moment.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().is_open
    }

    /// A question was answered.
    pub(super) fn succeeded(&self) {
        let mut state = self.state.lock();
        state.failures = 0;
        state.is_open = false;
    }

    /// A question was not answered. `probe` asks one of our own, and says whether that was.
    pub(super) fn failed<F>(self: &Arc<Self>, probe: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = bool> + Send,
    {
        {
            let mut state = self.state.lock();
            state.failures += 1;
            if state.failures < MOST_FAILURES || std::mem::replace(&mut state.is_probing, true) {
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
        let mut pause = SHORTEST_PAUSE;
        while !probe().await {
            self.0.state.lock().is_open = true;
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        *self.0.state.lock() = State::default();
    }
}

/// Failures in a row before the probe.
const MOST_FAILURES: u32 = 5;
/// Between two probes.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

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
                breaker.failed(move || {
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
        // After 1, 3, 7 and 15 s, and then every 10 s.
        let asked = probes.load(Ordering::Relaxed);
        assert!((14..=16).contains(&asked) && breaker.is_open(), "{asked}");
        answers.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while breaker.is_open() {
            sleep(Duration::from_millis(100)).await;
        }
        assert!(start.elapsed() <= LONGEST_PAUSE + Duration::from_millis(100));
    }
}

//! One question for all that ask it at the same time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::SetOnce;

use crate::policy::access::reviewer::Unavailable;

/// The questions that are asked at the moment.
#[derive(Debug)]
pub(in crate::policy::access) struct Flights<K, T> {
    running: Mutex<HashMap<K, Arc<SetOnce<Answer<T>>>>>,
}

/// An answer, or why there is none.
pub(in crate::policy::access) type Answer<T> = Result<T, Unavailable>;

impl<K: Copy + Eq + Hash + Send + 'static, T: Clone + Send + Sync + 'static> Flights<K, T> {
    /// None.
    pub(in crate::policy::access) fn new() -> Arc<Self> {
        Arc::new(Self {
            running: Mutex::default(),
        })
    }

    /// The answer to the question of that key, which is asked once. It goes on if its client leaves: another client may
    /// wait for it, and the answer is remembered.
    ///
    /// A `busy` that the limits of the first client caused is not shared: the others ask again.
    pub(in crate::policy::access) async fn join<F>(self: &Arc<Self>, key: K, ask: impl Fn() -> F) -> Answer<T>
    where
        F: Future<Output = Answer<T>> + Send + 'static,
    {
        for _ in 0..MOST_JOINED {
            let (flight, is_first) = {
                let mut running = self.running.lock();
                match running.get(&key) {
                    Some(flight) => (Arc::clone(flight), false),
                    None => {
                        let flight = Arc::new(SetOnce::new());
                        running.insert(key, Arc::clone(&flight));
                        (flight, true)
                    }
                }
            };
            if is_first {
                let landing = Landing {
                    flights: Arc::clone(self),
                    flight: Arc::clone(&flight),
                    key,
                };
                let answer = ask();
                tokio::spawn(async move { landing.land(answer.await) });
            }
            let answer = flight.wait().await.clone();
            let is_of_another = !is_first && matches!(&answer, Err(unavailable) if unavailable.kind == BUSY);
            if !is_of_another {
                return answer;
            }
        }
        Err(busy())
    }

    /// The number of questions that are asked at the moment.
    #[cfg(test)]
    pub(in crate::policy::access) fn len(&self) -> usize {
        self.running.lock().len()
    }
}

/// Ends a flight, also after a panic.
struct Landing<K: Copy + Eq + Hash, T> {
    flights: Arc<Flights<K, T>>,
    flight: Arc<SetOnce<Answer<T>>>,
    key: K,
}

impl<K: Copy + Eq + Hash, T> Landing<K, T> {
    fn land(self, answer: Answer<T>) {
        // The drop would set it otherwise.
        self.flight.set(answer).ok();
    }
}

impl<K: Copy + Eq + Hash, T> Drop for Landing<K, T> {
    fn drop(&mut self) {
        self.flights.running.lock().remove(&self.key);
        let lost = Unavailable {
            kind: "internal",
            message: "the question was not finished".into(),
        };
        self.flight.set(Err(lost)).ok();
    }
}

/// The client, or all clients together, ask too much at the moment.
pub(in crate::policy::access) fn busy() -> Unavailable {
    Unavailable {
        kind: BUSY,
        message: "too many questions at the moment".into(),
    }
}

/// The kind of [`busy`].
pub(in crate::policy::access) const BUSY: &str = "busy";
/// How often a question that failed for the bounds of other clients is joined again.
const MOST_JOINED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;
    use tokio::task::yield_now;

    #[tokio::test]
    async fn a_question_is_asked_once_though_its_first_client_leaves() {
        let (flights, asked, go) = (Flights::new(), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let join = || {
            let (flights, asked, go) = (Arc::clone(&flights), Arc::clone(&asked), Arc::clone(&go));
            tokio::spawn(async move {
                let ask = || {
                    let go = Arc::clone(&go);
                    asked.fetch_add(1, Ordering::Relaxed);
                    async move {
                        go.notified().await;
                        Ok("yes")
                    }
                };
                flights.join(1, ask).await
            })
        };
        let first = join();
        yield_now().await;
        let others: Vec<_> = (0..50).map(|_| join()).collect();
        yield_now().await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        go.notify_one();
        for other in others {
            assert_eq!(other.await.unwrap(), Ok("yes"));
        }
        assert_eq!((asked.load(Ordering::Relaxed), flights.len()), (1, 0));
    }

    #[tokio::test]
    async fn a_question_that_panics_is_not_answered_and_one_that_was_too_much_for_another_is_asked_again() {
        let flights: Arc<Flights<u8, u8>> = Flights::new();
        let lost = flights
            .join(1, || async { std::panic::resume_unwind(Box::new(())) })
            .await;
        assert_eq!(lost.unwrap_err().kind, "internal");
        let go = Arc::new(Notify::new());
        let first = {
            let (flights, go) = (Arc::clone(&flights), Arc::clone(&go));
            tokio::spawn(async move {
                let ask = || {
                    let go = Arc::clone(&go);
                    async move {
                        go.notified().await;
                        Err(busy())
                    }
                };
                flights.join(1, ask).await
            })
        };
        yield_now().await;
        let second = {
            let flights = Arc::clone(&flights);
            tokio::spawn(async move { flights.join(1, || async { Ok(7) }).await })
        };
        yield_now().await;
        go.notify_one();
        assert_eq!(first.await.unwrap().unwrap_err().kind, BUSY);
        assert_eq!(second.await.unwrap(), Ok(7));
    }
}

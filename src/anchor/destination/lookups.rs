//! Lookups of the target's name: one of them serves all connections that wait for an address.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

/// Asks for the addresses of one name.
#[derive(Debug)]
pub(in crate::anchor) struct Lookups {
    name: Box<str>,
    look_up: LookUp,
    /// Those without an answer, the oldest first.
    pending: Mutex<Vec<Lookup>>,
}

/// The addresses of `HOST:PORT`.
pub(in crate::anchor) type LookUp = fn(Box<str>) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

#[derive(Debug)]
struct Lookup {
    since: Instant,
    answer: Answer,
}

/// `None` until there is one.
type Answer = watch::Receiver<Option<Result<Vec<SocketAddr>, Arc<io::Error>>>>;

/// There are no addresses.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::anchor) enum LookupError {
    #[error("no answer within {LONGEST_LOOKUP:?}")]
    Unanswered,
    #[error(transparent)]
    Failed(Arc<io::Error>),
}

impl Lookups {
    /// Of `HOST:PORT`.
    pub(in crate::anchor) fn new(name: Box<str>) -> Self {
        Self::by(look_up, name)
    }

    pub(in crate::anchor) fn by(look_up: LookUp, name: Box<str>) -> Self {
        Self {
            name,
            look_up,
            pending: Mutex::default(),
        }
    }

    /// `HOST:PORT`.
    pub(in crate::anchor) fn name(&self) -> &str {
        &self.name
    }

    /// The name's addresses, within [`LONGEST_LOOKUP`].
    ///
    /// # Errors
    /// The resolver has no answer, or there is no thread to ask it.
    pub(in crate::anchor) async fn addresses(&self) -> Result<Vec<SocketAddr>, LookupError> {
        let mut answer = self.join();
        let answered = timeout(LONGEST_LOOKUP, answer.wait_for(Option::is_some)).await;
        let Ok(Ok(answer)) = answered else {
            return Err(LookupError::Unanswered);
        };
        answer.clone().unwrap_or(Ok(Vec::new())).map_err(LookupError::Failed)
    }

    /// The lookup that is under way, or a new one. A resolver may leave one without an answer for good, as glibc sets no time for an
    /// answer by TCP: so another one begins when the last has had [`LONGEST_LOOKUP`] for each that hangs, up to [`MOST_LOOKUPS`].
    fn join(&self) -> Answer {
        let mut pending = self.pending.lock();
        // A lookup that has panicked has no sender any more.
        pending.retain(|lookup| matches!(lookup.answer.has_changed(), Ok(false)));
        let hanging = u32::try_from(pending.len()).unwrap_or(u32::MAX);
        if let Some(last) = pending.last()
            && (pending.len() >= MOST_LOOKUPS || last.since.elapsed() < LONGEST_LOOKUP * hanging)
        {
            return last.answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        let lookup = (self.look_up)(self.name.clone());
        tokio::spawn(async move { sender.send_replace(Some(lookup.await.map_err(Arc::new))) });
        pending.push(Lookup {
            since: Instant::now(),
            answer: answer.clone(),
        });
        answer
    }
}

/// Asks the system's resolver (getaddrinfo(3)), in a thread of its own: where there is none, that is an error, and Tokio's pool of
/// threads would panic.
fn look_up(name: Box<str>) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
    Box::pin(async move {
        let (answer, answered) = oneshot::channel();
        let asking = move || answer.send(name.to_socket_addrs().map(Iterator::collect)).ok();
        let no_thread = |error| io::Error::other(format!("the system has no thread for the lookup: {error}"));
        thread::Builder::new()
            .name("lookup".to_owned())
            .spawn(asking)
            .map_err(no_thread)?;
        answered.await.map_err(io::Error::other)?
    })
}

/// The longest that a connection waits for an answer.
const LONGEST_LOOKUP: Duration = Duration::from_secs(5);
/// Lookups that hang at a time, each with a thread. As each one makes the pause longer, they take three hours to be so many.
const MOST_LOOKUPS: usize = 64;

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    /// The clock of the tests is one of milliseconds.
    const TICK: Duration = Duration::from_millis(2);

    fn lookups(look_up: LookUp) -> Lookups {
        Lookups::by(look_up, "machine.example.com:22".into())
    }

    /// So many at a time.
    async fn many(lookups: &Arc<Lookups>, count: usize) -> Vec<Result<Vec<SocketAddr>, LookupError>> {
        let mut asking = JoinSet::new();
        for _ in 0..count {
            let lookups = Arc::clone(lookups);
            asking.spawn(async move { lookups.addresses().await });
        }
        asking.join_all().await
    }

    #[tokio::test]
    async fn the_systems_resolver_is_asked() {
        let found = Lookups::new("localhost:22".into()).addresses().await.unwrap();
        assert!(found.iter().any(|address| address.ip().is_loopback()), "{found:?}");
        // No packet leaves for this one: it is no name.
        let error = Lookups::new("no\0name:22".into()).addresses().await.unwrap_err();
        assert!(matches!(error, LookupError::Failed(_)), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_lookup_serves_all_that_wait_and_no_one_after_it() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let lookups = Arc::new(lookups(|_| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let port = ASKED.fetch_add(1, Ordering::Relaxed);
                Ok(vec![SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()))])
            })
        }));
        for port in 0..3 {
            for found in many(&lookups, 500).await {
                assert_eq!(found.unwrap(), [SocketAddr::from(([127, 0, 0, 1], port))]);
            }
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), 3);
        assert!(lookups.pending.lock().len() <= 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_does_not_answer_is_given_up_and_one_that_answers_again_is_heard() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let lookups = Arc::new(lookups(|_| match ASKED.fetch_add(1, Ordering::Relaxed) {
            asked if asked < 20 => Box::pin(pending()),
            _ => Box::pin(async { Ok(Vec::new()) }),
        }));
        let start = Instant::now();
        for found in many(&lookups, 500).await {
            assert!(matches!(found, Err(LookupError::Unanswered)));
        }
        assert!(start.elapsed() < LONGEST_LOOKUP + TICK);
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        // The 21st begins when the 20th has had its time for each: 5 + 10 + … + 100 s.
        let mut last = Instant::now();
        while lookups.addresses().await.is_err() {
            assert!(last.elapsed() < LONGEST_LOOKUP + TICK);
            last = Instant::now();
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), 21);
        assert!(
            start.elapsed() <= LONGEST_LOOKUP * (20 * 21 / 2 + 1),
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_never_answers_takes_so_many_threads_and_no_more() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let lookups = lookups(|_| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            Box::pin(pending())
        });
        for _ in 0..10_000 {
            lookups.addresses().await.unwrap_err();
        }
        assert_eq!(ASKED.load(Ordering::Relaxed), MOST_LOOKUPS);
    }

    #[tokio::test]
    async fn a_lookup_that_fails_or_panics_is_not_the_last() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let lookups = lookups(|_| {
            Box::pin(async {
                match ASKED.fetch_add(1, Ordering::Relaxed) {
                    0 => Err(io::Error::other("no such name")),
                    1 => panic!("a fault"),
                    _ => Ok(Vec::new()),
                }
            })
        });
        assert_eq!(lookups.addresses().await.unwrap_err().to_string(), "no such name");
        lookups.addresses().await.unwrap_err();
        assert_eq!(lookups.addresses().await.unwrap(), []);
    }
}

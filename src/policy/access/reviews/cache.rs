//! Recent answers, the changes that outdate them, and the reviews in progress: one for all callers that need the same.
//!
//! Approvals and denials are cached separately, so that invalid credentials evict only each other; failed reviews are
//! not cached. Each answer has the time at which it was asked for: it lacks later changes.
//!
//! quick_cache has no expiry, and moka's uses a clock that a test cannot pause. Neither keeps a stale answer for use
//! while a fresh one cannot be had.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::policy::access::credentials::digest::Digest;
use crate::policy::access::reviewer::{Change, NoAnswer, ReviewError, busy};
use crate::policy::access::user::User;

/// An answer, or why there is none.
pub(in crate::policy::access) type ReviewResult<T> = Result<T, ReviewError>;

/// The answers to one kind of question, by the digests of the questions.
#[derive(Debug)]
pub(super) struct ReviewCache<V> {
    state: Mutex<State<V>>,
}

#[derive(Debug)]
struct State<V> {
    yes: Cache<V>,
    no: Cache<V>,
    running: HashMap<Digest, PendingReview<V>>,
}

/// A review in progress. Its sender is dropped with its task, also by a panic.
#[derive(Clone, Debug)]
struct PendingReview<V> {
    begun: Instant,
    answer: watch::Receiver<Option<ReviewResult<V>>>,
}

/// Answers of one kind; the oldest one is evicted first.
#[derive(Debug)]
struct Cache<V> {
    entries: HashMap<Digest, (CachedAnswer<V>, u64)>,
    /// By age: the oldest one first.
    order: BTreeMap<u64, Digest>,
    next: u64,
    bytes: usize,
    max_bytes: usize,
}

/// An answer that is remembered.
#[derive(Debug)]
pub(super) struct CachedAnswer<V> {
    pub(super) value: V,
    /// When it was asked for.
    pub(super) asked: Instant,
    /// When it expires; `None` if never.
    pub(super) expires: Option<Instant>,
    /// The namespace that it is about; empty if none.
    pub(super) namespace: Box<str>,
    /// Its bytes on the heap.
    pub(super) size: usize,
}

impl<V: Clone + Send + Sync + 'static> ReviewCache<V> {
    /// Creates an empty cache for that many bytes of each kind.
    pub(super) fn new(most_yes: usize, most_no: usize) -> Arc<Self> {
        let state = Mutex::new(State {
            yes: Cache::new(most_yes),
            no: Cache::new(most_no),
            running: HashMap::new(),
        });
        Arc::new(Self { state })
    }

    /// Returns the approval that was asked for within that time.
    pub(super) fn yes(&self, question: &Digest, max_age: Duration) -> Option<V> {
        self.state.lock().yes.get(question, max_age, None)
    }

    /// Returns the answer that is younger than the maximum age of approvals or of denials, and not from before `since`.
    pub(super) fn fresh(&self, question: &Digest, max_ages: [Duration; 2], since: Option<Instant>) -> Option<V> {
        let ([yes, no], state) = (max_ages, self.state.lock());
        let allowed = state.yes.get(question, yes, since);
        allowed.or_else(|| state.no.get(question, no, since))
    }

    /// Caches an answer, unless one that was asked for later is cached.
    pub(super) fn put(&self, question: Digest, is_yes: bool, answer: CachedAnswer<V>) {
        let State { yes, no, .. } = &mut *self.state.lock();
        let is_older = |cache: &&mut Cache<V>| {
            let other = cache.entries.get(&question);
            other.is_some_and(|(other, _)| other.asked > answer.asked)
        };
        if [&yes, &no].into_iter().any(is_older) {
            return;
        }
        let (own, other) = if is_yes { (yes, no) } else { (no, yes) };
        other.remove(&question);
        own.put(question, answer);
    }

    /// Forgets each approval of which `applies` is true.
    pub(super) fn remove_where(&self, applies: impl Fn(&CachedAnswer<V>) -> bool) {
        let yes = &mut self.state.lock().yes;
        let all = yes.entries.iter();
        let due: Vec<_> = all
            .filter(|(_, (answer, _))| applies(answer))
            .map(|(question, _)| *question)
            .collect();
        due.iter().for_each(|question| yes.remove(question));
    }

    /// Forgets all answers.
    pub(super) fn clear(&self) {
        let State { yes, no, .. } = &mut *self.state.lock();
        *yes = Cache::new(yes.max_bytes);
        *no = Cache::new(no.max_bytes);
    }

    /// Returns the numbers of approvals and of denials.
    pub(super) fn len(&self) -> [usize; 2] {
        let state = self.state.lock();
        [state.yes.entries.len(), state.no.entries.len()]
    }

    /// Runs a review, once for all callers that need it. One that began before `since` is not joined. It goes on if its
    /// client leaves: another client may wait for it, and the answer is cached.
    ///
    /// A `busy` that the limits of the first client caused is not shared: the others try again.
    pub(super) async fn run<F>(
        self: &Arc<Self>,
        question: Digest,
        since: Option<Instant>,
        ask: impl Fn() -> F,
    ) -> ReviewResult<V>
    where
        F: Future<Output = ReviewResult<V>> + Send + 'static,
    {
        for _ in 0..MAX_JOINED {
            let (mut pending, is_first) = self.join_or_begin(question, since, &ask);
            let answer = pending.answer.wait_for(Option::is_some).await.ok();
            match answer.and_then(|answer| answer.clone()) {
                Some(Err(unavailable)) if unavailable.kind == NoAnswer::Busy && !is_first => {}
                Some(answer) => return answer,
                None => return Err(ReviewError::new(NoAnswer::Unavailable, "the review was not finished")),
            }
        }
        Err(busy())
    }

    /// Returns the review in progress, and whether it begins with this call.
    fn join_or_begin<F>(
        self: &Arc<Self>,
        question: Digest,
        since: Option<Instant>,
        ask: impl Fn() -> F,
    ) -> (PendingReview<V>, bool)
    where
        F: Future<Output = ReviewResult<V>> + Send + 'static,
    {
        let mut state = self.state.lock();
        let is_current = |pending: &&PendingReview<V>| {
            let has_ended = pending.answer.has_changed().is_err();
            !has_ended && since.is_none_or(|since| pending.begun >= since)
        };
        if let Some(pending) = state.running.get(&question).filter(is_current) {
            return (pending.clone(), false);
        }
        let (sender, answer) = watch::channel(None);
        let pending = PendingReview {
            begun: Instant::now(),
            answer,
        };
        state.running.insert(question, pending.clone());
        let (own, asked) = (Arc::clone(self), ask());
        tokio::spawn(async move {
            sender.send_replace(Some(asked.await));
            let mut state = own.state.lock();
            // A later review of the same question may have taken the place.
            let is_own = |pending: &PendingReview<V>| sender.subscribe().same_channel(&pending.answer);
            if state.running.get(&question).is_some_and(is_own) {
                state.running.remove(&question);
            }
        });
        (pending, true)
    }
}

impl<V: Clone> Cache<V> {
    fn new(max_bytes: usize) -> Self {
        Self {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            bytes: 0,
            max_bytes,
        }
    }

    fn get(&self, question: &Digest, max_age: Duration, since: Option<Instant>) -> Option<V> {
        let (answer, _) = self.entries.get(question)?;
        let has_expired = answer.expires.is_some_and(|expires| expires <= Instant::now());
        let is_current = answer.asked.elapsed() < max_age && since.is_none_or(|since| answer.asked >= since);
        (is_current && !has_expired).then(|| answer.value.clone())
    }

    /// Caches an answer, unless it takes more than a quarter of `max_bytes`.
    fn put(&mut self, question: Digest, answer: CachedAnswer<V>) {
        self.remove(&question);
        let bytes = answer.bytes();
        if bytes > self.max_bytes / 4 {
            return;
        }
        self.bytes += bytes;
        self.order.insert(self.next, question);
        self.entries.insert(question, (answer, self.next));
        self.next += 1;
        while self.bytes > self.max_bytes
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, question: &Digest) {
        if let Some((answer, number)) = self.entries.remove(question) {
            self.order.remove(&number);
            self.bytes -= answer.bytes();
        }
    }
}

impl<V> CachedAnswer<V> {
    fn bytes(&self) -> usize {
        self.size + self.namespace.len() + OVERHEAD + size_of::<(Self, u64)>()
    }
}

/// The times of changes that may have changed answers.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// When every verdict was forgotten. No answer that was asked for before is cached.
    pub(super) forgotten: Option<Instant>,
    everywhere: Option<Instant>,
    namespaces: HashMap<Box<str>, Instant>,
    /// The ids of users that were deleted.
    deleted_users: VecDeque<(Box<str>, Instant)>,
}

impl Changes {
    /// Notes a change.
    pub(super) fn note(&mut self, change: &Change) {
        let now = Instant::now();
        self.namespaces.retain(|_, at| at.elapsed() < NOTED);
        match change {
            Change::Namespace(name) if self.namespaces.len() < MAX_NAMESPACES => {
                self.namespaces.insert(name.clone(), now);
            }
            Change::Namespace(_) | Change::Everywhere => self.everywhere = Some(now),
            Change::UserDeleted(id) => {
                self.deleted_users.truncate(MAX_GONE - 1);
                self.deleted_users.push_front((id.clone(), now));
            }
        }
    }

    /// Returns the last change in a namespace, if any.
    pub(super) fn last(&self, namespace: &str) -> Option<Instant> {
        self.everywhere.max(self.namespaces.get(namespace).copied())
    }

    /// Returns when every API server, and its cache, knows of the last change in a namespace, if any: another one may learn
    /// of it later than the watch.
    pub(super) fn settled(&self, namespace: &str) -> Option<Instant> {
        self.last(namespace).map(|changed| changed + SETTLING_TIME)
    }

    /// Returns whether the user was deleted in the last 60 s. The API server may authenticate a deleted user for 10 s.
    pub(super) fn is_deleted(&self, user: &User) -> bool {
        let is_recent = |at: &Instant| at.elapsed() < GONE_FOR;
        self.deleted_users
            .iter()
            .any(|(id, at)| user.has_id(id) && is_recent(at))
    }
}

/// Converts a time of the system clock to the monotonic one.
pub(in crate::policy::access) fn instant(time: SystemTime) -> Instant {
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    // A time beyond the clock's range becomes one that no tunnel reaches.
    Instant::now()
        .checked_add(left)
        .unwrap_or_else(|| Instant::now() + CENTURY)
}

/// The time after a change in which no cached answer is fresh. At its end, grants are rechecked once more.
pub(crate) const SETTLING_TIME: Duration = Duration::from_secs(2);
/// Longer than any tunnel.
pub(super) const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The time for which the change of a namespace is noted: twice that for which an answer is fresh.
const NOTED: Duration = Duration::from_secs(20);
/// The time for which a deleted user is refused: the API server authenticates such a user for less.
const GONE_FOR: Duration = Duration::from_secs(60);
const MAX_GONE: usize = 1024;
/// The namespaces whose changes are kept apart. Beyond, a change counts for all namespaces.
const MAX_NAMESPACES: usize = 1024;
/// Bytes of an entry in the two maps, with the free slots of a hash map that has just grown.
const OVERHEAD: usize = 2 * (32 + 16) + 2 * (32 + 8);
/// How often a caller tries a review that fails by the limits of other clients.
const MAX_JOINED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::access::credentials::credential::Credential;
    use crate::policy::access::credentials::digest::Key;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;
    use tokio::task::yield_now;
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    fn digests(count: usize) -> Vec<Digest> {
        let key = Key::new();
        let digest =
            |number: usize| key.credential(&Credential::Bearer(number.to_string().as_str().into()), [0; 4].into());
        (0..count).map(digest).collect()
    }

    fn known(value: &'static str, size: usize) -> CachedAnswer<&'static str> {
        CachedAnswer {
            value,
            asked: Instant::now(),
            expires: None,
            namespace: Box::default(),
            size,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_fresh_for_a_time_and_until_something_changes_and_a_no_takes_a_yes_back() {
        let answers = ReviewCache::new(10_000, 10_000);
        let [one, two] = digests(2).try_into().unwrap();
        answers.put(one, true, known("yes", 0));
        let short = CachedAnswer {
            expires: Some(Instant::now() + 3 * SECOND),
            ..known("short", 0)
        };
        answers.put(two, true, short);
        let fresh = |since| answers.fresh(&one, [2 * SECOND, SECOND], since);
        advance(SECOND).await;
        assert_eq!(fresh(None), Some("yes"));
        assert_eq!(fresh(Some(Instant::now())), None, "it was asked for before the change");
        advance(SECOND).await;
        assert_eq!((fresh(None), answers.yes(&one, 3 * SECOND)), (None, Some("yes")));
        assert_eq!(answers.yes(&two, 60 * SECOND), Some("short"));
        advance(SECOND).await;
        assert_eq!(answers.yes(&two, 60 * SECOND), None, "it has expired");
        answers.put(one, false, known("no", 0));
        assert_eq!((fresh(None), answers.yes(&one, 60 * SECOND)), (Some("no"), None));
        advance(SECOND).await;
        assert_eq!(fresh(None), None);
        answers.put(one, true, known("yes", 0));
        assert_eq!((fresh(None), answers.len()), (Some("yes"), [2, 0]));
        answers.remove_where(|answer| answer.value == "yes");
        assert_eq!((fresh(None), answers.len()), (None, [1, 0]));
        answers.clear();
        let state = answers.state.lock();
        assert_eq!((state.yes.bytes, state.yes.order.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_answers_leave_first_and_no_yes_for_a_no() {
        let answers = ReviewCache::new(10_000, 10_000);
        let all = digests(1_000);
        for digest in &all {
            answers.put(*digest, true, known("x", 100));
            answers.put(all[0], true, known("y", 100));
        }
        let [kept, _] = answers.len();
        let has = |number: usize| answers.yes(&all[number], SECOND).is_some();
        assert!(kept > 20 && answers.state.lock().yes.bytes <= 10_000, "{kept}");
        assert!(has(0) && has(999) && !has(1));
        for digest in digests(1_000) {
            answers.put(digest, false, known("no", 100));
        }
        assert_eq!(answers.len()[0], kept);
        answers.put(all[1], true, known("too large", 9_000));
        assert!(!has(1) && answers.len()[0] == kept);
        let state = answers.state.lock();
        assert_eq!(state.yes.entries.len(), state.yes.order.len());
    }

    #[tokio::test]
    async fn a_question_is_asked_once_though_its_first_client_leaves() {
        let (answers, release) = (ReviewCache::new(1, 1), Arc::new(Notify::new()));
        let (asked, one) = (Arc::new(AtomicUsize::new(0)), digests(1)[0]);
        let join = |since| {
            let (answers, asked, release) = (Arc::clone(&answers), Arc::clone(&asked), Arc::clone(&release));
            tokio::spawn(async move {
                let ask = || {
                    let release = Arc::clone(&release);
                    asked.fetch_add(1, Ordering::Relaxed);
                    async move {
                        release.notified().await;
                        Ok("yes")
                    }
                };
                answers.run(one, since, ask).await
            })
        };
        let first = join(None);
        yield_now().await;
        let others: Vec<_> = (0..50).map(|_| join(None)).collect();
        yield_now().await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        // One that is asked before a change is not joined after it.
        let later = join(Some(Instant::now()));
        yield_now().await;
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        release.notify_waiters();
        for other in others.into_iter().chain([later]) {
            assert_eq!(other.await.unwrap(), Ok("yes"));
        }
        assert!(answers.state.lock().running.is_empty());
    }

    #[tokio::test]
    async fn a_question_that_panics_is_not_answered_and_one_that_was_too_much_for_another_is_asked_again() {
        let (answers, one) = (ReviewCache::<u8>::new(1, 1), digests(1)[0]);
        let lost = answers
            .run(one, None, || async { std::panic::resume_unwind(Box::new(())) })
            .await;
        assert_eq!(lost.unwrap_err().kind, NoAnswer::Unavailable);
        let release = Arc::new(Notify::new());
        let first = {
            let (answers, release) = (Arc::clone(&answers), Arc::clone(&release));
            tokio::spawn(async move {
                let ask = || {
                    let release = Arc::clone(&release);
                    async move {
                        release.notified().await;
                        Err(busy())
                    }
                };
                answers.run(one, None, ask).await
            })
        };
        yield_now().await;
        let second = {
            let answers = Arc::clone(&answers);
            tokio::spawn(async move { answers.run(one, None, || async { Ok(7) }).await })
        };
        yield_now().await;
        release.notify_one();
        assert_eq!(first.await.unwrap().unwrap_err().kind, NoAnswer::Busy);
        assert_eq!(second.await.unwrap(), Ok(7));
    }
}

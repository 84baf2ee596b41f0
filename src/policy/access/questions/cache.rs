//! A bounded memory of answers: what was answered, when, and for how long it may count.
//!
//! quick_cache has no times, and moka's are those of a clock of its own, which a test cannot pause; neither keeps an
//! answer that is no longer fresh for the day on which there is no other. What is needed is small: the oldest answer
//! leaves first, by number or by size, and an answer that comes again is the newest.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::policy::access::evidence::digest::Digest;

/// Answers, by the digest of their question.
#[derive(Debug)]
pub(in crate::policy::access) struct Cache<V> {
    entries: HashMap<Digest, Entry<V>>,
    /// By age: the oldest one first.
    order: BTreeMap<u64, Digest>,
    next: u64,
    bytes: usize,
    most_bytes: usize,
}

/// An answer.
#[derive(Debug)]
pub(in crate::policy::access) struct Entry<V> {
    /// The answer.
    pub(in crate::policy::access) value: V,
    answered: Instant,
    /// Whether nothing is known to have changed since.
    is_confirmed: bool,
    number: u64,
    bytes: usize,
}

impl<V> Entry<V> {
    /// Whether the answer is younger than that, and nothing is known to have changed since.
    pub(in crate::policy::access) fn is_fresh(&self, longest: Duration) -> bool {
        self.is_confirmed && self.is_younger(longest)
    }

    /// Whether the answer is younger than that.
    pub(in crate::policy::access) fn is_younger(&self, longest: Duration) -> bool {
        self.answered.elapsed() < longest
    }
}

impl<V> Cache<V> {
    /// An empty cache whose entries take that many bytes at most.
    pub(in crate::policy::access) fn new(most_bytes: usize) -> Self {
        Self {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            next: 0,
            bytes: 0,
            most_bytes,
        }
    }

    /// The answer to that question.
    pub(in crate::policy::access) fn get(&self, question: &Digest) -> Option<&Entry<V>> {
        self.entries.get(question)
    }

    /// Remembers an answer of now; `size` is what it has on the heap. Answers that are too large are not remembered.
    pub(in crate::policy::access) fn put(&mut self, question: Digest, value: V, size: usize) {
        self.remove(&question);
        let bytes = size + OVERHEAD + size_of::<Entry<V>>();
        if bytes > self.most_bytes / 4 {
            return;
        }
        self.bytes += bytes;
        let number = self.next;
        self.next += 1;
        self.order.insert(number, question);
        let entry = Entry {
            value,
            answered: Instant::now(),
            is_confirmed: true,
            number,
            bytes,
        };
        self.entries.insert(question, entry);
        while self.bytes > self.most_bytes
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.forget(&oldest);
        }
    }

    /// Forgets an answer.
    pub(in crate::policy::access) fn remove(&mut self, question: &Digest) {
        if let Some(number) = self.forget(question) {
            self.order.remove(&number);
        }
    }

    /// Forgets the answers of which `applies` is true.
    pub(in crate::policy::access) fn remove_where(&mut self, mut applies: impl FnMut(&V) -> bool) {
        let due = self.entries.iter().filter(|(_, entry)| applies(&entry.value));
        let due: Vec<_> = due.map(|(question, _)| *question).collect();
        for question in due {
            self.remove(&question);
        }
    }

    /// Notes that the answers of which `applies` is true may be others by now: they are no longer fresh.
    pub(in crate::policy::access) fn doubt_where(&mut self, mut applies: impl FnMut(&V) -> bool) {
        for entry in self.entries.values_mut().filter(|entry| applies(&entry.value)) {
            entry.is_confirmed = false;
        }
    }

    /// The same of one answer.
    pub(in crate::policy::access) fn doubt(&mut self, question: &Digest) {
        if let Some(entry) = self.entries.get_mut(question) {
            entry.is_confirmed = false;
        }
    }

    /// The number of answers.
    pub(in crate::policy::access) fn len(&self) -> usize {
        self.entries.len()
    }

    fn forget(&mut self, question: &Digest) -> Option<u64> {
        let Entry { number, bytes, .. } = self.entries.remove(question)?;
        self.bytes -= bytes;
        Some(number)
    }
}

/// Bytes of an entry in the two maps, with the free slots of a hash map that has just grown.
const OVERHEAD: usize = 2 * (32 + 16) + 2 * (32 + 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::access::evidence::credential::Credential;
    use crate::policy::access::evidence::digest::Key;
    use tokio::time::advance;

    fn digests(count: usize) -> Vec<Digest> {
        let key = Key::new();
        let digest =
            |number: usize| key.credential(&Credential::Bearer(number.to_string().as_str().into()), [0; 4].into());
        (0..count).map(digest).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_fresh_for_a_time_and_until_something_changes() {
        let second = Duration::from_secs(1);
        let mut cache = Cache::new(10_000);
        let [one, two] = digests(2).try_into().unwrap();
        cache.put(one, "one", 0);
        cache.put(two, "two", 0);
        cache.doubt_where(|value| *value == "two");
        assert!(cache.get(&one).unwrap().is_fresh(second));
        let doubted = cache.get(&two).unwrap();
        assert!(!doubted.is_fresh(second) && doubted.is_younger(second));
        advance(second).await;
        assert!(!cache.get(&one).unwrap().is_fresh(second));
        cache.put(two, "two", 0);
        assert!(cache.get(&two).unwrap().is_fresh(second));
        cache.remove_where(|value| *value == "two");
        assert!(cache.get(&two).is_none() && cache.len() == 1);
        cache.remove(&one);
        assert_eq!((cache.len(), cache.bytes, cache.order.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_answers_leave_first_and_a_large_one_is_not_kept() {
        let mut cache = Cache::new(10_000);
        let all = digests(1_000);
        for digest in &all {
            cache.put(*digest, "x", 100);
            cache.put(all[0], "y", 100);
        }
        assert!(
            cache.len() > 20 && cache.bytes <= 10_000,
            "{} {}",
            cache.len(),
            cache.bytes
        );
        assert!(cache.get(&all[0]).is_some() && cache.get(&all[999]).is_some() && cache.get(&all[1]).is_none());
        cache.put(all[1], "x", 9_000);
        assert!(cache.get(&all[1]).is_none() && cache.len() > 20);
        assert_eq!(cache.entries.len(), cache.order.len());
    }
}

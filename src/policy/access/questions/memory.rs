//! Recent answers: the users that credentials prove, and what users may do.
//!
//! A yes and a no are kept apart, so that rubbish evicts rubbish only. What has no answer is not kept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::cache::Cache;
use crate::policy::access::evidence::digest::Digest;
use crate::policy::access::reviewer::{Change, Decision, Verdict};
use crate::policy::access::user::User;

/// The answers of a process.
#[derive(Debug)]
pub(in crate::policy::access) struct Memory {
    /// Counts what may have changed answers: one that was asked for before such a change is not fresh behind it.
    epoch: u64,
    proved: Cache<Proved>,
    refused: Cache<Box<str>>,
    allowed: Cache<Right>,
    denied: Cache<Right>,
    /// The ids of users that were deleted, and when.
    gone: VecDeque<(Box<str>, Instant)>,
}

#[derive(Debug)]
struct Proved {
    user: Arc<User>,
    /// When the credential expires.
    expires: Option<Instant>,
}

#[derive(Debug)]
struct Right {
    decision: Decision,
    namespace: Box<str>,
}

/// The numbers of answers that are remembered, by the label `cache`.
pub(in crate::policy::access) type Sizes = [(&'static str, usize); 4];

impl Memory {
    /// An empty one.
    pub(in crate::policy::access) fn new() -> Self {
        Self {
            epoch: 0,
            proved: Cache::new(MOST_PROVED),
            refused: Cache::new(MOST_REFUSED),
            allowed: Cache::new(MOST_ALLOWED),
            denied: Cache::new(MOST_DENIED),
            gone: VecDeque::new(),
        }
    }

    /// The number of changes so far.
    pub(in crate::policy::access) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The fresh verdict on a credential.
    pub(in crate::policy::access) fn verdict(&self, credential: &Digest) -> Option<Verdict> {
        if let Some(entry) = self.proved.get(credential).filter(|entry| entry.is_fresh(FRESH)) {
            return entry.value.verdict();
        }
        let refused = self.refused.get(credential).filter(|entry| entry.is_fresh(FRESH));
        refused.map(|entry| Verdict::Refused(entry.value.clone()))
    }

    /// The user that a credential has proved within that time; never one whose credential has expired.
    pub(in crate::policy::access) fn stale_verdict(&self, credential: &Digest, longest: Duration) -> Option<Verdict> {
        let entry = self.proved.get(credential).filter(|entry| entry.is_younger(longest));
        entry.and_then(|entry| entry.value.verdict())
    }

    /// Remembers the verdict on a credential, which was asked for at that epoch.
    pub(in crate::policy::access) fn keep_verdict(&mut self, credential: Digest, epoch: u64, verdict: &Verdict) {
        match verdict {
            Verdict::Proved(user) => {
                self.refused.remove(&credential);
                let value = Proved {
                    user: Arc::clone(user),
                    expires: user.expires.map(instant),
                };
                self.proved.put(credential, value, size_of_user(user));
                if epoch != self.epoch {
                    self.proved.doubt(&credential);
                }
            }
            Verdict::Refused(phrase) => {
                self.proved.remove(&credential);
                self.refused.put(credential, phrase.clone(), phrase.len());
            }
        }
    }

    /// The fresh decision about a right.
    pub(in crate::policy::access) fn decision(&self, right: &Digest) -> Option<Decision> {
        let allowed = self.allowed.get(right).filter(|entry| entry.is_fresh(FRESH));
        let denied = || self.denied.get(right).filter(|entry| entry.is_fresh(FRESH_DENIAL));
        allowed.or_else(denied).map(|entry| entry.value.decision.clone())
    }

    /// The right, if it was allowed within that time.
    pub(in crate::policy::access) fn stale_decision(&self, right: &Digest, longest: Duration) -> Option<Decision> {
        let entry = self.allowed.get(right).filter(|entry| entry.is_younger(longest));
        entry.map(|entry| entry.value.decision.clone())
    }

    /// Remembers the decision about a right in a namespace, which was asked for at that epoch. A no that is not complete
    /// is not remembered, and takes no yes back.
    pub(in crate::policy::access) fn keep_decision(
        &mut self,
        right: Digest,
        epoch: u64,
        namespace: &str,
        decision: &Decision,
    ) {
        let size = decision.reason.len() + namespace.len();
        let value = Right {
            decision: decision.clone(),
            namespace: namespace.into(),
        };
        if decision.allowed {
            self.denied.remove(&right);
            self.allowed.put(right, value, size);
            if epoch != self.epoch {
                self.allowed.doubt(&right);
            }
        } else if decision.complete {
            self.allowed.remove(&right);
            if epoch == self.epoch {
                self.denied.put(right, value, size);
            }
        }
    }

    /// Notes that answers may be others by now. A yes stays for the case that there is no newer answer.
    pub(in crate::policy::access) fn changed(&mut self, change: &Change) {
        self.epoch += 1;
        match change {
            Change::Everywhere => {
                self.allowed.doubt_where(|_| true);
                self.denied.remove_where(|_| true);
            }
            Change::Namespace(changed) => {
                self.allowed.doubt_where(|right| right.namespace == *changed);
                self.denied.remove_where(|right| right.namespace == *changed);
            }
            Change::UserGone(id) => {
                self.proved
                    .remove_where(|proved| proved.user.is_of_cluster() && proved.user.uid.as_deref() == Some(id));
                if self.gone.len() >= MOST_GONE {
                    self.gone.pop_front();
                }
                self.gone.push_back((id.clone(), Instant::now()));
            }
        }
    }

    /// Whether the user was deleted a moment ago: the API server goes on to prove it for 10 s.
    pub(in crate::policy::access) fn is_gone(&self, user: &User) -> bool {
        let is_recent = |gone: &Instant| gone.elapsed() < GONE;
        let of = |id: &str| self.gone.iter().any(|(gone, at)| **gone == *id && is_recent(at));
        user.is_of_cluster() && user.uid.as_deref().is_some_and(of)
    }

    /// Forgets every verdict: what proves users has changed.
    pub(in crate::policy::access) fn forget_verdicts(&mut self) {
        self.epoch += 1;
        self.proved = Cache::new(MOST_PROVED);
        self.refused = Cache::new(MOST_REFUSED);
    }

    /// Forgets everything: the rules have changed.
    pub(in crate::policy::access) fn forget(&mut self) {
        self.forget_verdicts();
        self.allowed = Cache::new(MOST_ALLOWED);
        self.denied = Cache::new(MOST_DENIED);
    }

    /// The numbers of answers.
    pub(in crate::policy::access) fn sizes(&self) -> Sizes {
        [
            ("proved", self.proved.len()),
            ("refused", self.refused.len()),
            ("allowed", self.allowed.len()),
            ("denied", self.denied.len()),
        ]
    }
}

impl Proved {
    fn verdict(&self) -> Option<Verdict> {
        let has_expired = self.expires.is_some_and(|expires| expires <= Instant::now());
        (!has_expired).then(|| Verdict::Proved(Arc::clone(&self.user)))
    }
}

/// When that time comes, on the clock that is not set.
pub(in crate::policy::access) fn instant(time: SystemTime) -> Instant {
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    // A time that the clock cannot show is later than any tunnel's end.
    Instant::now()
        .checked_add(left)
        .unwrap_or_else(|| Instant::now() + CENTURY)
}

fn size_of_user(user: &User) -> usize {
    let texts = |texts: &[Box<str>]| texts.iter().map(|text| text.len() + TEXT).sum::<usize>();
    let extra = user
        .extra
        .iter()
        .map(|(name, values)| name.len() + 4 * TEXT + texts(values));
    size_of::<User>()
        + user.name.len()
        + user.uid.as_ref().map_or(0, |id| id.len())
        + texts(&user.groups)
        + extra.sum::<usize>()
}

/// The age up to which an answer counts without another question. The API server remembers its own for 10 s as well.
const FRESH: Duration = Duration::from_secs(10);
/// The same of a right that is denied: the user may just be given it.
const FRESH_DENIAL: Duration = Duration::from_secs(5);
/// Longer than the API server proves a user that was deleted.
const GONE: Duration = Duration::from_secs(60);
const MOST_GONE: usize = 1024;
/// Bytes of each cache, as they are counted here: with what the allocator adds less than 8 MiB together, as
/// `tests/access_memory.rs` measures. They hold about 1,600 users with ten groups each, 3,600 refused credentials, and
/// 3,800 and 1,500 rights; what does not fit is asked again.
const MOST_PROVED: usize = 7 << 18;
const MOST_REFUSED: usize = 1 << 20;
const MOST_ALLOWED: usize = 5 << 18;
const MOST_DENIED: usize = 1 << 19;
/// Bytes of a text on the heap beside its characters.
const TEXT: usize = 32;
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::access::evidence::credential::Credential;
    use crate::policy::access::evidence::digest::Key;
    use crate::policy::access::test_support::user;
    use tokio::time::advance;

    fn digests() -> impl Iterator<Item = Digest> {
        let key = Key::new();
        (0_u64..)
            .map(move |number| key.credential(&Credential::Bearer(number.to_string().as_str().into()), [0; 4].into()))
    }

    fn proved(user: User) -> Verdict {
        Verdict::Proved(Arc::new(user))
    }

    fn decision(allowed: bool, complete: bool) -> Decision {
        Decision {
            allowed,
            complete,
            reason: "x".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_yes_is_fresh_for_ten_seconds_and_counts_on_until_it_is_stale_or_expires() {
        let mut memory = Memory::new();
        let [one, two] = digests().take(2).collect::<Vec<_>>().try_into().unwrap();
        let mut short = user("bob");
        short.expires = Some(SystemTime::now() + Duration::from_secs(60));
        memory.keep_verdict(one, 0, &proved(user("alice")));
        memory.keep_verdict(two, 0, &proved(short));
        let stale = Duration::from_secs(600);
        assert!(memory.verdict(&one).is_some());
        advance(FRESH).await;
        assert!(memory.verdict(&one).is_none() && memory.stale_verdict(&one, stale).is_some());
        assert!(memory.stale_verdict(&two, stale).is_some());
        advance(Duration::from_secs(50)).await;
        assert!(memory.stale_verdict(&two, stale).is_none(), "it has expired");
        memory.keep_verdict(one, 0, &Verdict::Refused("no".into()));
        assert_eq!(memory.verdict(&one), Some(Verdict::Refused("no".into())));
        assert!(
            memory.stale_verdict(&one, stale).is_none(),
            "an explicit no takes it back"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_makes_its_namespace_be_asked_about_again() {
        let mut memory = Memory::new();
        let [one, two, three] = digests().take(3).collect::<Vec<_>>().try_into().unwrap();
        memory.keep_decision(one, 0, "a", &decision(true, true));
        memory.keep_decision(two, 0, "a", &decision(false, true));
        memory.keep_decision(three, 0, "b", &decision(true, true));
        memory.changed(&Change::Namespace("a".into()));
        assert!(memory.decision(&one).is_none() && memory.decision(&two).is_none());
        assert!(memory.decision(&three).is_some());
        let stale = Duration::from_secs(600);
        assert!(memory.stale_decision(&one, stale).is_some());
        // An answer that was asked for before the change: a yes counts where there is no other, a no is not kept.
        memory.keep_decision(one, 0, "a", &decision(true, true));
        assert!(memory.decision(&one).is_none());
        memory.keep_decision(two, 0, "a", &decision(false, true));
        assert!(memory.decision(&two).is_none());
        // A no that is not complete takes nothing back.
        memory.keep_decision(one, 1, "a", &decision(false, false));
        assert!(memory.stale_decision(&one, stale).is_some());
        memory.keep_decision(one, 1, "a", &decision(false, true));
        assert!(memory.stale_decision(&one, stale).is_none());
        assert!(!memory.decision(&one).unwrap().allowed);
        advance(FRESH_DENIAL).await;
        assert!(memory.decision(&one).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_user_is_gone_while_the_api_server_still_proves_it() {
        let mut memory = Memory::new();
        let one = digests().next().unwrap();
        let alice = user("alice");
        memory.keep_verdict(one, 0, &proved(alice.clone()));
        memory.changed(&Change::UserGone("uid-alice".into()));
        assert!(memory.stale_verdict(&one, GONE).is_none());
        assert!(memory.is_gone(&alice) && !memory.is_gone(&user("bob")));
        advance(GONE).await;
        assert!(!memory.is_gone(&alice));
        for number in 0..10_000 {
            memory.changed(&Change::UserGone(number.to_string().into()));
        }
        assert_eq!(memory.gone.len(), MOST_GONE);
    }

    /// Rubbish evicts rubbish only.
    #[tokio::test(start_paused = true)]
    async fn ten_thousand_refused_credentials_evict_no_user() {
        let mut memory = Memory::new();
        let mut digests = digests();
        let users: Vec<_> = digests.by_ref().take(50).collect();
        for digest in &users {
            memory.keep_verdict(*digest, 0, &proved(user("alice")));
        }
        for digest in digests.take(10_000) {
            memory.keep_verdict(digest, 0, &Verdict::Refused("the token is not valid".into()));
        }
        assert!(users.iter().all(|digest| memory.verdict(digest).is_some()));
        let sizes = memory.sizes();
        assert!(sizes[1].1 > 1_000 && sizes[1].1 < 10_000, "{sizes:?}");
    }
}

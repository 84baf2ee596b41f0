//! Asks again about the rights in use: each one from time to time, and at once those that a change may have ended.
//!
//! A no of the API server counts when it comes twice, and both times completely: an API server that has just started
//! knows no binding yet. What is known here, such as the lists of a target, counts at once. A missing answer ends nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep, sleep_until};

use super::decide::{Basis, Rights};
use super::evidence;
use super::grants::Pair;
use super::grants::recheck_queue::{Changes, LONGEST_SLEEP};
use super::options::Mode;
use super::reviewer::{Change, Decision, Verdict};
use super::tickets::check::{Held, ticket_of};
use super::user::{Method, User};
use super::{Access, Rules};
use crate::base::cold::cold;
use crate::net::tls::Tls;

/// The answer of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checked {
    Kept,
    /// The API server says no.
    Denied,
    /// It is known here that the right has ended.
    Ended,
    /// There is no answer, or none that is complete.
    Unknown,
}

impl Access {
    /// Something has changed in the cluster: the rights that it may have ended are asked about again, and those of a user
    /// that was deleted end.
    pub fn changed(&self, change: &Change) {
        self.questions.memory.lock().changed(change);
        if let Change::UserGone(id) = change {
            let pairs = self.pairs.all();
            // The ids of other sources are not the cluster's.
            let is_gone = |user: &User| user.is_of_cluster() && user.uid.as_ref() == Some(id);
            for pair in pairs.iter().filter(|pair| is_gone(&pair.subject.user)) {
                self.end(pair);
            }
            return;
        }
        self.due.add(change);
    }

    /// The lists of targets have changed: what they no longer allow ends at once.
    pub fn user_lists_changed(&self) {
        let rules = self.rules.load_full();
        for pair in self.pairs.all() {
            let rights = Rights::of(&pair.subject.user, &pair.target);
            match rights.basis(rules.options.kubernetes.as_ref()) {
                Basis::Lists(true) => {}
                Basis::Lists(false) | Basis::Nothing => self.end(&pair),
                Basis::Ask(_) => self.due.push(&pair),
            }
        }
    }

    /// The file of users has changed: each password is judged again.
    pub fn users_changed(&self) {
        self.questions.memory.lock().forget_verdicts();
        for pair in self.pairs.all() {
            if pair.subject.user.method == Method::Password {
                self.due.push(&pair);
            }
        }
    }

    /// There is another table of tickets: the tunnels of those that were taken back end at once. One that has expired is left
    /// to `at_expiry`.
    pub fn tickets_changed(&self) {
        let rules = self.rules.load_full();
        for pair in self.pairs.all() {
            match ticket_of(&rules, &pair) {
                Held::Yes(user) if user != pair.subject.user => self.due.push(&pair),
                Held::No => self.end(&pair),
                Held::Yes(_) | Held::Unknown => {}
            }
        }
    }

    /// What client certificates are verified against has changed: the tunnels of those that no longer count end. One that
    /// has expired is left to `at_expiry`.
    pub fn certificates_changed(&self, tls: &Tls) {
        for pair in self.pairs.all() {
            let expires = pair
                .subject
                .certificate
                .as_ref()
                .and_then(|peer| peer.identity.as_ref()?.expires);
            let has_expired = expires.is_some_and(|expires| expires <= SystemTime::now());
            if !pair.subject.is_trusted(tls) && !has_expired {
                self.end(&pair);
            }
        }
    }

    /// The numbers of pairs and of remembered answers, for the metrics.
    pub fn count(&self) {
        self.metrics
            .access_pairs
            .set(i64::try_from(self.pairs.len()).unwrap_or(i64::MAX));
        let sizes = self.questions.memory.lock().sizes();
        for (cache, entries) in sizes {
            self.metrics.access_cache_entries.set([cache], entries);
        }
        let rules = self.rules.load();
        let tickets = rules.sources.tickets.as_ref();
        let (valid, invalid) = tickets.map_or((0, 0), |tickets| tickets.counts());
        self.metrics.access_tickets.set(["valid"], valid);
        self.metrics.access_tickets.set(["invalid"], invalid);
    }

    /// Checks the rights in use for as long as the process runs.
    pub async fn keep_checking(&self) {
        tokio::join!(
            cold(self.follow_changes()),
            cold(self.follow_answers()),
            cold(self.check_periodically()),
            cold(self.check_due()),
            cold(self.check_due()),
            cold(self.check_due()),
            cold(self.check_due()),
        );
    }

    /// Has those pairs checked that changes concern: a moment later, so that changes which come together are one, and once
    /// more, since another API server, or its cache, may have learnt of the change later than the watch.
    async fn follow_changes(&self) {
        let mut again: VecDeque<(Instant, Changes)> = VecDeque::new();
        loop {
            let due = again
                .front()
                .map_or_else(|| Instant::now() + LONGEST_SLEEP, |(due, _)| *due);
            tokio::select! {
                () = self.due.changed() => {
                    let changes = self.due.take_changes().await;
                    self.sweep(&changes);
                    again.push_back((Instant::now() + AGAIN, changes));
                }
                () = sleep_until(due) => {
                    if let Some((_, changes)) = again.pop_front_if(|(due, _)| *due <= Instant::now()) {
                        let mut memory = self.questions.memory.lock();
                        changes.iter().for_each(|change| memory.changed(&change));
                        drop(memory);
                        self.sweep(&changes);
                    }
                }
            }
        }
    }

    /// Has those pairs checked that have no answer, whenever the API server answers again.
    async fn follow_answers(&self) {
        loop {
            self.questions.rights_answered().await;
            // Also of those that are being asked about.
            for pair in self.pairs.all() {
                pair.answered(true);
            }
            self.due.push_all_unanswered();
        }
    }

    fn sweep(&self, changes: &Changes) {
        for pair in self.pairs.all().iter().filter(|pair| changes.concerns(pair)) {
            self.due.push(pair);
        }
    }

    /// Has each pair checked once in the interval, evenly, and not more than five a second: each check is up to two
    /// questions.
    async fn check_periodically(&self) {
        let mut credit = 0.0;
        loop {
            self.pairs.wait().await;
            let rules = self.rules.load_full();
            let interval = rules.options.kubernetes.as_ref().map_or(FALLBACK, |own| own.recheck);
            let each = interval.div_f64(self.pairs.len().max(1) as f64).max(SHORTEST_STEP);
            let step = each.min(LONGEST_STEP);
            drop(rules);
            sleep(step).await;
            credit += step.as_secs_f64() / each.as_secs_f64();
            if credit >= 0.999 {
                credit = 0.0;
                if let Some(pair) = self.pairs.next() {
                    self.due.push(&pair);
                }
            }
        }
    }

    async fn check_due(&self) {
        loop {
            let (pair, was_denied) = self.due.next().await;
            pair.begins_check();
            if pair.has_ended() {
                continue;
            }
            let rules = self.rules.load_full();
            let checked = self.check(&rules, &pair, was_denied).await;
            let unanswered = pair.answered(checked != Checked::Unknown);
            let result = match checked {
                Checked::Kept => "kept",
                Checked::Unknown => {
                    let was_asked = !self.questions.are_rights_suspended();
                    self.due.push_unanswered(&pair, unanswered, was_asked);
                    "unknown"
                }
                Checked::Denied if !was_denied => {
                    self.due.push_denied(&pair);
                    "denied"
                }
                Checked::Denied | Checked::Ended => {
                    self.end(&pair);
                    "ended"
                }
            };
            self.metrics.access_rechecks.count([result]);
        }
    }

    fn end(&self, pair: &Pair) {
        if self.mode() == Mode::Enforce && !pair.has_ended() {
            tracing::debug!(user = %evidence::brief(&pair.subject.user.name), target = %pair.target.id(), "a right ends");
            pair.end();
        }
    }

    async fn check(&self, rules: &Arc<Rules>, pair: &Pair, was_denied: bool) -> Checked {
        let proved = match self.prove_again(rules, pair).await {
            Ok(proved) => proved,
            Err(checked) => return checked,
        };
        let user = proved.as_ref().unwrap_or(&pair.subject.user);
        let action = match Rights::of(user, &pair.target).basis(rules.options.kubernetes.as_ref()) {
            Basis::Lists(true) => return Checked::Kept,
            Basis::Lists(false) | Basis::Nothing => return Checked::Ended,
            Basis::Ask(action) => action,
        };
        // Another pair of the same user may just have been asked about. A denial is asked about twice.
        let remembered = || {
            let digest = self.questions.key.right(user, &action);
            self.questions.memory.lock().decision(&digest)
        };
        let decision = match remembered().filter(|_| !was_denied) {
            Some(decision) => Ok(decision),
            None => self.questions.decide(rules, user, &action).await,
        };
        match decision {
            Ok(Decision { allowed: true, .. }) => Checked::Kept,
            Ok(Decision { complete: true, .. }) => Checked::Denied,
            Ok(Decision { complete: false, .. }) => Checked::Unknown,
            Err(_) => {
                self.questions.probe_rights(rules);
                Checked::Unknown
            }
        }
    }

    /// The user that the credential proves now; `None` if there is no credential, if it has expired, or without an answer.
    async fn prove_again(&self, rules: &Arc<Rules>, pair: &Pair) -> Result<Option<Arc<User>>, Checked> {
        let subject = &pair.subject;
        let Some(credential) = &subject.credential else {
            return Ok(None);
        };
        // A credential that has expired proves nothing, and has not been taken back: that is left to `at_expiry`.
        // By either clock, and a little before: that of the API server may be ahead.
        let nearly = SystemTime::now() + SKEW;
        let is_over = subject.expires.is_some_and(|expires| expires <= Instant::now());
        if is_over || subject.user.expires.is_some_and(|expires| expires <= nearly) {
            return Ok(None);
        }
        if subject.user.method == Method::Ticket {
            return match ticket_of(rules, pair) {
                Held::Yes(user) => Ok(Some(user)),
                Held::No => Err(Checked::Ended),
                Held::Unknown => Ok(None),
            };
        }
        let credential = if subject.user.method == Method::Password {
            // The user may have left the file, or there may be no file any more.
            let users = rules.sources.users.as_ref();
            if !users.is_some_and(|users| users.contains(&subject.user.name)) {
                return Err(Checked::Ended);
            }
            credential.clone()
        } else {
            rules.sources.normalized(credential)
        };
        let half = rules.options.kubernetes.as_ref().map_or(FALLBACK, |own| own.recheck) / 2;
        let digest = self.questions.key.credential(&credential, subject.client);
        let remembered = self.questions.memory.lock().stale_verdict(&digest, half);
        let verdict = match remembered {
            Some(verdict) => Ok(verdict),
            None => self.questions.prove(rules, &credential, subject.client).await,
        };
        match verdict {
            Ok(Verdict::Proved(user)) if user.name == subject.user.name && evidence::check(&user).is_ok() => {
                Ok(Some(user))
            }
            Ok(Verdict::Proved(_) | Verdict::Refused(_)) => Err(Checked::Denied),
            Err(_) => Ok(None),
        }
    }
}

/// The time after which a change is looked at once more.
const AGAIN: Duration = Duration::from_secs(2);
/// The most that two clocks differ.
const SKEW: Duration = Duration::from_secs(60);
/// The interval of rechecks without `access.kubernetes`.
const FALLBACK: Duration = Duration::from_mins(5);
const SHORTEST_STEP: Duration = Duration::from_millis(200);
const LONGEST_STEP: Duration = Duration::from_secs(1);

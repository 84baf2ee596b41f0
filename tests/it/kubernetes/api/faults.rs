//! The faults that a scenario wants of the fake API server: which requests fail, and how.

use std::collections::HashMap;
use std::time::Duration;

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    /// The first page of a list.
    List,
    /// A later page.
    Page,
    Watch,
    /// One object, or a write.
    Other,
    /// A TokenReview.
    TokenReview,
    /// A SubjectAccessReview.
    AccessReview,
}

/// The fault of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// That status, with a `Status` object that says so.
    Status(u16),
    /// 429 from the server's own overload protection: a text body and Retry-After.
    TooMany,
    /// The same with that many seconds in Retry-After, where the other has 1.
    TooManyFor(u32),
    /// 410: for a list as a status, for a watch as an event within a 200.
    Expired,
    /// The answer takes that long to begin.
    Slow(Duration),
    /// The answer never begins.
    Hang,
    /// The answer ends within its body, and the connection with it.
    CutBody,
    /// A success with this body.
    Body(&'static str),
    /// A success with a body of that many bytes.
    Long(usize),
}

/// The end of every open watch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// As when its time is over.
    End,
    /// In the middle of a line, and the connection with it.
    MidLine,
    /// With an ERROR event 410.
    Expired,
    /// With a line that is no JSON.
    Garbage,
}

/// The rules in force, and how many requests there were.
#[derive(Debug, Default)]
pub(crate) struct Script {
    rules: Vec<Rule>,
    seen: HashMap<Verb, usize>,
}

#[derive(Debug)]
struct Rule {
    verb: Verb,
    fault: Fault,
    times: usize,
}

impl Script {
    pub(crate) fn fail(&mut self, verb: Verb, fault: Fault, times: usize) {
        self.rules.push(Rule { verb, fault, times });
    }

    /// Instead of all rules.
    pub(crate) fn fail_only(&mut self, verb: Verb, fault: Fault, times: usize) {
        self.rules = vec![Rule { verb, fault, times }];
    }

    pub(crate) fn heal(&mut self) {
        self.rules.clear();
    }

    /// The number of requests of that kind so far.
    pub(crate) fn seen(&self, verb: Verb) -> usize {
        self.seen.get(&verb).copied().unwrap_or_default()
    }

    /// Counts a request, and says how it fails.
    pub(crate) fn next(&mut self, verb: Verb) -> Option<Fault> {
        *self.seen.entry(verb).or_default() += 1;
        let rule = self.rules.iter_mut().find(|rule| rule.verb == verb && rule.times > 0)?;
        rule.times -= 1;
        Some(rule.fault)
    }
}

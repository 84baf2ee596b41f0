//! What an operator should know of a file that is used all the same: an expired certificate, a list that is not used.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use x509_parser::certificate::X509Certificate;

use super::files::{FileFault, Part};
use crate::net::x509::names::distinguished;

/// One remark about a file, and when it is true.
#[derive(Clone, Debug)]
pub(super) struct Caution {
    remark: FileFault,
    applies: Applies,
}

/// Seconds since 1970.
#[derive(Clone, Copy, Debug)]
enum Applies {
    Always,
    Before(i64),
    From(i64),
}

/// A file, by its key and its path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) part: Part,
    pub(super) path: &'a Path,
}

impl Caution {
    /// One that is true at any time.
    pub(super) fn always(place: Place<'_>, line: usize, reason: &str) -> Self {
        Self::new(place, line, reason, Applies::Always)
    }

    /// One that becomes true at that time.
    pub(super) fn from(time: i64, place: Place<'_>, line: usize, reason: &str) -> Self {
        Self::new(place, line, reason, Applies::From(time))
    }

    fn new(Place { part, path }: Place<'_>, line: usize, reason: &str, applies: Applies) -> Self {
        let (path, reason) = (path.to_owned(), format!("line {line}: {reason}"));
        Self {
            remark: FileFault { part, path, reason },
            applies,
        }
    }

    /// Those of one certificate: before its time, and after.
    pub(super) fn of_dates(certificate: &X509Certificate<'_>, place: Place<'_>, line: usize) -> [Self; 2] {
        let name = distinguished(certificate.subject());
        let validity = certificate.validity();
        let (begin, end) = (validity.not_before, validity.not_after);
        let early = format!("the certificate of {name} is not valid yet: it begins on {begin}");
        let late = format!("the certificate of {name} has expired: it ended on {end}");
        [
            Self::new(place, line, &early, Applies::Before(begin.timestamp())),
            // It is still valid in its last second (RFC 5280 section 4.1.2.5).
            Self::new(place, line, &late, Applies::From(end.timestamp().saturating_add(1))),
        ]
    }

    /// The remark, if it is true at that time.
    pub(super) fn at(&self, now: i64) -> Option<&FileFault> {
        let applies = match self.applies {
            Applies::Always => true,
            Applies::Before(time) => now < time,
            Applies::From(time) => now >= time,
        };
        applies.then_some(&self.remark)
    }
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

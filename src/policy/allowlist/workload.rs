//! The workload behind a Service, as its annotations name it.

use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::base::values::{is_label, is_object_name, moment};

/// The workload that runs the pods of a Service, in its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// The name of its kind, which may be unknown.
    pub kind: Box<str>,
    /// Its name, which is valid in Kubernetes.
    pub name: Box<str>,
}

/// Parses `kind/name`, such as `statefulset/devbox`.
impl FromStr for Workload {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((kind, name)) if is_label(kind) && is_object_name(name) => Ok(Self {
                kind: kind.into(),
                name: name.into(),
            }),
            _ => Err("expected KIND/NAME, such as `statefulset/devbox`"),
        }
    }
}

/// Prints `kind/name`.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// A stop of a Service by its owner: it takes no new tunnel, and nothing is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// For as long as the annotation is there.
    Indefinite,
    /// Until that moment.
    Until(SystemTime),
}

impl Stop {
    /// Returns whether the stop is over at that moment.
    pub fn is_over(self, now: SystemTime) -> bool {
        matches!(self, Self::Until(end) if end <= now)
    }
}

/// Parses `true`, or `until` and a moment of RFC 3339.
impl FromStr for Stop {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let until = text.strip_prefix("until ").and_then(|end| moment(end.trim_start()));
        // A snapshot can hold no earlier time.
        let until = until.map(|end| end.max(UNIX_EPOCH));
        match text {
            "true" => Ok(Self::Indefinite),
            _ => until
                .map(Self::Until)
                .ok_or("expected `true`, or `until 2027-01-15T09:00:00Z`"),
        }
    }
}

/// Prints the end of the sentence that something was stopped.
impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Indefinite => f.write_str("by its owner"),
            Self::Until(end) => write!(f, "by its owner until {}", humantime::format_rfc3339_seconds(*end)),
        }
    }
}

/// The workloads that a Service names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workloads {
    /// The one that a request starts.
    pub wake: Option<Workload>,
    /// The one to which activity is reported.
    pub report_activity: Option<Workload>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_has_a_kind_and_a_name_that_leads_nowhere_else() {
        for text in ["statefulset/devbox", "deployment/a.b", "my-kind/x-1"] {
            assert_eq!(text.parse::<Workload>().unwrap().to_string(), text);
        }
        let long = format!("notebook/{}", "x".repeat(254));
        for text in [
            "devbox",
            "a.b/x",
            "/x",
            "statefulset/",
            "StatefulSet/x",
            "notebook/../x",
            "notebook/x/y",
            "notebook/-x",
            "notebook/..",
            &long,
        ] {
            text.parse::<Workload>().unwrap_err();
        }
    }

    #[test]
    fn a_stop_ends_at_a_moment_that_a_snapshot_can_hold() {
        for text in ["until 1969-12-31T23:59:59Z", "until 1970-01-01T00:00:00+14:00"] {
            let stop: Stop = text.parse().unwrap();
            assert_eq!(stop, Stop::Until(UNIX_EPOCH), "{text}");
            serde_json::to_string(&stop).unwrap();
        }
        assert!("until tomorrow".parse::<Stop>().is_err() && "false".parse::<Stop>().is_err());
    }
}

//! The name of a target in requests.

use std::fmt;
use std::str::FromStr;

/// The name of a target: `namespace/service`, or `static/authority`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetName {
    /// The namespace of its Service, or `static`.
    pub namespace: String,
    /// Its Service, or the authority of a static target.
    pub service: String,
}

impl FromStr for TargetName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, service)) if !namespace.is_empty() && !service.is_empty() => Ok(Self {
                namespace: namespace.to_owned(),
                service: service.to_owned(),
            }),
            Some(_) | None => Err("expected `namespace/service`, or `static/name:port`"),
        }
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)
    }
}

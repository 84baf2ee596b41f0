//! What is asked for: which tunnels, in which order, and how many of them.

use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::kubernetes::encoded;

/// A list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Which tunnels; lists of targets and clients are whole.
    pub filter: Filter,
    /// Their order.
    pub sort: Sort,
    /// How many at most; `None` is all of them.
    pub limit: Option<usize>,
}

/// Which tunnels; all that are set must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// `namespace/service`.
    pub target: Option<String>,
    /// An address.
    pub client: Option<IpAddr>,
    /// The name of a user.
    pub user: Option<String>,
    /// The node of the target.
    pub node: Option<String>,
}

/// The order of tunnels, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// Bytes of both directions.
    Bytes,
    /// Bytes a second of both directions.
    Rate,
    /// The time since the beginning.
    #[default]
    Age,
    /// The time without a byte.
    Idle,
}

impl Sort {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Bytes, Self::Rate, Self::Age, Self::Idle];

    /// Its name.
    pub fn label(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Rate => "rate",
            Self::Age => "age",
            Self::Idle => "idle",
        }
    }
}

impl FromStr for Sort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|sort| sort.label() == text);
        found.ok_or("expected `bytes`, `rate`, `age` or `idle`")
    }
}

impl Filter {
    /// Whether it admits all tunnels.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The query of a URL, with its question mark; empty without a filter.
    pub(super) fn query(&self) -> String {
        let client = self.client.map(|client| client.to_string());
        let fields = [
            ("target", &self.target),
            ("client", &client),
            ("user", &self.user),
            ("node", &self.node),
        ];
        let fields = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let fields: Vec<_> = fields
            .map(|(name, value)| format!("{name}={}", encoded(value)))
            .collect();
        match fields.is_empty() {
            true => String::new(),
            false => format!("?{}", fields.join("&")),
        }
    }
}

/// Items of one answer at most.
pub(super) const LARGEST_PART: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_filter_are_encoded() {
        let filter = Filter {
            target: Some("static/a:22".into()),
            client: Some("2001:db8::1".parse().unwrap()),
            user: Some("a&b=c ü".into()),
            node: Some("n".into()),
        };
        assert_eq!(
            filter.query(),
            "?target=static%2Fa%3A22&client=2001%3Adb8%3A%3A1&user=a%26b%3Dc%20%C3%BC&node=n"
        );
        assert_eq!(Filter::default().query(), "");
    }
}

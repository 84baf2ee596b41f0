//! The registration of an anchor that dials the proxy: an HTTP/1.1 upgrade, then HTTP/2 with swapped roles.
//!
//! The anchor sends `GET /.well-known/switchboard/anchor/NAME:PORT` with `Upgrade: switchboard-anchor` (RFC 9110
//! section 7.8), and authenticates as a client does. After the 101 the proxy is the HTTP/2 client: each of its CONNECTs
//! is a tunnel, and its POSTs announce other replicas and a drain.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// The path of a registration, up to the authority that the anchor serves.
pub const PATH: &str = "/.well-known/switchboard/anchor/";
/// The protocol in the field `Upgrade`.
pub const UPGRADE: &str = "switchboard-anchor";
/// The field of the 101 with the id of the replica that answers.
pub const REPLICA_FIELD: &str = "switchboard-replica";
/// The field of the 101, and of a POST to [`REPLICAS_PATH`], with the [`ReplicaList`].
pub const REPLICAS_FIELD: &str = "switchboard-replicas";
/// The path of the POST that sends a changed list.
pub const REPLICAS_PATH: &str = "/replicas";
/// The path of the POST that announces a drain: the anchor has to dial another connection for new streams.
pub const DRAINING_PATH: &str = "/draining";

/// The replicas that an anchor has to be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaList {
    /// A number of replicas whose ids are not known.
    Count(NonZeroU32),
    /// The replicas with these ids.
    Ids(BTreeSet<Box<str>>),
}

/// The error for a field that is not a list of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of replicas, or at most {MAX_IDS} ids")]
pub struct BadReplicaList;

impl ReplicaList {
    /// Replaces the list with the first 32 valid ids, if there are any. Returns whether the list has changed.
    pub fn replace(&mut self, ids: BTreeSet<Box<str>>) -> bool {
        let ids: BTreeSet<_> = ids.into_iter().filter(|id| is_id(id)).take(MAX_IDS).collect();
        let list = Self::Ids(ids);
        let is_new = list.len() > 0 && *self != list;
        if is_new {
            *self = list;
        }
        is_new
    }

    /// Returns the ids; none for a count.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let ids = match self {
            Self::Count(_) => None,
            Self::Ids(ids) => Some(ids),
        };
        ids.into_iter().flatten().map(AsRef::as_ref)
    }

    /// Returns the number of replicas.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a count is never 0, and a parsed list never empty"
    )]
    pub fn len(&self) -> usize {
        match self {
            Self::Count(count) => usize::try_from(count.get()).unwrap_or(usize::MAX),
            Self::Ids(ids) => ids.len(),
        }
    }
}

/// Prints the number, or the ids with commas between them.
impl fmt::Display for ReplicaList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Ids(ids) => {
                let ids: Vec<&str> = ids.iter().map(AsRef::as_ref).collect();
                f.write_str(&ids.join(","))
            }
        }
    }
}

/// Parses a count, or ids with commas between them. A number is no [id](is_id).
impl FromStr for ReplicaList {
    type Err = BadReplicaList;

    fn from_str(text: &str) -> Result<Self, BadReplicaList> {
        if let Ok(count) = text.trim().parse() {
            return Ok(Self::Count(count));
        }
        let ids: BTreeSet<Box<str>> = text.split(',').map(|id| id.trim().into()).collect();
        let are_ids = ids.len() <= MAX_IDS && ids.iter().all(|id| is_id(id));
        if are_ids {
            Ok(Self::Ids(ids))
        } else {
            Err(BadReplicaList)
        }
    }
}

/// Returns whether the text can be the id of a replica: the name of a pod or a host, but not a number.
pub fn is_id(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=MAX_ID_BYTES).contains(&text.len())
        && text.bytes().all(is_name)
        && text.bytes().any(|byte| !byte.is_ascii_digit())
}

/// Maximum number of ids in a list: twice the connections of an anchor. They fit into a head.
const MAX_IDS: usize = 32;
/// The maximum number of bytes of an id (RFC 1123: 253 of a name).
const MAX_ID_BYTES: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_printed_as_it_is_read() {
        for (text, len) in [("3", 3), ("ingress-7c-x2,ingress-7c-z9", 2), ("a", 1)] {
            let list: ReplicaList = text.parse().unwrap();
            assert_eq!((list.to_string().as_str(), list.len()), (text, len));
        }
        assert_eq!("b, a".parse::<ReplicaList>().unwrap().to_string(), "a,b");
        let long = "x".repeat(254);
        let many = (0..33).map(|id| format!("r{id}")).collect::<Vec<_>>().join(",");
        for text in ["", "0", "a,,b", "a b", "1,2", "\u{e4}", &long, &many] {
            assert_eq!(text.parse::<ReplicaList>(), Err(BadReplicaList), "{text}");
        }
    }
}

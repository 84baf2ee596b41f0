//! Public keys of users in a Secret of the cluster, which operators write. While its watch fails, the keys stay as they were, but
//! after 5 s none of them opens a new tunnel.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

use super::entry::{Entry, UNKNOWN_KEY};
use crate::base::text::excerpt;
use crate::policy::access::files::followed_file::LineFaults;
use crate::protocol::host_key::HostKey;

/// The keys of a Secret in effect.
#[derive(Debug)]
pub struct KeySecret {
    /// The beginning of the users' names, which the Secret leaves out.
    prefix: Box<str>,
    /// `None` before the Secret was listed; until then a missing key proves nothing.
    entries: ArcSwapOption<BTreeMap<Box<str>, Entry>>,
    /// The number of tables so far.
    changed: watch::Sender<u64>,
}

impl KeySecret {
    /// Creates a table that has not been listed.
    pub fn new(prefix: Option<Box<str>>) -> Self {
        Self {
            prefix: prefix.unwrap_or_default(),
            entries: ArcSwapOption::empty(),
            changed: watch::Sender::new(0),
        }
    }

    /// Returns the number of tables so far: a change means that keys may have been revoked.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns a name of the Secret with the prefix.
    pub(in crate::policy::access) fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns whether the Secret has been listed.
    pub(in crate::policy::access) fn is_listed(&self) -> bool {
        self.entries.load().is_some()
    }

    /// Returns whether a user has a key.
    pub(in crate::policy::access) fn has_keys(&self) -> bool {
        let entries = self.entries.load();
        let mut entries = entries.iter().flat_map(|entries| entries.values());
        entries.any(|entry| !entry.keys.is_empty())
    }

    /// Returns when a key of a user expires, or has expired.
    ///
    /// # Errors
    /// The key is not the user's, or not for that client.
    pub(in crate::policy::access) fn expiry(
        &self,
        user: &str,
        key: &HostKey,
        client: IpAddr,
    ) -> Result<Option<SystemTime>, &'static str> {
        let entries = self.entries.load();
        let entry = entries.as_ref().and_then(|entries| entries.get(user));
        entry.ok_or(UNKNOWN_KEY)?.expiry(key, client)
    }

    /// Replaces the keys by the data of the Secret, a user with lines of `authorized_keys` each; no data revokes all of them.
    /// Returns the errors of invalid lines, which are left out: of each user the first 20, and how many more there are.
    pub fn replace(&self, data: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
        let (mut entries, mut faults) = (BTreeMap::<Box<str>, Entry>::new(), Vec::new());
        for (name, value) in data {
            let entry = entries.entry(name.as_str().into()).or_default();
            let text = String::from_utf8_lossy(value);
            let mut of_lines = LineFaults::default();
            for (number, line) in (1..).zip(text.lines().map(str::trim)) {
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                if let Err(reason) = entry.add_key(line) {
                    of_lines.add(number, reason);
                }
            }
            let of_lines = of_lines.into_result().err().unwrap_or_default();
            faults.extend(of_lines.iter().map(|fault| format!("{}: {fault}", excerpt(name, 64))));
        }
        self.entries.store(Some(entries.into()));
        self.changed.send_modify(|tables| *tables += 1);
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEIPB3+pKidx74UYm+ucPHbqNjjkwTws4ffeZFtYGzob";

    #[test]
    fn a_line_that_is_invalid_is_left_out_and_named() {
        let (secret, key) = (KeySecret::new(Some("ssh:".into())), KEY.parse().unwrap());
        let client = IpAddr::from([10, 1, 2, 3]);
        assert!(!secret.is_listed() && !secret.has_keys());
        let replace = |data: &[(&str, &str)]| {
            let entry = |(name, lines): &(&str, &str)| ((*name).to_owned(), lines.as_bytes().to_vec());
            secret.replace(&data.iter().map(entry).collect())
        };
        let wrong = format!("no-pty {KEY}\n$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu\n\u{fffd}");
        let faults = replace(&[
            ("alice", &format!("# her phone\n\n  {KEY} phone\r\n{KEY} again\n")),
            ("bob", &format!("from=\"192.0.2.1\" {KEY}")),
            ("carol", &wrong),
            ("dave", &format!("expiry-time=\"20200101\" {KEY}")),
        ]);
        assert_eq!(faults.len(), 4, "{faults:?}");
        assert_eq!(faults[0], "alice: line 4: the user has this key already");
        assert!(
            faults[1].starts_with("carol: line 1: it is neither a hash nor a public key"),
            "{faults:?}"
        );
        assert!(secret.is_listed() && secret.has_keys());
        let expiry = |name| secret.expiry(name, &key, client);
        assert_eq!(expiry("alice"), Ok(None));
        assert_eq!(expiry("bob"), Err("the key is not accepted from this address"));
        assert_eq!(expiry("carol"), Err(UNKNOWN_KEY));
        assert_eq!(expiry("nobody"), Err(UNKNOWN_KEY));
        assert!(
            expiry("dave")
                .unwrap()
                .is_some_and(|expires| expires < SystemTime::now())
        );
        assert_eq!(secret.full_name("alice"), "ssh:alice");
        let endless = "x\n".repeat(10_000);
        let faults = replace(&[("alice", &endless)]);
        assert_eq!((faults.len(), &*faults[20]), (21, "alice: and 9980 more errors"));
        let before = *secret.changed().borrow();
        assert!(replace(&[]).is_empty() && !secret.has_keys());
        assert_eq!(expiry("alice"), Err(UNKNOWN_KEY));
        assert_eq!(*secret.changed().borrow(), before + 1);
    }
}

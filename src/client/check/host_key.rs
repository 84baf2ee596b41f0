//! The step `host key` of a check: the keys that are published, and those that the user's own known_hosts has.

use std::path::Path;

use crate::client::known_hosts;
use crate::client::ssh_config::ConfigPaths;
use crate::protocol::host_key::{HostKey, PublishedKeys};

/// Returns a line for each published key of a name, or the one that there is none.
pub(super) fn step(name: &str, published: Option<&PublishedKeys>) -> String {
    let Some(PublishedKeys { source, keys }) = published else {
        return format!("{STEP}{NOT_PUBLISHED}: ssh asks for it at the first login\n");
    };
    let file = ConfigPaths::of_user().map(|paths| paths.config.with_file_name("known_hosts"));
    let known = file.as_deref().map(|file| find(name, file)).unwrap_or_default();
    let own = file.unwrap_or_default();
    let line = |key: &HostKey| {
        let same_kind = known.iter().filter(|(_, other)| other.kind() == key.kind());
        let (same, others): (Vec<_>, Vec<_>) = same_kind.partition(|(_, other)| other == key);
        let compared = match (same.first(), others.first()) {
            (Some((line, _)), _) => format!(", and line {line} of {}", own.display()),
            (None, Some((line, _))) => format!(
                "; line {line} of {} has another one: compare them, and remove it by `ssh-keygen -R '{name}'`",
                own.display()
            ),
            (None, None) => String::new(),
        };
        let (kind, fingerprint) = (key.kind(), key.fingerprint());
        format!("{STEP}{kind} {fingerprint}, as {} says{compared}\n", source.publisher())
    };
    keys.iter().map(line).collect()
}

/// Returns the keys of a name in a file, with their lines.
fn find(name: &str, file: &Path) -> Vec<(usize, HostKey)> {
    let found = known_hosts::find(name, file);
    let text = found.map(|found| String::from_utf8_lossy(&found.stdout).into_owned());
    let text = text.unwrap_or_default();
    let mut keys = Vec::new();
    let mut number = None;
    for line in text.lines() {
        if let Some((_, place)) = line
            .strip_prefix("# Host ")
            .and_then(|line| line.split_once("found: line "))
        {
            number = place.split(' ').next().and_then(|number| number.parse().ok());
        } else if let (Some(number), Some((_, key))) = (number, line.split_once(' ')) {
            keys.extend(key.parse().ok().map(|key| (number, key)));
        }
    }
    keys
}

/// The sentence for a target without published keys.
pub(super) const NOT_PUBLISHED: &str = "no host key is published";
const STEP: &str = "ok     host key  ";

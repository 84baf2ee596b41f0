//! Concrete `Host` lines for names, for programs that show neither patterns nor lines without an option. The way to the names is
//! that of an installed block.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::install::ConfigPaths;

/// Names, each with its lines of ssh_config(5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames(BTreeMap<String, String>);

impl HostNames {
    /// Adds a name, unless it has lines already.
    pub fn add(&mut self, host: &str, port: u16) {
        let port = match port {
            22 => String::new(),
            port => format!("    Port {port}\n"),
        };
        let lines = || format!("{HOST}{host}\n    HostName {host}\n{port}");
        self.0.entry(host.to_owned()).or_insert_with(lines);
    }

    /// Returns the names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Replaces the names that were installed under this title. If the new ones are not all, the former ones stay beside them.
    /// Returns the files that have changed.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn install(mut self, paths: &ConfigPaths, title: &[String], are_all: bool) -> anyhow::Result<Vec<PathBuf>> {
        if are_all && self.0.is_empty() {
            return paths.remove(title);
        }
        paths.install_next(title, HEADER, false, |former| {
            for block in former.split(HOST).skip(1).filter(|_| !are_all) {
                let host = block.lines().next().unwrap_or_default();
                self.0
                    .entry(host.to_owned())
                    .or_insert_with(|| format!("{HOST}{block}"));
            }
            self.0.into_values().collect()
        })
    }
}

/// The line before the names.
const HEADER: &str = "# Written by `switchboard ls --write`, which replaces this file.\n";
/// The beginning of a name's lines.
const HOST: &str = "Host ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_gone_are_taken_away_unless_others_may_be_missing() {
        let home = tempfile::tempdir().unwrap();
        let paths = ConfigPaths {
            config: home.path().join(".ssh/config"),
            is_default: true,
        };
        let title = ["names_of_p_443".to_owned()];
        let install = |names: &[(&str, u16)], are_all| {
            let mut hosts = HostNames::default();
            names.iter().for_each(|(host, port)| hosts.add(host, *port));
            hosts.install(&paths, &title, are_all).unwrap();
            paths.block(&title).unwrap()
        };
        let [a, b] = ["a", "b"].map(|name| format!("Host {name}.x\n    HostName {name}.x\n"));
        let text = install(&[("b.x", 22), ("a.x", 22), ("a.x", 2222)], true);
        assert!(text.ends_with(&format!("\n{a}{b}")), "{text}");
        let text = install(&[("c.x", 2222)], false);
        assert!(
            text.ends_with(&format!("\n{a}{b}Host c.x\n    HostName c.x\n    Port 2222\n")),
            "{text}"
        );
        let text = install(&[("b.x", 22)], true);
        assert!(text.ends_with(&format!("\n{b}")) && !text.contains(&a), "{text}");
        assert_eq!(install(&[], true), "");
        assert!(!std::fs::read_to_string(&paths.config).unwrap().contains("Include"));
    }

    #[test]
    fn programs_that_add_names_at_once_lose_none() {
        let home = tempfile::tempdir().unwrap();
        let paths = &ConfigPaths {
            config: home.path().join(".ssh/config"),
            is_default: true,
        };
        let title = &["names_of_p_443".to_owned()];
        std::thread::scope(|scope| {
            for number in 0..20 {
                scope.spawn(move || {
                    let mut hosts = HostNames::default();
                    hosts.add(&format!("a{number}.x"), 22);
                    hosts.install(paths, title, false).unwrap();
                });
            }
        });
        assert_eq!(paths.block(title).unwrap().matches(HOST).count(), 20);
    }
}

//! What is wrong with a configuration: every fault with its line, its key and the reason.

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;

/// One fault of a configuration. Prints as `line 12: limits.tunnel.download: expected …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, counted from 1; `None` when it is the file as a whole.
    pub line: Option<u64>,
    /// What, as a dotted path such as `allowlist.static[2].addresses[0]`; empty when it is no single key.
    pub key: String,
    /// Why, and what is expected in its place.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.reason)
    }
}

/// Every fault of one configuration: at least one, in the order of their lines. Prints one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// The faults, first line first.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Faults {
    type Item = &'a Fault;
    type IntoIter = std::slice::Iter<'a, Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Why a configuration file gives no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It could not be opened or read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It was read, and is wrong.
    #[error("{} is not a configuration", path.display())]
    Faulty {
        /// The file.
        path: PathBuf,
        /// Everything that is wrong with it.
        #[source]
        faults: Faults,
    },
}

/// Where the faults of one file gather while it is read: one fault never hides another.
#[derive(Debug, Default)]
pub(super) struct Gathered(RefCell<Vec<Fault>>);

impl Gathered {
    /// Adds one.
    pub(super) fn push(&self, line: Option<u64>, key: &str, reason: impl Into<String>) {
        self.0.borrow_mut().push(Fault {
            line,
            key: key.to_owned(),
            reason: reason.into(),
        });
    }

    /// How many there are so far.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// The value if there were no faults, else the faults.
    pub(super) fn or<T>(self, value: T) -> Result<T, Faults> {
        let mut faults = self.0.into_inner();
        if faults.is_empty() {
            return Ok(value);
        }
        // Stable: the faults of one line keep the order in which they were found.
        faults.sort_by_key(|fault| fault.line);
        Err(Faults(faults))
    }
}

/// A value of the file as a fault may show it: short, and unable to steer a terminal.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => escaped(text.get(..end).unwrap_or_default()) + "…",
        None => escaped(text),
    }
}

/// A text without control characters and other unprintable ones.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => escaped.push(character),
            _ => escaped.extend(character.escape_debug()),
        }
    }
    escaped
}

const LONGEST_SHOWN: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_print_in_the_order_of_their_lines() {
        let gathered = Gathered::default();
        gathered.push(Some(12), "limits.tunnel.download", "too large");
        gathered.push(Some(3), "admin", "first");
        gathered.push(Some(3), "admin", "second");
        gathered.push(None, "", "larger than 1 MiB");
        assert_eq!(
            gathered.or(()).unwrap_err().to_string(),
            "larger than 1 MiB\nline 3: admin: first\nline 3: admin: second\n\
             line 12: limits.tunnel.download: too large"
        );
    }

    #[test]
    fn a_text_is_shown_short_and_harmless() {
        assert_eq!(shown("10 \"MiB\"/s"), "10 \"MiB\"/s");
        assert_eq!(shown("\u{1b}[31m\n\u{202e}"), "\\u{1b}[31m\\n\\u{202e}");
        assert_eq!(shown(&"x".repeat(61)), format!("{}…", "x".repeat(60)));
    }
}

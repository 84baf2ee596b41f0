//! The faults of a configuration: each has a line, a key and a reason, and all of a file are reported at once.

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;

/// One fault of a configuration. Prints as `line 12: limits.tunnel.download: expected …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line of the file, counted from 1; `None` for a fault of the file as a whole.
    pub line: Option<u64>,
    /// The dotted path of the value, such as `allowlist.static[2].addresses[0]`; empty for a fault of no single value.
    pub key: String,
    /// The reason, and what was expected instead.
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

/// All faults of one configuration: at least one, in the order of their lines. Prints one a line.
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

/// The reason why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be opened or read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file was read and has faults.
    #[error("{} is not a configuration", path.display())]
    Faulty {
        /// The file.
        path: PathBuf,
        /// All faults of the file.
        #[source]
        faults: Faults,
    },
}

/// The faults found so far while a file is read. Readers share it and go on after a fault, so that none hides another.
#[derive(Debug, Default)]
pub(super) struct FaultCollector(RefCell<Vec<Fault>>);

impl FaultCollector {
    /// Adds a fault.
    pub(super) fn push(&self, line: Option<u64>, key: &str, reason: impl Into<String>) {
        self.0.borrow_mut().push(Fault {
            line,
            key: key.to_owned(),
            reason: reason.into(),
        });
    }

    /// The number of faults so far.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// The value of a file without faults.
    ///
    /// # Errors
    /// The faults, first line first.
    pub(super) fn finish<T>(self, value: T) -> Result<T, Faults> {
        let mut faults = self.0.into_inner();
        if faults.is_empty() {
            return Ok(value);
        }
        // Stable: the faults of one line keep the order in which they were found.
        faults.sort_by_key(|fault| fault.line);
        Err(Faults(faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_print_in_the_order_of_their_lines() {
        let faults = FaultCollector::default();
        faults.push(Some(12), "limits.tunnel.download", "too large");
        faults.push(Some(3), "admin", "first");
        faults.push(Some(3), "admin", "second");
        faults.push(None, "", "larger than 1 MiB");
        assert_eq!(
            faults.finish(()).unwrap_err().to_string(),
            "larger than 1 MiB\nline 3: admin: first\nline 3: admin: second\n\
             line 12: limits.tunnel.download: too large"
        );
    }
}

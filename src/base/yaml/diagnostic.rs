//! The diagnostics of a configuration: each has a severity, a position, a key and a message. The readers go on after a
//! fault, so that a file's faults are reported at once; a YAML syntax error hides what follows it.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use crate::base::text::escaped;

/// The weight of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration is accepted, and probably does not do what its author wants.
    Warning,
    /// The configuration is accepted; its author may want to know.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// A place in the text of a file. Prints as `LINE:COLUMN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line, counted from 1.
    pub line: u64,
    /// The column in characters, counted from 1.
    pub column: u64,
}

impl Position {
    /// The first character of a file, for what is wrong with the file as a whole.
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// One diagnostic of a configuration. Prints as `12:15: error: limits.tunnel.download: expected …`, and with `{:#}` without its
/// severity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its weight.
    pub severity: Severity,
    /// Its place in the file; `None` where no text was read, and for a flag.
    pub position: Option<Position>,
    /// The dotted path of the value, such as `allowlist.static[2].addresses[0]`; empty for a diagnostic of no single value.
    pub key: String,
    /// The reason, and what was expected instead.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = self.position {
            write!(f, "{position}: ")?;
        }
        if !f.alternate() {
            write!(f, "{}: ", self.severity)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// All diagnostics of one configuration, in the order of their positions. Prints one a line, each with the file:
/// `switchboard.yaml:12:15: error: limits.tunnel.download: expected …`.
///
/// A refused configuration's report is its error: it has at least one diagnostic of severity `Error`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    file: Option<String>,
    diagnostics: Vec<Diagnostic>,
}

impl Report {
    /// Creates the report of a file that cannot be read. `file`: its path.
    pub fn unreadable(file: &str, message: String) -> Self {
        let diagnostic = Diagnostic {
            severity: Severity::Error,
            position: None,
            key: String::new(),
            message,
        };
        Self {
            file: Some(file.to_owned()),
            diagnostics: vec![diagnostic],
        }
    }

    /// Returns the report without positions, as there was no file.
    pub(crate) fn without_positions(mut self) -> Self {
        for diagnostic in &mut self.diagnostics {
            diagnostic.position = None;
        }
        self
    }

    /// Returns the diagnostics, first position first.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.diagnostics.iter()
    }

    /// Returns the diagnostics as lines.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.iter()
            .map(|diagnostic| format!("{}{diagnostic}", self.file_prefix(diagnostic)))
    }

    /// Returns the diagnostics as lines of a log, each with its severity, which is not in the text.
    pub fn log_lines(&self) -> impl Iterator<Item = (Severity, String)> {
        let line = |diagnostic: &Diagnostic| format!("{}{diagnostic:#}", self.file_prefix(diagnostic));
        self.iter()
            .map(move |diagnostic| (diagnostic.severity, line(diagnostic)))
    }

    /// Returns the start of a diagnostic's line: the file.
    fn file_prefix(&self, diagnostic: &Diagnostic) -> String {
        let space = if diagnostic.position.is_some() { "" } else { " " };
        let file = self.file.as_ref();
        file.map(|file| format!("{}:{space}", escaped(file)))
            .unwrap_or_default()
    }

    /// Returns the findings as an object with the keys `ok` and `findings`; docs/configuration.md describes it.
    pub fn json(&self) -> Value {
        let object = |diagnostic: &Diagnostic| {
            json!({
                "severity": diagnostic.severity,
                "file": self.file,
                "line": diagnostic.position.map(|position| position.line),
                "column": diagnostic.position.map(|position| position.column),
                "key": diagnostic.key,
                "message": diagnostic.message,
            })
        };
        json!({
            "ok": self.iter().all(|diagnostic| diagnostic.severity != Severity::Error),
            "findings": self.iter().map(object).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, line) in self.lines().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&line)?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

/// The diagnostics so far while a file is read. Readers share the list and go on after a fault: none hides another.
#[derive(Debug)]
pub(crate) struct Diagnostics {
    list: RefCell<Vec<Diagnostic>>,
    /// The number of errors among them.
    faults: Cell<usize>,
    /// The severity of an error that a process can run with, such as a missing file.
    dispensable: Severity,
}

impl Default for Diagnostics {
    fn default() -> Self {
        Self::with_dispensable(Severity::Warning)
    }
}

impl Diagnostics {
    /// Creates an empty list. `dispensable`: the severity of errors that a process can run with.
    pub(crate) fn with_dispensable(dispensable: Severity) -> Self {
        Self {
            list: RefCell::default(),
            faults: Cell::default(),
            dispensable,
        }
    }

    /// Returns the severity of errors that a process can run with.
    pub(crate) fn dispensable(&self) -> Severity {
        self.dispensable
    }

    /// Adds an error.
    pub(crate) fn fault(&self, position: Position, key: &str, message: impl Into<String>) {
        self.push(Severity::Error, Some(position), key, message.into());
    }

    /// Adds an error of a flag, or of its environment variable.
    pub(crate) fn fault_of_a_flag(&self, flag: &str, message: String) {
        self.push(Severity::Error, None, flag, message);
    }

    /// Adds a diagnostic.
    pub(crate) fn push(&self, severity: Severity, position: Option<Position>, key: &str, message: String) {
        if severity == Severity::Error {
            self.faults.set(self.faults.get() + 1);
        }
        self.list.borrow_mut().push(Diagnostic {
            severity,
            position,
            key: key.to_owned(),
            message,
        });
    }

    /// Returns the number of errors so far.
    pub(crate) fn faults(&self) -> usize {
        self.faults.get()
    }

    /// Returns a value with its warnings and notes. `file`: the name that the lines begin with, if any.
    ///
    /// # Errors
    /// The diagnostics, if one of them is an error.
    pub(crate) fn finish<T>(self, file: Option<&str>, value: T) -> Result<(T, Report), Report> {
        let has_faults = self.faults() > 0;
        let mut diagnostics = self.list.into_inner();
        // Stable: the diagnostics of one position keep the order in which they were found.
        diagnostics.sort_by_key(|diagnostic| diagnostic.position);
        let report = Report {
            file: file.map(str::to_owned),
            diagnostics,
        };
        if has_faults { Err(report) } else { Ok((value, report)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: u64, column: u64) -> Position {
        Position { line, column }
    }

    fn some() -> Diagnostics {
        let diagnostics = Diagnostics::default();
        diagnostics.fault(at(12, 3), "limits.tunnel.download", "too large");
        diagnostics.push(Severity::Warning, Some(at(3, 8)), "admin", "second".to_owned());
        diagnostics.push(Severity::Note, Some(at(3, 1)), "", "first".to_owned());
        diagnostics.push(Severity::Note, Some(at(3, 8)), "admin", "third".to_owned());
        diagnostics
    }

    #[test]
    fn findings_print_in_the_order_of_their_positions_with_the_file() {
        assert_eq!(
            some().finish(Some("a\nb"), ()).unwrap_err().to_string(),
            "a\\nb:3:1: note: first\na\\nb:3:8: warning: admin: second\na\\nb:3:8: note: admin: third\n\
             a\\nb:12:3: error: limits.tunnel.download: too large"
        );
        let unreadable = Report::unreadable("a", "cannot be read".to_owned());
        assert_eq!(unreadable.to_string(), "a: error: cannot be read");
        let logged = [
            unreadable.log_lines().next(),
            some().finish(Some("a"), ()).unwrap_err().log_lines().nth(1),
        ];
        let expected = [
            (Severity::Error, "a: cannot be read".to_owned()),
            (Severity::Warning, "a:3:8: admin: second".to_owned()),
        ];
        assert_eq!(logged, expected.map(Some));
    }

    #[test]
    fn only_an_error_refuses_a_configuration() {
        assert!(some().finish(None, 1).is_err());
        let diagnostics = Diagnostics::default();
        diagnostics.push(Severity::Warning, Some(at(3, 8)), "admin", "odd".to_owned());
        assert_eq!(diagnostics.faults(), 0);
        let (value, report) = diagnostics.finish(None, 1).unwrap();
        assert_eq!((value, report.json()["ok"].as_bool()), (1, Some(true)));
        assert_eq!(report.without_positions().to_string(), "warning: admin: odd");
    }

    #[test]
    fn the_json_form_names_every_part() {
        let json = some().finish(Some("a"), ()).unwrap_err().json();
        assert_eq!(json["ok"], false);
        assert_eq!(
            json["findings"][3],
            json!({"severity": "error", "file": "a", "line": 12, "column": 3, "key": "limits.tunnel.download",
                   "message": "too large"})
        );
        let unreadable = Report::unreadable("a", "cannot be read".to_owned()).json();
        assert_eq!(unreadable["findings"][0]["line"], Value::Null);
    }
}

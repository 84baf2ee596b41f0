//! The diagnostics of an import: each has a file, a position and a severity.

use crate::base::text::escaped;
use crate::base::yaml::diagnostic::{Diagnostic, Diagnostics, Position, Severity};

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportResult {
    /// The output on stdout.
    pub text: String,
    /// The lines on stderr: `FILE:LINE:COLUMN: severity: message`.
    pub diagnostics: Vec<String>,
    /// How much was translated.
    pub extent: Extent,
}

/// How much of the files was translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Not all: the diagnostics name what is left out.
    Part,
    /// A file could not be read, or is not of its format.
    Unreadable,
}

/// A location in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The index of the file.
    pub(super) file: usize,
    /// The line and column.
    pub(super) position: Position,
}

/// The location of something that is not printed, and the reason.
pub(super) struct Untranslatable(pub(super) Location, pub(super) String);

/// The diagnostics so far. An error is about a name that is not printed, a warning about an option without a counterpart.
#[derive(Debug, Default)]
pub(super) struct ImportDiagnostics {
    files: Vec<String>,
    /// The first of them in the order of the files, bounded.
    found: Vec<(usize, Diagnostic)>,
    /// How many more there were.
    dropped: usize,
    /// True if something is not translated.
    leaves_out: bool,
    /// True if a file is not of its format.
    is_unreadable: bool,
}

impl ImportDiagnostics {
    /// Creates an empty list for files of these names.
    pub(super) fn new<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        Self {
            files: files.map(escaped).collect(),
            ..Self::default()
        }
    }

    /// Adds an error: a name, or a whole part of a file, is not translated.
    pub(super) fn error(&mut self, location: Location, message: impl Into<String>) {
        self.push(Severity::Error, location, message.into());
    }

    /// Adds a warning: an option is left out of the output, or changed.
    pub(super) fn warning(&mut self, location: Location, message: impl Into<String>) {
        self.push(Severity::Warning, location, message.into());
    }

    /// Adds a note: an option that needs no counterpart, or deserves a look.
    pub(super) fn note(&mut self, location: Location, message: impl Into<String>) {
        self.push(Severity::Note, location, message.into());
    }

    /// Adds an error for files in which nothing is to be translated, unless an error says why.
    pub(super) fn nothing_found(&mut self, message: &str) {
        if !self.leaves_out {
            let position = Position::START;
            self.error(Location { file: 0, position }, message);
        }
    }

    /// Adds the errors of a file's format, if any.
    pub(super) fn unreadable(&mut self, file: usize, diagnostics: Diagnostics) {
        if let Err(report) = diagnostics.finish(None, ()) {
            self.is_unreadable = true;
            report.iter().for_each(|diagnostic| self.keep(file, diagnostic.clone()));
        }
    }

    fn push(&mut self, severity: Severity, location: Location, message: String) {
        let diagnostic = Diagnostic {
            severity,
            position: Some(location.position),
            key: String::new(),
            message,
        };
        self.keep(location.file, diagnostic);
    }

    /// Adds a diagnostic. Keeps at most twice the number that is shown: a file of 16 MiB may have a million.
    fn keep(&mut self, file: usize, diagnostic: Diagnostic) {
        self.leaves_out |= diagnostic.severity != Severity::Note;
        self.found.push((file, diagnostic));
        if self.found.len() >= 2 * MAX_LINES {
            self.sort();
            self.dropped += self.found.len() - MAX_LINES;
            self.found.truncate(MAX_LINES);
        }
    }

    fn sort(&mut self) {
        self.found
            .sort_by_key(|(file, diagnostic)| (*file, diagnostic.position));
    }

    /// Returns a location for the text of a diagnostic: `FILE:LINE:COLUMN`.
    pub(super) fn shown(&self, location: Location) -> String {
        format!("{}:{}", self.name(location.file), location.position)
    }

    /// Returns the result with that text: the diagnostics as lines, in the order of the files, at most [`MAX_LINES`].
    pub(super) fn finish(mut self, text: String) -> ImportResult {
        self.sort();
        let shown = self.found.iter().take(MAX_LINES);
        let line = |(file, diagnostic): &(usize, Diagnostic)| format!("{}:{diagnostic}", self.name(*file));
        let mut diagnostics: Vec<_> = shown.map(line).collect();
        let more = self.dropped + self.found.len().saturating_sub(MAX_LINES);
        if more > 0 {
            diagnostics.push(format!("and {more} more"));
        }
        let extent = match (self.is_unreadable, self.leaves_out) {
            (true, _) => Extent::Unreadable,
            (false, true) => Extent::Part,
            (false, false) => Extent::Whole,
        };
        ImportResult {
            text,
            diagnostics,
            extent,
        }
    }

    fn name(&self, file: usize) -> &str {
        self.files.get(file).map_or("", String::as_str)
    }
}

/// The most diagnostics that are shown.
const MAX_LINES: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_remarks_of_a_million_are_kept_and_the_others_counted() {
        let mut diagnostics = ImportDiagnostics::new(["a", "b"].into_iter());
        diagnostics.error(location(1, 1), "b");
        for line in (1..=50_000).rev() {
            diagnostics.note(location(0, line), "a");
            assert!(diagnostics.found.len() <= 2 * MAX_LINES);
        }
        let ImportResult {
            diagnostics: lines,
            extent,
            ..
        } = diagnostics.finish(String::new());
        assert_eq!(extent, Extent::Part);
        assert_eq!(lines.len(), MAX_LINES + 1);
        assert!(
            lines[0].starts_with("a:1:1: ") && lines[9_999].starts_with("a:10000:1: "),
            "{}",
            lines[9_999]
        );
        assert_eq!(lines[10_000], "and 40001 more");
    }

    fn location(file: usize, line: u64) -> Location {
        Location {
            file,
            position: Position { line, column: 1 },
        }
    }
}

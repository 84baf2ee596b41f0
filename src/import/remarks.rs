//! What an import has to say of its files: each remark has a file, a position and a severity.

use super::Extent;
use crate::text::escaped;
use crate::yaml::finding::{Finding, Findings, Position, Severity};

/// A place in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The index of the file.
    pub(super) file: usize,
    /// The line and column.
    pub(super) position: Position,
}

/// The remarks so far. An error is about a name that is not printed, a warning about an option that has no counterpart.
#[derive(Debug)]
pub(super) struct Remarks {
    files: Vec<String>,
    found: Vec<(usize, Finding)>,
    /// Whether a file is not of its format.
    is_unreadable: bool,
}

impl Remarks {
    /// No remarks yet on files of these names.
    pub(super) fn new<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        Self {
            files: files.map(escaped).collect(),
            found: Vec::new(),
            is_unreadable: false,
        }
    }

    /// A name, or all of a file's part, that is not translated.
    pub(super) fn error(&mut self, place: Place, message: impl Into<String>) {
        self.push(Severity::Error, place, message.into());
    }

    /// An option that is left out of what is printed.
    pub(super) fn warning(&mut self, place: Place, message: impl Into<String>) {
        self.push(Severity::Warning, place, message.into());
    }

    /// What needs no counterpart, or deserves a look.
    pub(super) fn note(&mut self, place: Place, message: impl Into<String>) {
        self.push(Severity::Note, place, message.into());
    }

    /// The faults of a file that is not of its format.
    pub(super) fn unreadable(&mut self, file: usize, findings: Findings) {
        if let Err(report) = findings.finish(None, ()) {
            self.is_unreadable = true;
            self.found.extend(report.iter().map(|finding| (file, finding.clone())));
        }
    }

    fn push(&mut self, severity: Severity, place: Place, message: String) {
        let finding = Finding {
            severity,
            position: Some(place.position),
            key: String::new(),
            message,
        };
        self.found.push((place.file, finding));
    }

    /// A place as a remark on another one names it: `FILE:LINE:COLUMN`.
    pub(super) fn shown(&self, place: Place) -> String {
        format!("{}:{}", self.name(place.file), place.position)
    }

    /// How much was translated.
    pub(super) fn extent(&self) -> Extent {
        if self.is_unreadable {
            return Extent::Unreadable;
        }
        let leaves_out = |(_, finding): &(usize, Finding)| finding.severity != Severity::Note;
        if self.found.iter().any(leaves_out) {
            Extent::Part
        } else {
            Extent::Whole
        }
    }

    /// The remarks as lines, in the order of the files; no more than a person would read.
    pub(super) fn into_lines(mut self) -> Vec<String> {
        self.found.sort_by_key(|(file, finding)| (*file, finding.position));
        let mut lines: Vec<_> = self
            .found
            .iter()
            .take(MOST_LINES)
            .map(|remark| self.line(remark))
            .collect();
        if let Some(more) = self.found.len().checked_sub(MOST_LINES).filter(|more| *more > 0) {
            lines.push(format!("and {more} more"));
        }
        lines
    }

    fn line(&self, (file, finding): &(usize, Finding)) -> String {
        format!("{}:{finding}", self.name(*file))
    }

    fn name(&self, file: usize) -> &str {
        self.files.get(file).map_or("", String::as_str)
    }
}

/// A file of 16 MiB may have a million faults.
const MOST_LINES: usize = 10_000;

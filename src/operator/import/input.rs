//! One imported file: its name and its text, of a bounded size.

use std::io::{self, Read};
use std::path::Path;

use super::diagnostics::ImportDiagnostics;
use crate::base::file;
use crate::base::yaml;
use crate::base::yaml::diagnostic::{Diagnostics, Position, Severity};
use crate::base::yaml::tree::{self, Bounds, Node};

/// An imported file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its path as it was given, or `<stdin>`.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Input {
    /// Reads a regular file of at most 16 MiB, or stdin, if the path is `-`.
    ///
    /// # Errors
    /// It cannot be read, or is larger.
    pub fn read(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Self::from_reader("<stdin>", io::stdin().lock());
        }
        Self::from_reader(&path.display().to_string(), file::open(path)?)
    }

    /// Reads to the end, at most 16 MiB.
    ///
    /// # Errors
    /// It cannot be read, or is larger.
    pub fn from_reader(name: &str, reader: impl Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        reader.take(MAX_INPUT_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_INPUT_BYTES {
            let reason = format!("larger than {} MiB", MAX_INPUT_BYTES >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        let name = name.to_owned();
        Ok(Self { name, bytes })
    }

    /// Returns its text; `None` if it is not UTF-8, or has no-break spaces, which become a part of keys and values.
    pub(super) fn text(&self, diagnostics: &Diagnostics) -> Option<&str> {
        let text = str::from_utf8(&self.bytes);
        if text.is_err() {
            diagnostics.fault(Position::START, "", "not UTF-8");
        }
        yaml::find_no_break_spaces(text.unwrap_or_default(), Severity::Error, diagnostics);
        text.ok().filter(|_| diagnostics.faults() == 0)
    }

    /// Returns its documents as YAML; none after an error, which is added to `diagnostics`.
    pub(super) fn yaml(&self, file: usize, diagnostics: &mut ImportDiagnostics) -> Vec<Node> {
        let file_diagnostics = Diagnostics::default();
        let documents = self
            .text(&file_diagnostics)
            .and_then(|text| tree::read_all(text, &BOUNDS, &file_diagnostics));
        // Without a part that has an error, such as a tag, the rest of a document may mean something else.
        let documents = documents.filter(|_| file_diagnostics.faults() == 0).unwrap_or_default();
        let is_toml = |text: &str| text.lines().any(|line| line.starts_with('['));
        if file_diagnostics.faults() > 0 && str::from_utf8(&self.bytes).is_ok_and(is_toml) {
            file_diagnostics.fault(
                Position::START,
                "",
                "is it TOML? `switchboard import frpc` reads that of frpc",
            );
        }
        diagnostics.unreadable(file, file_diagnostics);
        documents
    }
}

/// 16 MiB: `kubectl get envoyfilter -A -o yaml` of about 5,000 containers.
const MAX_INPUT_BYTES: u64 = 16 << 20;
/// An EnvoyFilter of a container has about 20 levels and 60 nodes.
const BOUNDS: Bounds = Bounds {
    documents: 20_000,
    depth: 64,
    weight: 256 << 20,
};

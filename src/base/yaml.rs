//! Reads the YAML files of users and operators: the server's configuration, and the client's.
//!
//! `tree` turns a file into texts with positions. `de` reads a serde type from the tree, and single values by their
//! `forms`. Every `diagnostic` up to a YAML syntax error is reported at once, with what was probably meant (`suggest`).
//! Checks after the reading take their positions from a `field`. `schema` is the JSON Schema of a type.

pub(crate) mod de;
pub(crate) mod diagnostic;
pub(crate) mod field;
pub(crate) mod forms;
pub(crate) mod schema;
pub(crate) mod suggest;
pub(crate) mod tree;

use std::io::{self, Read};

use self::diagnostic::{Diagnostics, Position, Severity};
use self::tree::Node;

/// Reads at most [`MAX_FILE_BYTES`] and one byte more: [`tree()`] refuses a file with that byte.
pub(crate) fn bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the tree of a file; `None` after a fault that ends the reading.
pub(crate) fn tree(bytes: &[u8], diagnostics: &Diagnostics) -> Option<Node> {
    let fault = match std::str::from_utf8(bytes) {
        _ if bytes.len() as u64 > MAX_FILE_BYTES => (Position::START, "larger than 1 MiB"),
        Ok(text) => return tree::read(text, diagnostics),
        Err(error) => {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            (end_of(&String::from_utf8_lossy(valid)), "not UTF-8")
        }
    };
    diagnostics.fault(fault.0, "", fault.1);
    None
}

/// Adds a diagnostic for each line with a no-break space, which is no blank for YAML and TOML, but a part of keys and values.
pub(crate) fn find_no_break_spaces(text: &str, severity: Severity, diagnostics: &Diagnostics) {
    let is_one = |line: &str| line.contains(['\u{a0}', '\u{2007}', '\u{202f}']) && !line.trim_start().starts_with('#');
    for (_, line) in text.lines().zip(1..).filter(|(text, _)| is_one(text)) {
        let position = Position { line, column: 1 };
        diagnostics.push(severity, Some(position), "", NO_BREAK_SPACE.to_owned());
    }
}

/// Returns the position after a text.
fn end_of(text: &str) -> Position {
    let last = text.rsplit('\n').next().unwrap_or_default();
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX).saturating_add(1);
    Position {
        line: number(text.matches('\n').count()),
        column: number(last.chars().count()),
    }
}

const NO_BREAK_SPACE: &str = "a no-break space, as in text that is copied from a web page: replace it by a space";
/// 1 MiB: room for 20,000 short static targets, and the size of the largest ConfigMap.
const MAX_FILE_BYTES: u64 = 1 << 20;

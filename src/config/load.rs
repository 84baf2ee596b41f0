//! Reads a configuration from a file or a text.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::fault::{FaultCollector, Faults, LoadError};
use super::section::Field;
use super::{Config, schema, tree};

impl Config {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// All faults of the text at once; after a syntax error, those before it and the error itself.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        parse(text.as_bytes())
    }

    /// Reads a file of at most 1 MiB.
    ///
    /// # Errors
    /// The file cannot be read, or has faults.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
            .map_err(|source| LoadError::Unreadable {
                path: path.to_owned(),
                source,
            })?;
        parse(&bytes).map_err(|faults| LoadError::Faulty {
            path: path.to_owned(),
            faults,
        })
    }
}

fn parse(bytes: &[u8]) -> Result<Config, Faults> {
    let faults = FaultCollector::default();
    let config = text(bytes, &faults)
        .and_then(|text| tree::read(text, &faults))
        .and_then(|tree| Field::root(&tree, &faults).section(schema::config));
    faults.finish(config.unwrap_or_default())
}

fn text<'a>(bytes: &'a [u8], faults: &FaultCollector) -> Option<&'a str> {
    if bytes.len() as u64 > LARGEST {
        faults.push(None, "", "larger than 1 MiB");
        return None;
    }
    std::str::from_utf8(bytes)
        .map_err(|error| {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
            faults.push(u64::try_from(line).ok(), "", "not UTF-8");
        })
        .ok()
}

/// 1 MiB: 20,000 short static targets, and the largest ConfigMap.
const LARGEST: u64 = 1 << 20;

//! Reads a configuration from a file or a text.

use std::io;
use std::path::Path;

use super::fault::{FaultCollector, Faults, LoadError};
use super::section::Field;
use super::shape::Shape;
use super::{Config, schema, tree};
use crate::file;

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
        let config = match file::read(path, LARGEST) {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => too_large(),
            Err(source) => {
                return Err(LoadError::Unreadable {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        config.map_err(|faults| LoadError::Faulty {
            path: path.to_owned(),
            faults,
        })
    }

    /// The format of the file as JSON Schema, draft 7: its keys, and the values of each.
    ///
    /// It is made by the readers of the file. A file that it refuses has faults; a file that it accepts may have faults
    /// that only the readers know, such as two ports with one address.
    pub fn schema() -> serde_json::Value {
        let (faults, shape) = (FaultCollector::default(), Shape::default());
        Field::any(shape.clone(), &faults).section(schema::config);
        let mut schema = shape.json(false);
        if let Some(object) = schema.as_object_mut() {
            object.insert("$schema".to_owned(), "http://json-schema.org/draft-07/schema#".into());
            object.insert("title".to_owned(), "switchboard.yaml".into());
        }
        schema
    }
}

fn parse(bytes: &[u8]) -> Result<Config, Faults> {
    let faults = FaultCollector::default();
    let config = text(bytes, &faults)
        .and_then(|text| tree::read(text, &faults))
        .and_then(|tree| Field::root(&tree, &faults).section(schema::config));
    faults.finish(config.unwrap_or_default())
}

fn too_large() -> Result<Config, Faults> {
    let faults = FaultCollector::default();
    faults.push(None, "", TOO_LARGE);
    faults.finish(Config::default())
}

fn text<'a>(bytes: &'a [u8], faults: &FaultCollector) -> Option<&'a str> {
    if bytes.len() as u64 > LARGEST {
        faults.push(None, "", TOO_LARGE);
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
const TOO_LARGE: &str = "larger than 1 MiB";

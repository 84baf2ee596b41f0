//! Reads a configuration from a file or a text, and overrides it by the flags.

use std::io::Read;
use std::path::Path;

use super::file::ConfigFile;
use super::{Config, LoadedConfig, Overrides, Purpose, listen, rules, warnings};
use crate::base::file;
use crate::base::yaml::diagnostic::{Diagnostics, Position, Report, Severity};
use crate::base::yaml::field::Field;
use crate::base::yaml::schema::schema;
use crate::base::yaml::tree::{self, Node, Value};
use crate::base::yaml::{self, de};

impl LoadedConfig {
    /// Reads a regular file of at most 1 MiB; without a path, the settings are the defaults. `overrides` overrides them.
    ///
    /// # Errors
    /// The file cannot be read, it has faults, or the flags have. Flags are checked only if the file has none.
    pub fn from_file(path: Option<&Path>, overrides: &Overrides, purpose: Purpose) -> Result<Self, Report> {
        let Some(path) = path else {
            return read(b"{}", None, overrides, purpose)
                .map(|loaded| Self {
                    report: loaded.report.without_positions(),
                    ..loaded
                })
                .map_err(Report::without_positions);
        };
        let name = path.display().to_string();
        match file::open(path).and_then(yaml::bounded) {
            Ok(bytes) => read(&bytes, Some(&name), overrides, purpose),
            Err(error) => Err(Report::unreadable(&name, format!("cannot be read: {error}"))),
        }
    }

    /// Reads at most 1 MiB to its end. `name`: what the findings call the file.
    ///
    /// # Errors
    /// As for a file.
    pub fn from_reader(name: &str, reader: impl Read, overrides: &Overrides, purpose: Purpose) -> Result<Self, Report> {
        match yaml::bounded(reader) {
            Ok(bytes) => read(&bytes, Some(name), overrides, purpose),
            Err(error) => Err(Report::unreadable(name, format!("cannot be read: {error}"))),
        }
    }
}

impl Config {
    /// Reads the text of a file, without its warnings and notes.
    ///
    /// # Errors
    /// All faults of the text at once; after a syntax error, those before it and the error itself.
    pub fn parse(text: &str) -> Result<Self, Report> {
        read(text.as_bytes(), None, &Overrides::default(), Purpose::Serve).map(|loaded| loaded.config)
    }

    /// Returns the format of the file as JSON Schema, draft 7: its keys, and the values of each.
    ///
    /// It is made of the types that read the file. A file that it refuses has faults; a file that it accepts may have
    /// faults that only the rules know, such as two ports with one address.
    pub fn schema() -> serde_json::Value {
        let mut schema = schema::<ConfigFile>();
        if let Some(object) = schema.as_object_mut() {
            object.insert("$schema".to_owned(), "http://json-schema.org/draft-07/schema#".into());
            object.insert("title".to_owned(), "switchboard.yaml".into());
        }
        schema
    }
}

fn read(bytes: &[u8], file: Option<&str>, overrides: &Overrides, purpose: Purpose) -> Result<LoadedConfig, Report> {
    let diagnostics = Diagnostics::with_dispensable(match purpose {
        Purpose::Serve => Severity::Warning,
        Purpose::Check => Severity::Error,
    });
    let embedded = (purpose == Purpose::Check)
        .then(|| in_manifests(bytes, &diagnostics))
        .flatten();
    let bytes = embedded.as_deref().map_or(bytes, str::as_bytes);
    let config = yaml::tree(bytes, &diagnostics).map(|mut tree| {
        let file: ConfigFile = de::read(&mut tree, &diagnostics);
        let top = Field::root(&tree, &diagnostics);
        let config = rules::check(file, overrides, &top);
        // After a fault a value is its default, and a warning about that would be wrong.
        if diagnostics.faults() == 0 {
            listen::check_flags(overrides, &config, &diagnostics);
            warnings::add(&config, &top);
        }
        config
    });
    let (config, report) = diagnostics.finish(file, config.unwrap_or_default())?;
    Ok(LoadedConfig { config, report })
}

/// Returns the configuration in the ConfigMap of a rendered chart or kustomization, on the lines that it has there. `None` if
/// the text has no objects of Kubernetes.
fn in_manifests(bytes: &[u8], diagnostics: &Diagnostics) -> Option<String> {
    let text = str::from_utf8(bytes).ok()?;
    let mut bounds = tree::CONFIGURATION;
    bounds.documents = 1_000;
    let documents = tree::read_all(text, &bounds, &Diagnostics::default())?;
    documents.iter().find_map(|document| value_of(document, "apiVersion"))?;
    let configs = documents.iter().filter_map(|document| {
        let config = value_of(value_of(document, "data")?, "switchboard.yaml")?;
        let Value::Text(scalar) = &config.value else {
            return None;
        };
        Some((config.position.line, &scalar.text))
    });
    let mut configs: Vec<_> = configs.collect();
    // The chart's check before a rollout has a copy.
    configs.dedup_by_key(|(_, config)| *config);
    let [(line, config)] = configs[..] else {
        let reason = "of these objects not one ConfigMap, or its copies, has the configuration, `switchboard.yaml`";
        diagnostics.fault(Position::START, "", reason);
        return Some("{}".to_owned());
    };
    let first = usize::try_from(line.saturating_sub(1)).unwrap_or_default();
    let lines = || text.lines().skip(first).take(config.lines().count());
    let is_block = lines().map(str::trim_start).eq(config.lines().map(str::trim_start));
    Some(match is_block {
        true => "\n".repeat(first) + &lines().collect::<Vec<_>>().join("\n"),
        false => config.clone(),
    })
}

fn value_of<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    let Value::Map(entries) = &node.value else {
        return None;
    };
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
}

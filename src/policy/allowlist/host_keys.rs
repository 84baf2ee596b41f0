//! The host keys of a target: those of files of the configuration, or of the annotation.

use std::sync::Arc;

use crate::protocol::host_key::{HostKeys, KeySource, PublishedKeys};
use crate::tunnel::host_key_files::HostKeyFiles;

/// The origin of a target's host keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetKeys {
    /// Files of the configuration.
    Files(HostKeyFiles),
    /// The annotation of the Service.
    Annotation(Arc<HostKeys>),
}

impl TargetKeys {
    /// Returns the keys as they are published; none while they are invalid, as the lines of an anchor would not be
    /// authenticated.
    pub fn published(&self) -> PublishedKeys {
        let (source, keys) = match self {
            Self::Files(files) => (KeySource::Config, files.keys().unwrap_or_default()),
            Self::Annotation(keys) => (KeySource::Annotation, Arc::clone(keys)),
        };
        let keys = HostKeys::clone(&keys);
        PublishedKeys { source, keys }
    }
}

//! The snapshot file of a reconciler: when it is written, and what it is for.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::base::file;
use crate::kubernetes::objects::model::{Key, Object};
use crate::kubernetes::targets::snapshot::{self, Snapshot};
use crate::kubernetes::targets::source::{Feed, Source};

/// The file with the last known objects. It is written a second after a change, and at most every 30 s.
#[derive(Debug)]
pub(super) struct SnapshotFile {
    path: PathBuf,
    /// The kinds, namespaces and selectors of the objects: a file of others is not used.
    settings: String,
    /// The time of the next write, if there is something new.
    due: Option<Instant>,
    written: Option<Instant>,
}

impl SnapshotFile {
    /// The file at that path for the objects of these sources.
    pub(super) fn new(path: PathBuf, feeds: &[Feed]) -> Self {
        Self {
            path,
            settings: feeds.iter().map(|feed| settings(&feed.source)).collect(),
            due: None,
            written: None,
        }
    }

    /// The time of the next write; `None` when the file is up to date.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Asks for a write, since the objects have changed.
    pub(super) fn schedule(&mut self) {
        let now = Instant::now();
        let earliest = self.written.map_or(now, |written| written + WRITE_EVERY);
        self.due.get_or_insert(earliest.max(now + WRITE_AFTER));
    }

    /// The snapshot in the file, if there is one that can be used.
    pub(super) fn load(&self) -> Option<Snapshot> {
        let path = self.path.display();
        match snapshot::read(&self.path, &self.settings) {
            Ok(snapshot) => {
                let age = snapshot.saved.elapsed().unwrap_or_default();
                let objects = snapshot.objects.len();
                warn!(%path, objects, ?age, "serving the last snapshot until the API server answers");
                Some(snapshot)
            }
            Err(error) => {
                info!(%path, "starting without a snapshot: {error}");
                None
            }
        }
    }

    /// Writes the objects to the file, in the background.
    pub(super) fn save(&mut self, objects: Vec<(Key, Object)>) {
        self.due = None;
        self.written = Some(Instant::now());
        let (path, settings) = (self.path.clone(), self.settings.clone());
        // Detached: the next write is at least 30 s later.
        drop(spawn_blocking(move || {
            let text = snapshot::encode(&objects, &settings, SystemTime::now());
            // For the user alone: it tells the names of all targets, and the users of their lists.
            if let Err(error) = text.and_then(|text| file::replace(&path, &text, None)) {
                error!(path = %path.display(), "cannot write the snapshot: {error}");
            }
        }));
    }
}

fn settings(source: &Source) -> String {
    let Source {
        index: _,
        kind,
        namespace,
        selector,
        prefix,
        kubeconfig: _,
    } = source;
    format!("{} {namespace:?} {selector:?} {prefix:?}\n", kind.name())
}

const WRITE_AFTER: Duration = Duration::from_secs(1);
const WRITE_EVERY: Duration = Duration::from_secs(30);

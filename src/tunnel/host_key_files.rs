//! Files with the host keys of an SSH server, which are read again while the process runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::file;
use crate::base::follow::{self, ReadHistory, ReloadResult};
use crate::protocol::host_key::{HostKey, HostKeys};

/// Files with OpenSSH public keys. The last valid keys apply until others have been read.
#[derive(Clone, Debug)]
pub struct HostKeyFiles(Arc<Files>);

#[derive(Debug)]
struct Files {
    paths: Box<[PathBuf]>,
    keys: Mutex<Option<Arc<HostKeys>>>,
    readings: Mutex<ReadHistory>,
}

/// Another reading of the same files has keys of its own, so that a reload applies those.
impl PartialEq for HostKeyFiles {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HostKeyFiles {}

/// Files that have not been read yet.
impl FromIterator<PathBuf> for HostKeyFiles {
    fn from_iter<I: IntoIterator<Item = PathBuf>>(paths: I) -> Self {
        Self(Arc::new(Files {
            paths: paths.into_iter().collect(),
            keys: Mutex::default(),
            readings: Mutex::default(),
        }))
    }
}

impl HostKeyFiles {
    /// Returns the keys; `None` before the files were valid.
    pub fn keys(&self) -> Option<Arc<HostKeys>> {
        self.0.keys.lock().clone()
    }

    /// Takes over the keys of a former reading of equal files, unless these were valid.
    pub fn take_over(&self, former: &Self) {
        if self.0.paths == former.0.paths && !Arc::ptr_eq(&self.0, &former.0) {
            let keys = former.keys();
            let mut own = self.0.keys.lock();
            *own = own.take().or(keys);
        }
    }

    /// Reads the files, and applies their keys if they have changed and are all valid. Blocks. An error names its file.
    pub fn reload(&self) -> ReloadResult<String> {
        let Files { paths, keys, readings } = &*self.0;
        let read = || {
            let files = paths.iter().map(|path| file::read_unless_short(path, MAX_FILE_BYTES));
            files.collect::<Result<Vec<_>, _>>()
        };
        follow::reload(readings, SETTLING, read, |files| {
            let (mut found, mut faults) = (Vec::<HostKey>::new(), Vec::new());
            for (path, bytes) in paths.iter().zip(files) {
                let parsed = bytes.and_then(|bytes| {
                    let text = String::from_utf8_lossy(&bytes);
                    text.parse::<HostKeys>().map_err(|error| error.to_string())
                });
                match parsed {
                    Ok(keys) => found.extend(keys.iter().cloned()),
                    Err(reason) => faults.push(format!("{}: {reason}", path.display())),
                }
            }
            if !faults.is_empty() {
                return Err(faults);
            }
            let all = HostKeys::collect(found.into_iter().map(Ok)).map_err(|error| vec![error.to_string()])?;
            *keys.lock() = Some(Arc::new(all));
            Ok(())
        })
    }
}

/// The pause between two readings of the files.
pub const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The pause before changed files are read again.
const SETTLING: Duration = Duration::from_millis(20);
/// In bytes: more than the keys that a target may have, with comments.
const MAX_FILE_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_fifo_is_a_fault_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pub");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let files: HostKeyFiles = [path.clone()].into_iter().collect();
        let fault = format!("{}: it is a FIFO, not a regular file", path.display());
        assert_eq!(files.reload(), ReloadResult::Invalid(vec![fault]));
        assert_eq!(files.keys(), None);
    }
}

//! Files in the folder of ssh: read and replaced as a whole, by one program of ours at a time.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::base::file;
use crate::base::platform;

/// Locks the folder of a user's file: other programs of ours that replace a file there wait until the lock is dropped. On
/// Windows, where no folder can be opened, a file in it is locked. `None` if neither can be.
pub(super) fn lock(folder: &Path) -> anyhow::Result<Option<File>> {
    let mut in_folder = File::options();
    in_folder.create(true).append(true);
    let Ok(opened) = File::open(folder).or_else(|_| in_folder.open(folder.join(LOCK_FILE))) else {
        return Ok(None);
    };
    for _ in 0..MAX_LOCK_ATTEMPTS {
        match opened.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_INTERVAL),
            // An error means that the folder's file system has no locks.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(Some(opened)),
        }
    }
    bail!("another program has locked the folder {}", folder.display())
}

/// Makes a folder, unless it exists. Makes no parents: a home may be missing on purpose, such as /nonexistent.
pub(super) fn make_folder(folder: &Path) -> anyhow::Result<()> {
    match platform::make_private_folder(folder) {
        Err(_) if folder.is_dir() => Ok(()),
        made => made.with_context(|| format!("cannot make the folder {}", folder.display())),
    }
}

/// Replaces a file whose text differs. A symbolic link stays, as dotfiles may be kept elsewhere, and so do owner,
/// permissions and extended attributes.
pub(super) fn replace(path: PathBuf, text: &[u8], changed: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if read(&path)? == text {
        return Ok(());
    }
    let real = match path.is_symlink() {
        true => fs::canonicalize(&path),
        false => Ok(path.clone()),
    };
    let replaced = real.and_then(|real| {
        file::remove_left_over(&real);
        file::replace(&real, text, true)
    });
    replaced.with_context(|| format!("cannot write {}", path.display()))?;
    changed.push(path);
    Ok(())
}

/// Returns the text of a file; empty if there is none.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    match file::read(path, MAX_FILE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The file of published host keys, in the folder of the user's file.
pub(super) const PUBLISHED_FILE: &str = "switchboard_known_hosts";
/// The largest file that is read: 1 MiB.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The file that is locked where a folder cannot be.
const LOCK_FILE: &str = ".switchboard.lock";
const LOCK_INTERVAL: Duration = Duration::from_millis(20);
/// Half a minute: to write a block takes milliseconds.
const MAX_LOCK_ATTEMPTS: u32 = 1500;

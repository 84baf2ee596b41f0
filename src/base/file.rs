//! Reads and replaces regular files. Nothing else is read: opening a FIFO blocks until it has a writer, and a device
//! may have no end.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use crate::base::platform;
pub(crate) use crate::base::platform::open_regular as open;
use crate::base::random::random;

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// `InvalidInput` if it is not a regular file, `FileTooLarge` if it is larger, each with a sentence of its own; else
/// those of open(2) and read(2).
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let reason = format!("larger than {} MiB", max >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// The bytes of a file, or why it cannot be read.
pub(crate) type Bytes = Result<Vec<u8>, String>;

/// Reads a file as [`read`] does.
///
/// # Errors
/// The process or the system is short of descriptors or memory: that is no fault of the file.
pub(crate) fn read_unless_short(path: &Path, max: u64) -> Result<Bytes, String> {
    match read(path, max) {
        Err(error) if platform::is_shortage(&error) => Err(unreadable(&error)),
        read => Ok(read.map_err(|error| unreadable(&error))),
    }
}

/// Returns the sentence about a file that could not be read.
pub(crate) fn unreadable(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        return "there is no such file".to_owned();
    }
    let is_sentence = matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge);
    if is_sentence {
        error.to_string()
    } else {
        format!("cannot be read: {error}")
    }
}

/// Replaces or creates a file: if the power fails, the old or the new one is there and complete.
///
/// With `keeps_attributes` the new file takes over the owner, the permissions and the extended attributes of the old
/// file. Without it, or without an old file, no other user may read the new file.
///
/// # Errors
/// Those of the system. The old file is unchanged.
pub(crate) fn replace(path: &Path, bytes: &[u8], keeps_attributes: bool) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Another program, or one on another host that has the folder, may replace the file now.
    let beside = path.with_file_name(format!("{}{:016x}", temporary(&name), random()));
    let written = platform::create_private(&beside).and_then(|mut file| {
        file.write_all(bytes)?;
        if keeps_attributes && path.exists() {
            platform::keep_attributes(&file, path)?;
        }
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, path)
    });
    if written.is_err() {
        fs::remove_file(&beside).unwrap_or_default();
    }
    written
}

/// Removes the files beside this one that [`replace`] has left there an hour ago or more, when its process was killed.
pub(crate) fn remove_left_over(path: &Path) {
    let prefix = temporary(&path.file_name().unwrap_or_default().to_string_lossy());
    let is_ours = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        rest.is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let is_old = |entry: &fs::DirEntry| {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= LEFT_OVER))
    };
    let entries = path.parent().map(fs::read_dir).into_iter().flatten().flatten();
    for entry in entries.flatten().filter(|entry| is_ours(entry) && is_old(entry)) {
        fs::remove_file(entry.path()).unwrap_or_default();
    }
}

/// Returns the beginning of the names of the files that replace a file of this name.
fn temporary(name: &str) -> String {
    format!(".{name}.switchboard-")
}

/// The age at which no process writes the file any more.
const LEFT_OVER: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    #[test]
    fn only_a_regular_file_is_read_and_nothing_else_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "bytes").unwrap();
        symlink("file", path("link")).unwrap();
        assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        let _listener = UnixListener::bind(path("socket")).unwrap();
        for name in ["file", "link"] {
            assert_eq!(read(&path(name), 5).unwrap(), b"bytes", "{name}");
        }
        for (path, expected) in [
            (path("fifo"), "it is a FIFO, not a regular file"),
            (path("socket"), "it is a socket, not a regular file"),
            (folder.path().to_owned(), "it is a directory, not a regular file"),
            ("/dev/zero".into(), "it is a device, not a regular file"),
        ] {
            let error = read(&path, 5).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (io::ErrorKind::InvalidInput, expected)
            );
        }
        assert_eq!(read(&path("none"), 5).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_is_replaced_whole_with_its_permissions_or_as_the_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        replace(&path, b"one", false).unwrap();
        assert_eq!((fs::read(&path).unwrap().as_slice(), mode()), (&b"one"[..], 0o600));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        replace(&path, b"two", true).unwrap();
        assert_eq!((fs::read(&path).unwrap().as_slice(), mode()), (&b"two"[..], 0o644));
        replace(&path, b"three", false).unwrap();
        assert_eq!((fs::read(&path).unwrap().as_slice(), mode()), (&b"three"[..], 0o600));
        let directory = folder.path().join("directory");
        fs::create_dir(&directory).unwrap();
        replace(&directory, b"four", false).unwrap_err();
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            2,
            "nothing is left beside"
        );
    }

    #[test]
    fn what_a_killed_process_has_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, age: u64| {
            let file = fs::File::create(folder.path().join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age))
                .unwrap();
        };
        let kept = [
            ".file.switchboard-0123456789abcdeg",
            ".other.switchboard-0123456789abcdef",
            ".file.swp",
            "file",
        ];
        kept.iter().for_each(|name| write(name, 9999));
        write(".file.switchboard-0123456789abcdee", 60);
        write(".file.switchboard-0123456789abcdef", 9999);
        remove_left_over(&folder.path().join("file"));
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left.len(), 5, "{left:?}");
        assert!(!left.contains(&".file.switchboard-0123456789abcdef".into()));
        remove_left_over(&folder.path().join("missing/file"));
    }

    #[test]
    fn a_fifo_is_replaced_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        replace(&path, b"bytes", false).unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"bytes");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((1 << 20) + 1).unwrap();
        assert_eq!(read(file.path(), (1 << 20) + 1).unwrap().len(), (1 << 20) + 1);
        let error = read(file.path(), 1 << 20).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (io::ErrorKind::FileTooLarge, "larger than 1 MiB")
        );
    }
}

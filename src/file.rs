//! Reads regular files and nothing else: a FIFO is waited for until it has a writer, and a device may have no end.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Reads a regular file of at most `longest` bytes.
///
/// # Errors
/// `InvalidInput` for what is no regular file, `FileTooLarge` for a larger one, each with a sentence of its own; else
/// what open(2) and read(2) say.
pub(crate) fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(longest.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        let reason = format!("larger than {} MiB", longest >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// Whether an error says that the process or the system is short of descriptors or memory, and nothing about the file.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM]
        .iter()
        .any(|shortage| Some(*shortage) == errno)
}

/// Opens a regular file. It is found with O_PATH, which neither waits nor acts on a device (open(2)), and what was found
/// is opened: the path may lead elsewhere by then.
///
/// # Errors
/// `InvalidInput` for what is no regular file; else what open(2) says.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let found = with_flags(path, OFlags::PATH)?;
    demand_regular(&found.metadata()?)?;
    match File::open(format!("/proc/self/fd/{}", found.as_raw_fd())) {
        // Without a /proc that may be used; or a file that may not be read, which the next open says as well.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            let file = with_flags(path, OFlags::NONBLOCK)?;
            demand_regular(&file.metadata()?)?;
            Ok(file)
        }
        opened => opened,
    }
}

fn with_flags(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn demand_regular(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let kind = match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    let reason = format!("it is {kind}, not a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
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

    #[test]
    fn a_shortage_is_told_from_a_fault_of_the_file() {
        for (errno, expected) in [
            (libc::EMFILE, true),
            (libc::ENFILE, true),
            (libc::ENOMEM, true),
            (libc::ENOENT, false),
            (libc::EIO, false),
        ] {
            assert_eq!(is_shortage(&io::Error::from_raw_os_error(errno)), expected, "{errno}");
        }
    }
}

//! A folder of the user's alone.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::{bits, is_private};
use crate::base::platform::{Purpose, Unusable};

/// A folder of the user's alone, open: its files are found in it wherever its path leads later.
#[derive(Debug)]
pub(crate) struct Folder(File);

impl Folder {
    /// Opens the folder, which is made if it is missing.
    ///
    /// # Errors
    /// It is not the user's alone, or there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, Unusable> {
        // Those above it too, as the XDG Base Directory Specification says. What fails here is missing below.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .unwrap_or_default();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        match File::options().read(true).custom_flags(bits(flags)).open(path) {
            Ok(folder) => match is_private(&folder) {
                Ok(()) => Ok(Self(folder)),
                Err(reason) => Err(Unusable(Some(reason))),
            },
            Err(error) if is_no_folder(&error) => Err(Unusable(Some("it is a file or a symbolic link"))),
            // No home, or a disk that cannot be written.
            Err(_) => Err(Unusable(None)),
        }
    }

    /// Opens a file of the folder. Neither a symbolic link is followed nor a FIFO waited for.
    pub(crate) fn file(&self, name: &str, purpose: Purpose) -> io::Result<File> {
        let flags = match purpose {
            Purpose::Read => OFlags::RDONLY,
            Purpose::Lock => OFlags::RDWR | OFlags::CREATE,
            Purpose::New => OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        };
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(file.into())
    }

    /// Puts a file in the place of another one: a reader sees one or the other.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, name: &str) {
        unlinkat(&self.0, name, AtFlags::empty()).unwrap_or_default();
    }
}

/// O_DIRECTORY goes before O_NOFOLLOW.
fn is_no_folder(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| errno == Errno::LOOP || errno == Errno::NOTDIR)
}

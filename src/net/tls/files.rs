//! The files of the settings: the contents of each, its errors, and the remarks about it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::settings::Settings;
use crate::base::file::{self, Bytes};
use crate::net::x509::MAX_PEM_BYTES;
use crate::net::x509::pem::{PemKind, first, items};

/// One of the files, by its key in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsFile {
    /// `certificates[n].cert`.
    Certificate(usize),
    /// `certificates[n].key`.
    Key(usize),
    /// `client_ca`.
    ClientCa,
    /// `crl`.
    Crl,
    /// No file: the system has failed.
    None,
}

/// An error in a file, or a remark about it. Prints as `/tls/tls.crt: there is no certificate in it`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The file, by its key.
    pub file: TlsFile,
    /// Its path.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
}

impl FileError {
    pub(super) fn from_system(reason: String) -> Self {
        Self {
            file: TlsFile::None,
            path: PathBuf::new(),
            reason,
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file {
            TlsFile::None => f.write_str(&self.reason),
            TlsFile::Certificate(_) | TlsFile::Key(_) | TlsFile::ClientCa | TlsFile::Crl => {
                write!(f, "{}: {}", self.path.display(), self.reason)
            }
        }
    }
}

/// A remark about a file that is used nevertheless, such as that a certificate has expired; and the times at which the
/// remark is true, in seconds since 1970.
pub(super) type FileWarning = (FileError, Range<i64>);

/// The files as they were read.
#[derive(Debug, Hash)]
pub(super) struct FileContents {
    /// Certificate and key.
    pub(super) pairs: Vec<(PemFile, PemFile)>,
    pub(super) client_ca: Option<PemFile>,
    pub(super) crl: Option<PemFile>,
}

impl FileContents {
    /// Reads the files.
    ///
    /// # Errors
    /// A shortage of descriptors or memory, because of which a file was not read.
    pub(super) fn read(settings: &Settings) -> Result<Self, String> {
        let pairs = (0..).zip(&settings.certificates).map(|(index, paths)| {
            let cert = PemFile::read(TlsFile::Certificate(index), &paths.cert)?;
            Ok((cert, PemFile::read(TlsFile::Key(index), &paths.key)?))
        });
        let read = |file, path: &Option<PathBuf>| path.as_deref().map(|path| PemFile::read(file, path)).transpose();
        Ok(Self {
            pairs: pairs.collect::<Result<_, String>>()?,
            client_ca: read(TlsFile::ClientCa, &settings.client_ca)?,
            crl: read(TlsFile::Crl, &settings.crl)?,
        })
    }
}

/// One of the files, and what was read of it.
#[derive(Debug, Hash)]
pub(super) struct PemFile {
    file: TlsFile,
    pub(super) path: PathBuf,
    /// The contents, or the reason why there are none.
    bytes: Bytes,
}

impl PemFile {
    fn read(file: TlsFile, path: &Path) -> Result<Self, String> {
        let (bytes, path) = (file::read_unless_short(path, MAX_PEM_BYTES)?, path.to_owned());
        Ok(Self { file, path, bytes })
    }

    pub(super) fn fault(&self, reason: impl Into<String>) -> FileError {
        FileError {
            file: self.file,
            path: self.path.clone(),
            reason: reason.into(),
        }
    }

    pub(super) fn fault_at(&self, line: usize, reason: impl fmt::Display) -> FileError {
        self.fault(format!("line {line}: {reason}"))
    }

    /// Returns all items of one kind in it, each with its line; at least one.
    pub(super) fn items<T: PemKind>(&self) -> Result<Vec<(usize, T)>, FileError> {
        items(self.bytes()?).map_err(|fault| self.fault(fault.to_string()))
    }

    /// Returns the first item of one kind in it.
    pub(super) fn first<T: PemKind>(&self) -> Result<T, FileError> {
        first(self.bytes()?).map_err(|fault| self.fault(fault.to_string()))
    }

    fn bytes(&self) -> Result<&[u8], FileError> {
        self.bytes.as_deref().map_err(|unread| self.fault(unread))
    }
}

/// The time range of a remark that is always true.
pub(super) const ALWAYS: Range<i64> = i64::MIN..i64::MAX;

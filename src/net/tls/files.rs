//! The files of the settings: what was read of each, its faults, and the remarks about it.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::settings::Settings;
use crate::base::file::{self, Bytes};
use crate::net::x509::LARGEST;
use crate::net::x509::pem::{Item, first, items};

/// One of the files, by its key in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
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

/// A fault of one file, or a remark about it. Prints as `/tls/tls.crt: there is no certificate in it`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The file, by its key.
    pub part: Part,
    /// Its path.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
}

impl FileFault {
    pub(super) fn of_the_system(reason: String) -> Self {
        Self {
            part: Part::None,
            path: PathBuf::new(),
            reason,
        }
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::None => f.write_str(&self.reason),
            Part::Certificate(_) | Part::Key(_) | Part::ClientCa | Part::Crl => {
                write!(f, "{}: {}", self.path.display(), self.reason)
            }
        }
    }
}

/// A remark about a file that is used all the same, such as that a certificate has expired, and the time in which it is true,
/// in seconds since 1970.
pub(super) type Caution = (FileFault, Range<i64>);

/// The files as they were read.
#[derive(Debug, Hash)]
pub(super) struct Contents {
    /// Certificate and key.
    pub(super) pairs: Vec<(PemFile, PemFile)>,
    pub(super) client_ca: Option<PemFile>,
    pub(super) crl: Option<PemFile>,
}

impl Contents {
    /// Reads the files.
    ///
    /// # Errors
    /// The reason why some file was not read, if it is a shortage of descriptors or memory.
    pub(super) fn read(settings: &Settings) -> Result<Self, String> {
        let pairs = (0..).zip(&settings.certificates).map(|(index, paths)| {
            let cert = PemFile::read(Part::Certificate(index), &paths.cert)?;
            Ok((cert, PemFile::read(Part::Key(index), &paths.key)?))
        });
        let read = |part, path: &Option<PathBuf>| path.as_deref().map(|path| PemFile::read(part, path)).transpose();
        Ok(Self {
            pairs: pairs.collect::<Result<_, String>>()?,
            client_ca: read(Part::ClientCa, &settings.client_ca)?,
            crl: read(Part::Crl, &settings.crl)?,
        })
    }
}

/// One of the files, and what was read of it.
#[derive(Debug, Hash)]
pub(super) struct PemFile {
    part: Part,
    pub(super) path: PathBuf,
    /// Or why they cannot be read.
    bytes: Bytes,
}

impl PemFile {
    fn read(part: Part, path: &Path) -> Result<Self, String> {
        let (bytes, path) = (file::read_unless_short(path, LARGEST)?, path.to_owned());
        Ok(Self { part, path, bytes })
    }

    pub(super) fn fault(&self, reason: impl Into<String>) -> FileFault {
        FileFault {
            part: self.part,
            path: self.path.clone(),
            reason: reason.into(),
        }
    }

    pub(super) fn fault_at(&self, line: usize, reason: impl fmt::Display) -> FileFault {
        self.fault(format!("line {line}: {reason}"))
    }

    /// All items of one kind in it, each with its line; at least one.
    pub(super) fn items<T: Item>(&self) -> Result<Vec<(usize, T)>, FileFault> {
        items(self.bytes()?).map_err(|fault| self.fault(fault.to_string()))
    }

    /// The first item of one kind in it.
    pub(super) fn first<T: Item>(&self) -> Result<T, FileFault> {
        first(self.bytes()?).map_err(|fault| self.fault(fault.to_string()))
    }

    fn bytes(&self) -> Result<&[u8], FileFault> {
        self.bytes.as_deref().map_err(|unread| self.fault(unread))
    }
}

/// The times in which a remark is true that always is.
pub(super) const ALWAYS: Range<i64> = i64::MIN..i64::MAX;

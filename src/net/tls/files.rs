//! The files of the settings: what was read of each, and the faults of each.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use super::settings::{CertificatePaths, Settings};
use crate::base::file;
use crate::net::x509::LARGEST;
use crate::net::x509::pem::{Item, PemFault, first, items};

/// One of the files, by its key in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub(super) fn of_the_system(error: &rustls::Error) -> Self {
        Self {
            part: Part::None,
            path: PathBuf::new(),
            reason: error.to_string(),
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

/// The bytes of the files, or why they cannot be read.
#[derive(Debug)]
pub(super) struct Contents {
    /// Certificate and key.
    pub(super) pairs: Vec<(Bytes, Bytes)>,
    pub(super) client_ca: Option<Bytes>,
    pub(super) crl: Option<Bytes>,
}

/// The bytes of one file, or why there are none.
pub(super) type Bytes = Result<Vec<u8>, Unread>;

/// Why a file was not read.
#[derive(Clone, Debug, Hash)]
pub(super) struct Unread {
    reason: String,
    /// The process was short of descriptors or memory.
    is_shortage: bool,
}

impl Contents {
    pub(super) fn read(settings: &Settings) -> Self {
        let pair = |CertificatePaths { cert, key }: &CertificatePaths| (read(cert), read(key));
        Self {
            pairs: settings.certificates.iter().map(pair).collect(),
            client_ca: settings.client_ca.as_deref().map(read),
            crl: settings.crl.as_deref().map(read),
        }
    }

    /// Reads the files. Contents with another fingerprint than `before` are read again until two reads agree: a mounted Secret
    /// may be swapped between two of its files, which would make a key one of another certificate, and a file that is written in
    /// place is empty for a moment.
    pub(super) fn read_changed(settings: &Settings, before: Option<u64>) -> Self {
        let (mut contents, mut last) = (Self::read(settings), before);
        for _ in 1..MOST_READS {
            let fingerprint = Some(contents.fingerprint());
            if std::mem::replace(&mut last, fingerprint) == fingerprint {
                break;
            }
            contents = Self::read(settings);
        }
        contents
    }

    /// The reason why some file was not read, if it was a shortage of descriptors or memory: that is no fault of it.
    pub(super) fn shortage(&self) -> Option<&str> {
        let pairs = self.pairs.iter().flat_map(|(cert, key)| [cert, key]);
        let mut unread = pairs
            .chain(&self.client_ca)
            .chain(&self.crl)
            .filter_map(|bytes| bytes.as_ref().err());
        unread
            .find(|unread| unread.is_shortage)
            .map(|unread| unread.reason.as_str())
    }

    /// A hash of all files: those with the same one are taken for unchanged. Their author has no reason to forge it.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.pairs, &self.client_ca, &self.crl).hash(&mut hasher);
        hasher.finish()
    }
}

fn read(path: &Path) -> Bytes {
    file::read(path, LARGEST).map_err(|error| Unread {
        reason: PemFault::unreadable(&error).reason,
        is_shortage: file::is_shortage(&error),
    })
}

/// One of the files, and what was read of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PemFile<'a> {
    pub(super) part: Part,
    pub(super) path: &'a Path,
    pub(super) bytes: &'a Bytes,
}

impl PemFile<'_> {
    pub(super) fn fault(self, reason: impl Into<String>) -> FileFault {
        FileFault {
            part: self.part,
            path: self.path.to_owned(),
            reason: reason.into(),
        }
    }

    pub(super) fn fault_at(self, line: usize, reason: impl fmt::Display) -> FileFault {
        self.fault(format!("line {line}: {reason}"))
    }

    /// All items of one kind in it, each with its line; at least one.
    pub(super) fn items<T: Item>(self) -> Result<Vec<(usize, T)>, FileFault> {
        items(self.bytes()?).map_err(|fault| self.fault(fault.to_string()))
    }

    /// The first item of one kind in it.
    pub(super) fn first<T: Item>(self) -> Result<T, FileFault> {
        first(self.bytes()?).map_err(|fault| self.fault(fault.to_string()))
    }

    fn bytes(&self) -> Result<&[u8], FileFault> {
        let bytes = self.bytes.as_deref();
        bytes.map_err(|unread| self.fault(unread.reason.clone()))
    }
}

/// Of files that change all the time the last read counts.
const MOST_READS: usize = 5;

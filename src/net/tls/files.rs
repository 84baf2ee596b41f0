//! The files of the settings: what was read of each, and the faults of each.

use std::fmt;
use std::path::{Path, PathBuf};

use super::settings::{CertificatePaths, Settings};
use crate::base::file::{self, Bytes};
use crate::net::x509::LARGEST;
use crate::net::x509::pem::{Item, first, items};

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

/// The bytes of the files, or why they cannot be read.
#[derive(Debug, Hash)]
pub(super) struct Contents {
    /// Certificate and key.
    pub(super) pairs: Vec<(Bytes, Bytes)>,
    pub(super) client_ca: Option<Bytes>,
    pub(super) crl: Option<Bytes>,
}

impl Contents {
    /// Reads the files.
    ///
    /// # Errors
    /// The reason why some file was not read, if it is a shortage of descriptors or memory.
    pub(super) fn read(settings: &Settings) -> Result<Self, String> {
        let read = |path: &Path| file::read_unless_short(path, LARGEST);
        let pair = |CertificatePaths { cert, key }: &CertificatePaths| Ok((read(cert)?, read(key)?));
        Ok(Self {
            pairs: settings.certificates.iter().map(pair).collect::<Result<_, String>>()?,
            client_ca: settings.client_ca.as_deref().map(read).transpose()?,
            crl: settings.crl.as_deref().map(read).transpose()?,
        })
    }
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
        bytes.map_err(|unread| self.fault(unread))
    }
}

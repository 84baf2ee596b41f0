//! Keeps issued credentials in the user's cache folder, and lets one process at a time ask for new ones.
//!
//! Folder and files must belong to the user alone. What does not is ignored, with a line on stderr: without a cache all
//! works, only slower.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize, Serializer};
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

use super::authorization::{Authorization, Token};
use super::{CredentialError, Credentials, Issued, now};
use crate::base::json::Object;
use crate::base::platform::{Folder, Purpose, Unusable, is_private, is_symbolic_link};
use crate::base::secret::Secret;
use crate::client::dial::tls::KeyPair;
use crate::client::stderr;

/// The folder of the cache, open.
#[derive(Debug)]
pub(super) struct Cache {
    folder: Folder,
    path: PathBuf,
    /// Whether a faulty file has been named: it is looked at twice.
    has_remarked: AtomicBool,
}

/// The name of one entry: what the credentials depend on, hashed.
#[derive(Debug)]
pub(super) struct Key(String);

impl Key {
    /// The key for these parts. Each counts with its length, so that no two lists have the same bytes.
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Context::new(&SHA256);
        for part in parts {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finish();
        Self(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The right to ask for the credentials of a key. It ends with its process at the latest (flock(2)).
///
/// Its file holds when its last holder failed, in milliseconds since 1970.
#[derive(Debug)]
pub(super) struct Lock {
    file: Option<File>,
}

impl Lock {
    /// Lets those that wait for the lock fail as well.
    pub(super) fn note_failure(&self) {
        if let Some(mut file) = self.file.as_ref() {
            let line = format!("{}\n", milliseconds());
            // Without the note each of them asks for itself.
            let noted = file.set_len(0).and_then(|()| file.write_all(line.as_bytes()));
            noted.unwrap_or_default();
        }
    }

    fn last_failure(&self) -> Option<u128> {
        let mut line = String::new();
        self.file.as_ref()?.take(LONGEST_NOTE).read_to_string(&mut line).ok()?;
        line.trim_end().parse().ok()
    }
}

/// The content of a file.
#[derive(Serialize, Deserialize)]
struct Entry {
    /// When it was written, and until when it is valid, in seconds since 1970.
    written: i64,
    expires: i64,
    #[serde(serialize_with = "exposed")]
    token: Option<Secret>,
    certificate: Option<String>,
    #[serde(serialize_with = "exposed")]
    key: Option<Secret>,
}

impl Cache {
    /// Opens the folder, which is made if it is missing. `None` where there can be no cache.
    pub(super) fn open(path: &Path) -> Option<Self> {
        match Folder::open(path) {
            Ok(folder) => Some(Self {
                folder,
                path: path.to_owned(),
                has_remarked: AtomicBool::new(false),
            }),
            Err(Unusable(reason)) => {
                if let Some(reason) = reason {
                    stderr::line(&format!("{} is not used as a cache: {reason}", path.display()));
                }
                None
            }
        }
    }

    /// The credentials of that key, if they are still valid.
    pub(super) fn read(&self, key: &Key) -> Option<Issued> {
        let name = format!("{}.json", key.0);
        let ignored = |reason: &str| {
            if !self.has_remarked.swap(true, Ordering::Relaxed) {
                stderr::line(&format!("{} is ignored: {reason}", self.path.join(&name).display()));
            }
        };
        let file = match self.folder.file(&name, Purpose::Read) {
            Ok(file) => file,
            Err(error) => {
                if is_symbolic_link(&error) {
                    ignored("it is a symbolic link");
                }
                return None;
            }
        };
        if let Err(reason) = is_private(&file) {
            ignored(reason);
            return None;
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(LARGEST));
        file.take(LARGEST as u64).read_to_end(&mut bytes).ok()?;
        // A truncated file, or one of another version, is as good as none.
        let Object(entry): Object<Entry> = serde_json::from_slice(&bytes).ok()?;
        entry.into_issued(now())
    }

    /// Keeps these credentials, unless they expire too soon to be of use.
    pub(super) fn write(&self, key: &Key, issued: &Issued) {
        let Some(entry) = Entry::of(issued, now()) else {
            return;
        };
        if let Err(error) = self.replace(key, &entry) {
            // A full or read-only disk changes nothing but the time of the next login.
            if error.kind() != io::ErrorKind::ReadOnlyFilesystem {
                let path = self.path.display();
                stderr::line(&format!("cannot keep the credentials in {path}: {error}"));
            }
        }
    }

    /// Waits until no other process asks for the credentials of that key.
    ///
    /// One that has failed meanwhile fails this one, too: a login that a person has cancelled is not begun anew by each
    /// of the sessions that wait for it.
    pub(super) async fn lock(&self, key: &Key, deadline: Instant) -> Result<Lock, CredentialError> {
        let Ok(file) = self.folder.file(&format!("{}.lock", key.0), Purpose::Lock) else {
            return Ok(Lock { file: None });
        };
        let began = milliseconds();
        let mut has_waited = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // A file system without locks.
                Err(TryLockError::Error(_)) => return Ok(Lock { file: None }),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Err(CredentialError::Locked),
                Err(TryLockError::WouldBlock) => {
                    has_waited = true;
                    sleep(LOCK_WAIT).await;
                }
            }
        }
        let lock = Lock { file: Some(file) };
        if has_waited && lock.last_failure().is_some_and(|failed| failed >= began) {
            return Err(CredentialError::FailedElsewhere);
        }
        Ok(lock)
    }

    /// Writes a new file, and puts it in the place of the old one: a reader sees one or the other.
    fn replace(&self, key: &Key, entry: &Entry) -> io::Result<()> {
        let bytes = Zeroizing::new(serde_json::to_vec(entry)?);
        let (name, new) = (
            format!("{}.json", key.0),
            format!("{}.{}.new", key.0, std::process::id()),
        );
        // Of a process that was killed.
        self.folder.remove(&new);
        let mut file = self.folder.file(&new, Purpose::New)?;
        let written = file.write_all(&bytes);
        // Closed: Windows renames no file that is open.
        drop(file);
        let written = written.and_then(|()| self.folder.rename(&new, &name));
        if written.is_err() {
            self.folder.remove(&new);
        }
        written
    }
}

impl Entry {
    fn of(issued: &Issued, now: i64) -> Option<Self> {
        let expires = issued.expires?;
        let Credentials {
            authorization,
            certificate,
        } = &issued.credentials;
        let token = match authorization {
            Some(Authorization::Bearer(token)) => Some(token.secret().clone()),
            Some(Authorization::Basic(_)) | None => None,
        };
        let pair = certificate.as_ref();
        let is_useful = expires > now.saturating_add(MARGIN) && (token.is_some() || pair.is_some());
        is_useful.then(|| Self {
            written: now,
            expires,
            token,
            certificate: pair.map(|pair| pair.certificate.clone()),
            key: pair.map(|pair| pair.key.clone()),
        })
    }

    /// The credentials, if they are valid. An entry of the future, or older than a day, was written by another clock.
    fn into_issued(self, now: i64) -> Option<Issued> {
        let written = now.saturating_sub(LONGEST_USE)..=now.saturating_add(MARGIN);
        if !written.contains(&self.written) || self.expires <= now.saturating_add(MARGIN) {
            return None;
        }
        let token = match self.token {
            Some(token) => Some(Token::parse(token.expose()).ok()?),
            None => None,
        };
        let pair = self.certificate.zip(self.key);
        let certificate = pair.map(|(certificate, key)| KeyPair { certificate, key });
        (token.is_some() || certificate.is_some()).then(|| Issued {
            credentials: Credentials {
                authorization: token.map(Authorization::Bearer),
                certificate,
            },
            expires: Some(self.expires),
        })
    }
}

/// A secret as the file has it.
fn exposed<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(Secret::expose).serialize(serializer)
}

fn milliseconds() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis())
}

/// Between two tries for the lock: a login by a browser takes seconds.
const LOCK_WAIT: Duration = Duration::from_millis(50);
/// The seconds before its expiry in which a credential is used no longer: the time of a login, and of clocks that differ.
const MARGIN: i64 = 30;
/// The seconds for which an entry is used whatever its expiry.
const LONGEST_USE: i64 = 24 * 60 * 60;
/// The digits of a time.
const LONGEST_NOTE: u64 = 32;
/// A token, a chain of certificates and a key.
const LARGEST: usize = 256 * 1024;

//! The published host keys of a target, for ssh: in a file of known_hosts (sshd(8)) that ssh reads after its
//! ProxyCommand has written it.

use std::ffi::OsStr;
use std::fs;
use std::path::{self, Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::ssh_config::ask_ssh;
use super::stderr::UserOutput;
use super::user_file::{PUBLISHED_FILE, lock, make_folder, read, replace};
use crate::base::{file, platform};
use crate::protocol::host_key::{HostKey, PublishedKeys};

/// The receiver of published host keys.
#[derive(Clone, Debug)]
pub enum HostKeyOutput {
    /// A file of known_hosts.
    File(KnownHosts),
    /// The memory of this process.
    Memory(Arc<Mutex<Option<PublishedKeys>>>),
}

/// A file of known_hosts, and the names of a target in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHosts {
    /// The file. Its other lines stay.
    pub file: PathBuf,
    /// The names under which ssh looks the keys up.
    pub names: Vec<String>,
}

impl KnownHosts {
    /// Creates the entry of a target, `HOST:PORT`, in this file; a relative path is that of the working folder.
    pub fn new(file: PathBuf, target: &str) -> Self {
        let file = path::absolute(&file).unwrap_or(file);
        let names = vec![name(target)];
        Self { file, names }
    }

    /// Returns the user's own file of published keys; `None` without a home.
    pub fn default_file() -> Option<PathBuf> {
        Some(platform::home()?.join(".ssh").join(PUBLISHED_FILE))
    }

    /// Writes the published keys of the names, instead of those that were published before; keys that are not authenticated
    /// only for names without any. Returns a sentence about a key that has changed. Blocks, also while another process
    /// writes.
    fn update(&self, published: &PublishedKeys, is_authenticated: bool) -> anyhow::Result<Option<String>> {
        let merge = |mut entry: Self| {
            let text = read(&self.file)?;
            entry
                .names
                .retain(|name| is_authenticated || !has_published(&text, name));
            anyhow::Ok(entry.merge(&text, published))
        };
        if merge(self.clone())?.is_none() {
            return Ok(None);
        }
        // Before the lock: ssh may run other programs.
        let mut entry = self.clone();
        entry.names.retain(|name| is_authenticated || !self.knows(name));
        if entry.names.is_empty() {
            return Ok(None);
        }
        // Two links to the file have one lock.
        let real = fs::canonicalize(&self.file).unwrap_or_else(|_| self.file.clone());
        let folder = real.parent().unwrap_or(&real);
        make_folder(folder)?;
        let _lock = lock(folder)?;
        let Some((text, change)) = merge(entry)? else {
            return Ok(None);
        };
        replace(self.file.clone(), &text, &mut Vec::new())?;
        Ok(change)
    }

    /// Returns the new text of the file, and a sentence about a key that has changed; `None` if nothing is new.
    fn merge(&self, text: &[u8], published: &PublishedKeys) -> Option<(Vec<u8>, Option<String>)> {
        let mark = format!("{MARK}{}", published.source.word());
        let lines = self.names.iter();
        let lines = lines.flat_map(|name| published.keys.iter().map(move |key| format!("{name} {key}")));
        let wanted: Vec<_> = lines.map(|line| format!("{line} {mark}\n")).collect();
        let (ours, mut kept): (Vec<_>, Vec<_>) = text
            .split_inclusive(|&byte| byte == b'\n')
            .partition(|line| self.key(line).is_some());
        if ours.len() == wanted.len() && wanted.iter().all(|line| ours.contains(&line.as_bytes())) {
            return None;
        }
        if kept.last().is_some_and(|line| !line.ends_with(b"\n")) {
            kept.push(b"\n");
        }
        let known: Vec<_> = ours.iter().filter_map(|line| self.key(line)).collect();
        let change = self.change(&known, published);
        // The first ones were written first.
        let bytes = kept.concat().len() + wanted.concat().len();
        let mut surplus = bytes.saturating_sub(MAX_BYTES);
        kept.retain(|line| {
            let is_kept = surplus == 0 || marked(line).is_none();
            surplus = surplus.saturating_sub(if is_kept { 0 } else { line.len() });
            is_kept
        });
        kept.extend(wanted.iter().map(String::as_bytes));
        Some((kept.concat(), change))
    }

    /// Returns the key of a line that was written for one of the names; `None` for other lines.
    fn key(&self, line: &[u8]) -> Option<HostKey> {
        let (name, key) = marked(line)?;
        self.names.iter().any(|own| own == name).then_some(key)
    }

    /// Returns whether a name has a key, or may have one, in a file that ssh reads for the target, which cannot be searched
    /// without ssh-keygen.
    fn knows(&self, name: &str) -> bool {
        let home = platform::home().unwrap_or_default();
        let others = USER_FILES.map(|file| home.join(file));
        let is_found = |file: &PathBuf| {
            file.try_exists().unwrap_or(true) && find(name, file).is_none_or(|found| found.status.success())
        };
        others.iter().chain([&self.file]).any(is_found)
            || self.files_of_ssh().is_none_or(|files| files.iter().any(is_found))
    }

    /// Returns the files in which ssh looks the target up by its own configuration; none without a program ssh. `None` if they
    /// cannot be known: `ssh -G` fails, or a path has a space.
    fn files_of_ssh(&self) -> Option<Vec<PathBuf>> {
        let name = self.names.first()?;
        let with_port = name.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
        let (host, port) = with_port.unwrap_or((name, "22"));
        let Some(answer) = ask_ssh(&["-p", port].map(OsStr::new), host) else {
            return Some(Vec::new());
        };
        let text = answer.ok()?;
        let of_line = |line: &str| {
            let (keyword, paths) = line.split_once(' ')?;
            let is_meant = matches!(keyword, "userknownhostsfile" | "globalknownhostsfile");
            is_meant.then(|| paths.split(' ').map(PathBuf::from).collect::<Vec<_>>())
        };
        let files = text.lines().filter_map(of_line).flatten().filter(|path| path != "none");
        let files: Vec<_> = files.collect();
        files.iter().all(|path| path.is_absolute()).then_some(files)
    }

    /// Returns a sentence about a known key that is published no more, unless other keys are.
    fn change(&self, known: &[HostKey], published: &PublishedKeys) -> Option<String> {
        let is_published = |key: &HostKey| published.keys.iter().any(|other| other == key);
        let is_any_kept = known.iter().any(is_published);
        let (old, new) = known.iter().filter(|key| !is_published(key)).find_map(|old| {
            let same_kind = published.keys.iter().find(|new| new.kind() == old.kind());
            let any = published.keys.iter().find(|_| !is_any_kept);
            Some((old, same_kind.or(any)?))
        })?;
        Some(format!(
            "the host key of {} has changed from {} to {} ({}), as {} says",
            self.names.first()?,
            old.fingerprint(),
            new.fingerprint(),
            new.kind(),
            published.source.publisher()
        ))
    }
}

/// Passes published keys on before ssh asks for them. A failure is one warning: ssh then decides without them.
/// Keys that are not authenticated are added only for names without any, and are printed nowhere.
pub(super) async fn publish(
    host_keys: Option<&HostKeyOutput>,
    user: &UserOutput,
    published: PublishedKeys,
    is_authenticated: bool,
) {
    let known = match host_keys.cloned() {
        Some(HostKeyOutput::File(known)) if !published.keys.is_empty() => known,
        Some(HostKeyOutput::Memory(memory)) if !published.keys.is_empty() && is_authenticated => {
            *memory.lock() = Some(published);
            return;
        }
        Some(_) | None => return,
    };
    let file = known.file.display().to_string();
    let update = spawn_blocking(move || known.update(&published, is_authenticated));
    let line = match timeout(WRITE_TIMEOUT, update).await {
        Ok(Ok(Ok(change))) => change,
        Ok(Ok(Err(error))) => Some(format!("the published host keys are not written: {error:#}")),
        Ok(Err(_)) | Err(_) => Some(format!(
            "the published host keys are not written: {file} took longer than {WRITE_TIMEOUT:?}"
        )),
    };
    if let Some(line) = line {
        (user.0)(&line);
    }
}

/// Asks ssh-keygen, which finds hashed names, too, for a name in a regular file; `None` without either.
pub(super) fn find(name: &str, file: &Path) -> Option<Output> {
    file::open(file).ok()?;
    let mut program = Command::new("ssh-keygen");
    platform::output(program.args(["-F", name, "-f"]).arg(file), KEYGEN_TIMEOUT).ok()
}

/// Returns whether the text of the file has a published key of a name.
fn has_published(text: &[u8], name: &str) -> bool {
    let mut lines = text.split_inclusive(|&byte| byte == b'\n').filter_map(marked);
    lines.any(|(known, _)| known == name)
}

/// Returns the name and the key of a line that was written by [`publish`]; `None` for other lines.
fn marked(line: &[u8]) -> Option<(&str, HostKey)> {
    let (name, rest) = str::from_utf8(line).ok()?.split_once(' ')?;
    let (key, _) = rest.split_once(&format!(" {MARK}"))?;
    Some((name, key.parse().ok()?))
}

/// Returns the name of a target, `HOST:PORT`, as ssh looks it up: in lower case, with the port unless it is 22.
pub fn name(target: &str) -> String {
    let target = target.to_ascii_lowercase();
    let (host, port) = target.rsplit_once(':').unwrap_or((&target, "22"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match port.trim_start_matches('0') {
        "22" => host.to_owned(),
        port => format!("[{host}]:{port}"),
    }
}

/// Returns the value of HostKeyAlias as ssh looks it up.
///
/// # Errors
/// It would be more than one name in a line of known_hosts.
pub fn alias(text: &str) -> Result<String, &'static str> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_of_name) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("expected one name, of letters, digits and `-_.:[]`"),
    }
}

/// The beginning of the comment of our lines; the source follows.
const MARK: &str = "switchboard:";
/// The other files that ssh reads by default. Those of the user are in the home.
const USER_FILES: [&str; 4] = [
    ".ssh/known_hosts",
    ".ssh/known_hosts2",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_known_hosts2",
];
/// The size of the file above which the oldest published keys are dropped: half of what is read.
const MAX_BYTES: usize = 512 << 10;
/// The longest time of a search in a file.
const KEYGEN_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time that a login waits for the file, such as one on a mount that hangs, and for ssh.
const WRITE_TIMEOUT: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests;

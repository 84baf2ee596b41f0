//! Installs blocks: each has a file of its own in a folder next to the user's file, which includes all of them, or is a
//! part of the user's file. A narrower pattern comes first, because ssh takes the first block that matches.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::process::Command;

use super::block::title;
use super::quoting::{System, words};
use crate::base::platform;
use crate::client::user_file::{PUBLISHED_FILE, lock, make_folder, read, replace};

/// The place where blocks are installed.
#[derive(Clone, Debug)]
pub struct ConfigPaths {
    /// The user's file.
    pub config: PathBuf,
    /// True if ssh looks for the relative path of an Include in the folder of `config`.
    pub is_default: bool,
}

impl ConfigPaths {
    /// Returns the place of the user's own file: ssh finds it by the home of passwd(5), and a relative path in it by HOME,
    /// which may differ. `None` if there is no home.
    pub fn of_user() -> Option<Self> {
        let home = platform::home();
        // ssh expands the `~` of a ControlPath.
        let arguments = ["-F", "none", "-o", "ControlPath=~/.ssh/config"].map(OsStr::new);
        let found = ask_ssh(&arguments, "localhost").and_then(Result::ok);
        let found = found.and_then(|text| value(&text, "controlpath").map(PathBuf::from));
        let found = found.filter(|path| path.is_absolute());
        let by_home = home.map(|home| home.join(".ssh").join("config"));
        let config = found.or_else(|| by_home.clone())?;
        Some(Self {
            is_default: by_home.as_ref() == Some(&config),
            config,
        })
    }

    /// Returns the ProxyCommand that ssh has for a host, or ssh's error message; `None` without a program ssh.
    pub fn proxy_command(&self, host: &str) -> Option<Result<String, String>> {
        let settings = self.settings(host, &[])?;
        Some(settings.map(|text| value(&text, "proxycommand").unwrap_or("none").to_owned()))
    }

    /// Returns the jump host that ssh has for a host, in the same way, without brackets: ssh adds some.
    pub fn proxy_jump(&self, host: &str) -> Option<Result<String, String>> {
        let settings = self.settings(host, &[])?;
        Some(settings.map(|text| value(&text, "proxyjump").unwrap_or("none").replace(['[', ']'], "")))
    }

    /// Returns the address and port to which ssh connects for a host, in the same way.
    pub fn destination(&self, host: &str) -> Option<Result<String, String>> {
        let of = |text: &str, key| value(text, key).unwrap_or_default().to_owned();
        let settings = self.settings(host, &[])?;
        Some(settings.map(|text| format!("{} port {}", of(&text, "hostname"), of(&text, "port"))))
    }

    /// Returns the files of known_hosts that ssh has for hosts, without those of published keys: `published`, and what
    /// installed blocks name. `None` if they are ssh's default, or there is no program ssh.
    ///
    /// # Errors
    /// ssh shows tokens expanded, and no quotes: other hosts, ports and users may have other files, or a path has a space.
    pub fn known_hosts(&self, hosts: &[String], published: &str) -> anyhow::Result<Option<Vec<String>>> {
        let mut all = self.published_files();
        all.extend(["none", published].map(str::to_owned));
        // ssh has expanded `~`, and a home with a space would be two paths.
        let folder = Self::of_user().map(|own| own.config.with_file_name(""));
        let folder = folder.map(|folder| format!(" {}", folder.display()));
        let own = |settings: String| {
            let mut text = format!(" {}", value(&settings, "userknownhostsfile").unwrap_or_default());
            if let Some(folder) = folder.as_ref().filter(|folder| folder.trim_start().contains(' ')) {
                text = text.replace(folder.as_str(), " ~/.ssh/");
            }
            while let Some(end) = all.iter().find(|file| text.ends_with(&format!(" {file}"))) {
                text.truncate(text.len() - end.len() - 1);
            }
            text
        };
        // Every second one is asked for with another port and user: a token would have another value there.
        let other = ["-p", "2", "-l", "switchboard"].map(OsStr::new);
        let again = hosts.first().filter(|_| hosts.len() == 1);
        let arguments = [&[][..], &other].into_iter().cycle();
        let mut answers = Vec::new();
        for (host, arguments) in hosts.iter().chain(again).zip(arguments) {
            match self.settings(host, arguments) {
                Some(Ok(settings)) => answers.push(own(settings)),
                Some(Err(error)) => bail!("ssh does not say its UserKnownHostsFile for {host}: {error}"),
                None => return Ok(None),
            }
        }
        answers.dedup();
        let Some(first) = answers.first() else {
            return Ok(None);
        };
        let files = first
            .split(' ')
            .filter(|file| !file.is_empty() && !file.ends_with(PUBLISHED_FILE));
        let files: Vec<_> = files.map(str::to_owned).collect();
        let is_path =
            |file: &String| (Path::new(file).is_absolute() || file.starts_with('~')) && !file.contains(['%', '$']);
        ensure!(
            answers.len() == 1 && files.iter().all(is_path),
            "the UserKnownHostsFile of ssh has a token or a space"
        );
        let is_default = |file: &String| DEFAULT_FILES.iter().any(|default| file.ends_with(default));
        Ok((files.is_empty() || !files.iter().all(is_default)).then_some(files))
    }

    /// Returns the files of published keys that installed blocks name: the last ones in their lines.
    fn published_files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let mut texts: Vec<_> = entries.filter_map(|entry| read(&entry.path()).ok()).collect();
        texts.retain(|text| text.starts_with(HEADER.as_bytes()));
        let config = read(&self.config).unwrap_or_default();
        let config = String::from_utf8_lossy(&config).into_owned();
        let inline = config.split(BEGIN).skip(1).filter_map(|rest| rest.split(END).next());
        texts.extend(inline.map(|block| block.as_bytes().to_vec()));
        let text = texts.concat();
        let text = String::from_utf8_lossy(&text);
        let values = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("UserKnownHostsFile "));
        let last = values.filter_map(|value| match value.strip_suffix('"') {
            Some(quoted) => quoted.rsplit('"').next(),
            None => value.rsplit(' ').next(),
        });
        last.map(|file| file.replace("%%", "%")).collect()
    }

    fn settings(&self, host: &str, arguments: &[&OsStr]) -> Option<Result<String, String>> {
        let is_of_user = Self::of_user().is_some_and(|own| own.config == self.config);
        let file = [OsStr::new("-F"), self.config.as_os_str()];
        let file = if is_of_user { &[] } else { file.as_slice() };
        ask_ssh(&[file, arguments].concat(), host)
    }

    /// Writes the block of these names: into the user's file if `is_inline`, else into a file of its own, with an Include
    /// in the user's file. Returns the files that have changed.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn install(&self, names: &[String], block: &str, is_inline: bool) -> anyhow::Result<Vec<PathBuf>> {
        self.install_next(names, HEADER, is_inline, |_| block.to_owned())
    }

    /// Does so with a block that is made of the former text of the file, while no other program writes it, and with that line
    /// before it. An empty block is removed.
    ///
    /// # Errors
    /// As those of [`install`](Self::install).
    pub(super) fn install_next(
        &self,
        names: &[String],
        header: &str,
        is_inline: bool,
        block: impl FnOnce(&str) -> String,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let (file, pattern) = (self.file(names)?, self.pattern()?);
        // Fails before a folder is made, if the user's file is not a regular file.
        read(&self.config)?;
        self.config.parent().map_or(Ok(()), make_folder)?;
        let _lock = lock(self.config.parent().unwrap_or(Path::new(".")))?;
        let mut config = read(&self.config)?;
        cut(&mut config, &names.join(" "));
        let block = block(&self.block(names)?);
        if block.is_empty() {
            return self.without_file(&file, config);
        }
        if is_inline {
            insert(&mut config, &names.join(" "), &block, &include(&pattern));
            return self.without_file(&file, config);
        }
        make_folder(&self.folder())?;
        let mut changed = Vec::new();
        replace(file, format!("{header}{block}").as_bytes(), &mut changed)?;
        if !has_include(&config, &pattern) {
            config.splice(..0, include(&pattern).into_bytes());
        }
        // The file may be another program's, as that of a Nix store is.
        let by_hand =
            || format!("`Include {pattern}` is still missing before all Host lines, while the block is written");
        replace(self.config.clone(), &config, &mut changed).with_context(by_hand)?;
        Ok(changed)
    }

    /// Returns the text of the file of these names; empty if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn block(&self, names: &[String]) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&read(&self.file(names)?)?).into_owned())
    }

    /// Removes the block of these names, and with the last one the Include. Returns the files that have changed.
    ///
    /// # Errors
    /// A file cannot be read, written or removed.
    pub fn remove(&self, names: &[String]) -> anyhow::Result<Vec<PathBuf>> {
        let file = self.file(names)?;
        let _lock = lock(self.config.parent().unwrap_or(Path::new(".")))?;
        let mut config = read(&self.config)?;
        cut(&mut config, &names.join(" "));
        self.without_file(&file, config)
    }

    /// Writes this text of the user's file, and removes the file of a block, with the last one also the Include.
    fn without_file(&self, file: &Path, mut config: Vec<u8>) -> anyhow::Result<Vec<PathBuf>> {
        let folder = self.folder();
        let mut changed = Vec::new();
        let others = match fs::read_dir(&folder) {
            Ok(entries) => entries.collect::<io::Result<Vec<_>>>(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let others = others.with_context(|| format!("cannot read {}", folder.display()))?;
        if others.iter().all(|other| other.path() == file) {
            // An Include without our comment is the user's own. Another HOME at the time of `--write` has another path in it.
            for is_default in [true, false] {
                let Ok(pattern) = (Self {
                    is_default,
                    ..self.clone()
                })
                .pattern() else {
                    continue;
                };
                let lines = include(&pattern).into_bytes();
                if let Some(start) = find(&config, &lines) {
                    config.drain(start..start + lines.len());
                }
            }
        }
        replace(self.config.clone(), &config, &mut changed)?;
        match fs::remove_file(file) {
            Ok(()) => changed.push(file.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", file.display())),
        }
        // The folder stays while there is anything in it.
        fs::remove_dir(&folder).unwrap_or_default();
        Ok(changed)
    }

    fn folder(&self) -> PathBuf {
        self.config.with_file_name(FOLDER)
    }

    /// Returns the file of a block. No pattern has one of the replacement characters, so different names have different
    /// files. The prefix is the order in which ssh reads them; it keeps a file from being hidden, and from being a device of
    /// Windows.
    fn file(&self, names: &[String]) -> anyhow::Result<PathBuf> {
        let replaced = |character| match character {
            '*' => '+',
            '?' => '=',
            '!' => '^',
            ':' => ';',
            ' ' => ',',
            other => other,
        };
        let title = title(names)?;
        let [shortness, wildcards] = breadth(&title);
        let name = format!("{shortness:03}{wildcards:03} Host {title}.conf");
        Ok(self.folder().join(name.chars().map(replaced).collect::<String>()))
    }

    /// Returns the path of all files, as an Include has it.
    fn pattern(&self) -> anyhow::Result<String> {
        let folder = self.folder();
        match folder.to_str() {
            _ if self.is_default => Ok(format!("{FOLDER}/*.conf")),
            Some(path) if !path.contains(['"', '\'', '\n', '%', '*', '?', '[', '\\', '~']) => {
                Ok(format!("\"{path}/*.conf\""))
            }
            _ => bail!("the path {} cannot be written in an Include", folder.display()),
        }
    }
}

/// Returns the words of our own program, and the target, by which ssh connects to a name, with the user's settings; `None`
/// if it does not connect by our program.
pub fn installed(name: &str, port: Option<&str>) -> Option<(Vec<String>, String)> {
    let port: Vec<_> = port.into_iter().flat_map(|port| ["-p", port]).map(OsStr::new).collect();
    let text = ask_ssh(&port, name)?.ok()?;
    let words = words(value(&text, "proxycommand")?, System::OWN);
    let (program, target) = words.split_at_checked(words.iter().position(|word| word.starts_with("%h"))?)?;
    let is_ours = program.get(1).is_some_and(|word| word == "connect") && !target.is_empty();
    let host = value(&text, "hostname")?;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    is_ours.then(|| Some((program.to_vec(), format!("{host}:{}", value(&text, "port")?))))?
}

/// Returns the settings that ssh has for a host (`ssh -G`), or ssh's error message; `None` without a program ssh.
pub(in crate::client) fn ask_ssh(arguments: &[&OsStr], host: &str) -> Option<Result<String, String>> {
    let mut ssh = Command::new("ssh");
    let answer = match platform::output(ssh.arg("-G").args(arguments).args(["--", host]), SSH_TIMEOUT) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Some(Err(LATE_SSH.to_owned())),
        answer => answer.ok()?,
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(match answer.status.success() {
        true => Ok(text(&answer.stdout)),
        false => Err(text(&answer.stderr).lines().last().unwrap_or_default().to_owned()),
    })
}

/// Returns the value of a keyword among the settings of `ssh -G`.
fn value<'a>(settings: &'a str, keyword: &str) -> Option<&'a str> {
    let mut lines = settings.lines();
    lines.find_map(|line| line.strip_prefix(keyword)?.strip_prefix(' '))
}

/// Returns the order of a block, which is greater for more names: that of its widest pattern. A pattern that matches only
/// a part of the names of another has a longer shortest name, or fewer wildcards.
fn breadth(title: &str) -> [usize; 2] {
    let of_pattern = |name: &str| {
        let [stars, marks] = ["*", "?"].map(|wildcard| name.matches(wildcard).count());
        let wildcards = 100 * marks + 2 * stars + usize::from(!title.contains('!'));
        [999 - (name.len() - stars).min(999), wildcards.min(999)]
    };
    let reached = title.split_whitespace().filter(|name| !name.starts_with('!'));
    reached.map(of_pattern).max().unwrap_or_default()
}

/// Adds a block to the user's file, before the first block of more names. What follows holds for all hosts, as before.
fn insert(config: &mut Vec<u8>, title: &str, block: &str, include: &str) {
    let (mut end, mut place) = (0, 0);
    for line in config.split_inclusive(|&byte| byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        let other = text.strip_prefix(BEGIN).map(breadth);
        if other > Some(breadth(title)) {
            break;
        }
        end += line.len();
        if text.starts_with(END) || config.get(..end) == Some(include.as_bytes()) {
            place = end;
        }
    }
    let lines = format!("{BEGIN}{title}\n{block}Host *\n{END}{title}\n");
    config.splice(place..place, lines.into_bytes());
}

/// Removes a block from the text of the user's file.
fn cut(config: &mut Vec<u8>, title: &str) {
    let [begin, end] = [BEGIN, END].map(|marker| format!("{marker}{title}\n").into_bytes());
    let start = find(config, &begin);
    if let Some((start, length)) = start.and_then(|start| Some((start, find(config.get(start..)?, &end)?))) {
        config.drain(start..start + length + end.len());
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|found| found == part)
}

/// Returns the lines that are added to the user's file.
fn include(pattern: &str) -> String {
    format!("{OURS}\nInclude {pattern}\n")
}

/// Returns whether a text includes the files for all hosts: after a Host line an Include holds for that host only.
fn has_include(text: &[u8], pattern: &str) -> bool {
    let text = String::from_utf8_lossy(text);
    let keyword = |line: &str| {
        let words = line.trim_start().split([' ', '\t', '=', '"']);
        words.take(1).collect::<String>().to_ascii_lowercase()
    };
    let mut top = text
        .lines()
        .map(|line| (keyword(line), line))
        .take_while(|(keyword, _)| keyword != "host" && keyword != "match");
    top.any(|(keyword, line)| keyword == "include" && line.contains(pattern.trim_matches('"')))
}

/// The folder of the blocks, beside the user's file.
const FOLDER: &str = "switchboard.d";
/// The line before our Include in the user's file.
const OURS: &str = "# Written by `switchboard config --write`; `--remove` takes it away with the line below:";
/// The beginnings of the lines around a block in the user's file.
const BEGIN: &str = "# BEGIN switchboard ";
const END: &str = "# END switchboard ";
/// The line before a block.
const HEADER: &str = "# Written by `switchboard config --write`, which replaces this file.\n";
/// The maximum time for `ssh -G`, which reads files, and runs the programs of `Match exec`.
const SSH_TIMEOUT: Duration = Duration::from_secs(5);
const LATE_SSH: &str = "`ssh -G` has not ended within 5 s: does a program of a Match exec wait?";
/// The ends of the paths that ssh reads by default.
const DEFAULT_FILES: [&str; 2] = ["/.ssh/known_hosts", "/.ssh/known_hosts2"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::thread;

    const INCLUDE: &str = "Include switchboard.d/*.conf";

    struct Home {
        folder: tempfile::TempDir,
        paths: ConfigPaths,
    }

    impl Home {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let config = folder.path().join(".ssh/config");
            Self {
                folder,
                paths: ConfigPaths {
                    config,
                    is_default: true,
                },
            }
        }

        fn with(text: &[u8]) -> Self {
            let home = Self::new();
            fs::create_dir(home.folder.path().join(".ssh")).unwrap();
            fs::write(&home.paths.config, text).unwrap();
            home
        }

        fn install(&self, name: &str, block: &str) -> usize {
            self.paths.install(&[name.to_owned()], block, false).unwrap().len()
        }

        fn remove(&self, name: &str) -> usize {
            self.paths.remove(&[name.to_owned()]).unwrap().len()
        }

        fn bytes(&self) -> Vec<u8> {
            fs::read(&self.paths.config).unwrap()
        }

        /// The names of the folder of blocks.
        fn files(&self) -> Vec<String> {
            let entries = fs::read_dir(self.paths.folder()).into_iter().flatten();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort_unstable();
            names
        }
    }

    /// ssh takes the user's file by passwd(5), so that it is the same one under any HOME.
    #[test]
    fn an_include_is_removed_under_another_home_than_that_of_its_write() {
        let home = Home::with(b"Host x\n");
        let names = ["a".to_owned()];
        for [written, removed] in [[false, true], [true, false]] {
            let paths = |is_default| ConfigPaths {
                is_default,
                ..home.paths.clone()
            };
            paths(written).install(&names, "Host a\n", false).unwrap();
            assert!(String::from_utf8(home.bytes()).unwrap().contains("\nInclude "));
            paths(removed).remove(&names).unwrap();
            assert_eq!(home.bytes(), b"Host x\n", "{written} {removed}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_written_is_named_and_not_missed_after_it_has_been_added_by_hand() {
        let home = Home::with(b"");
        fs::remove_file(&home.paths.config).unwrap();
        let store = home.folder.path().join("store");
        symlink(store.join("config"), &home.paths.config).unwrap();
        let install = || home.paths.install(&["a".to_owned()], "Host a\n", false);
        let said = format!("{:#}", install().unwrap_err());
        assert!(said.contains(&format!("`{INCLUDE}` is still missing")), "{said}");
        fs::create_dir(&store).unwrap();
        fs::write(store.join("config"), format!("{INCLUDE}\n")).unwrap();
        assert_eq!(install().unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_block_is_installed_once_changed_and_removed_with_the_users_bytes_as_they_were() {
        for before in [
            &b"User x\n\nHost b\n  Port 1"[..],
            b"",
            b"Host a\r\n  Port 1\r\n",
            b"# caf\xe9\nUser=x\n",
            // Within a block it would hold for that host only.
            b"Host a\nInclude switchboard.d/*.conf\n",
            b"\tMatch all\ninclude switchboard.d/*.conf\n",
        ] {
            let home = Home::with(before);
            assert_eq!(home.install("*.a", "Host *.a\n"), 2);
            assert_eq!(
                home.bytes(),
                [format!("{OURS}\n{INCLUDE}\n").as_bytes(), before].concat()
            );
            assert_eq!(home.files(), ["997003,Host,+.a.conf"]);
            assert_eq!(home.install("*.a", "Host *.a\n"), 0);
            assert_eq!(home.install("*.a", "Host *.a\n    Port 2\n"), 1);
            let written = fs::read_to_string(home.paths.folder().join("997003,Host,+.a.conf")).unwrap();
            assert_eq!(written, format!("{HEADER}Host *.a\n    Port 2\n"));
            assert_eq!(home.install("b", "Host b\n"), 1);
            assert_eq!(home.remove("*.a"), 1);
            assert_ne!(home.bytes(), before, "one is left");
            assert_eq!(home.remove("b"), 2);
            assert_eq!(home.bytes(), before);
            assert!(!home.paths.folder().exists());
            assert_eq!(home.remove("b"), 0);
            let left = fs::read_dir(home.folder.path().join(".ssh")).unwrap();
            assert_eq!(left.count(), 1, "nothing is left beside the file");
        }
    }

    #[test]
    fn a_narrower_pattern_comes_before_a_wider_one() {
        for (narrow, wide) in [
            ("devbox.a.example", "*.a.example"),
            ("*.a.example", "*.example"),
            ("*.example", "*"),
            ("a", "?"),
            ("?", "*"),
            ("a?", "a*"),
            ("a", "a*"),
            ("a*b", "*a*b*"),
            ("*.a !x.a", "*.a"),
            ("::1", "*:*"),
            ("a.example", "x *.example"),
        ] {
            let [narrow, wide] = [narrow, wide].map(|title| title.split(' ').map(str::to_owned).collect::<Vec<_>>());
            let home = Home::new();
            let [one, other] = [&narrow, &wide].map(|names| home.paths.file(names).unwrap());
            assert!(one < other, "{one:?} {other:?}");
            // And in the user's file, in each order.
            for order in [[&narrow, &wide], [&wide, &narrow]] {
                let home = Home::with(b"User x\n");
                for names in order {
                    home.paths.install(names, "Host y\n", true).unwrap();
                }
                let text = String::from_utf8(home.bytes()).unwrap();
                let place = |names: &[String]| text.find(&format!("{BEGIN}{}\n", names.join(" "))).unwrap();
                assert!(place(&narrow) < place(&wide), "{text}");
            }
        }
    }

    #[test]
    fn an_inline_block_is_installed_once_changed_and_removed_and_ends_before_the_users_lines() {
        for before in [
            &b"User x\n\nHost b\n  Port 1"[..],
            b"",
            b"Host a\r\n  Port 1\r\n",
            b"# caf\xe9\nUser=x\n",
        ] {
            let home = Home::with(before);
            let inline = |names: &str, block: &str| home.paths.install(&[names.to_owned()], block, true).unwrap().len();
            assert_eq!(inline("*.a", "Host *.a\n"), 1);
            let text = |block: &str| format!("{BEGIN}*.a\n{block}Host *\n{END}*.a\n");
            assert_eq!(home.bytes(), [text("Host *.a\n").as_bytes(), before].concat());
            assert_eq!(inline("*.a", "Host *.a\n"), 0);
            assert_eq!(inline("*.a", "Host *.a\n    Port 2\n"), 1);
            assert_eq!(
                home.bytes(),
                [text("Host *.a\n    Port 2\n").as_bytes(), before].concat()
            );
            // A block has one place.
            assert_eq!(home.install("*.a", "Host *.a\n"), 2);
            assert_eq!(
                home.bytes(),
                [format!("{OURS}\n{INCLUDE}\n").as_bytes(), before].concat()
            );
            home.install("b", "Host b\n");
            assert_eq!(inline("*.a", "Host *.a\n"), 2);
            let both = [format!("{OURS}\n{INCLUDE}\n{}", text("Host *.a\n")).as_bytes(), before].concat();
            assert_eq!((home.bytes(), home.files().len()), (both, 1));
            assert_eq!((home.remove("b"), home.remove("*.a")), (2, 1));
            assert_eq!(home.bytes(), before);
            assert_eq!(home.remove("*.a"), 0);
        }
    }

    #[test]
    fn what_is_the_users_own_stays() {
        for before in [
            "# mine\ninclude switchboard.d/*.conf\nHost a\n",
            "Include=switchboard.d/*.conf\n",
            "  Include  \"switchboard.d/*.conf\"  \n",
            "Include more switchboard.d/*.conf\nMatch all\n",
        ] {
            let home = Home::with(before.as_bytes());
            assert_eq!((home.install("a", "Host a\n"), home.remove("a")), (1, 1));
            assert_eq!(home.bytes(), before.as_bytes());
        }
        let home = Home::with(b"Host b\n");
        home.install("a", "Host a\n");
        fs::write(home.paths.folder().join("mine.conf"), "Host c\n").unwrap();
        assert_eq!(home.remove("a"), 1);
        assert_eq!(home.files(), ["mine.conf"]);
        assert!(home.bytes().starts_with(OURS.as_bytes()));
        // The folder is gone: ours is an Include of nothing.
        fs::remove_dir_all(home.paths.folder()).unwrap();
        assert_eq!(home.remove("a"), 1);
        assert_eq!(home.bytes(), b"Host b\n");
    }

    #[test]
    fn every_pattern_has_a_file_of_its_own_in_the_folder() {
        let home = Home::with(b"");
        let names = [
            "*", "?", "..", ".", ".a", "a", "*.a", "!*.a", "::1", "[a]", "a_b", "CON",
        ];
        for name in names {
            let names = ["x".to_owned(), name.to_owned()];
            assert!(!home.paths.install(&names, "y", false).unwrap().is_empty());
            home.install(name, "x");
        }
        let files = home.files();
        assert_eq!(files.len(), 2 * names.len(), "{files:?}");
        assert!(
            files
                .iter()
                .all(|name| name.contains(",Host,") && name.ends_with(".conf")),
            "{files:?}"
        );
        for name in ["", "../a", "a/b", "/etc/x", "a b", "a\\b", "a\0", "-a"] {
            home.paths.install(&[name.to_owned()], "x", false).unwrap_err();
            home.paths.remove(&[name.to_owned()]).unwrap_err();
        }
        assert_eq!(home.files(), files);
    }

    #[test]
    fn where_there_is_no_folder_and_no_file_they_are_made_for_the_user_alone() {
        let mut home = Home::new();
        assert_eq!(home.install("a", "Host a\n"), 2);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&home.folder.path().join(".ssh")), 0o700);
        assert_eq!(mode(&home.paths.folder()), 0o700);
        assert_eq!(mode(&home.paths.config), 0o600);
        assert_eq!(mode(&home.paths.folder().join("998001,Host,a.conf")), 0o600);
        // But not the home itself.
        let absent = home.folder.path().join("absent");
        home.paths.config = absent.join(".ssh/config");
        let error = home.paths.install(&["a".to_owned()], "x", false).unwrap_err();
        let folder = absent.join(".ssh");
        assert_eq!(
            error.to_string(),
            format!("cannot make the folder {}", folder.display())
        );
        assert!(!absent.exists());
    }

    /// Rounds in which ten programs at once write a block each, and then one half removes its own while the other writes
    /// further ones.
    #[test]
    fn ten_writers_at_once_lose_no_block() {
        for round in 0..20 {
            let home = Home::with(b"Host b\n");
            let write = |name: String| home.paths.install(&[name], "Host x\n", false).unwrap();
            thread::scope(|scope| {
                (0..10).for_each(|number| drop(scope.spawn(move || write(format!("a{number}")))));
            });
            assert_eq!(home.files().len(), 10, "round {round}");
            let included = [format!("{OURS}\n{INCLUDE}\n").as_bytes(), b"Host b\n"].concat();
            assert_eq!(home.bytes(), included, "round {round}");
            thread::scope(|scope| {
                for number in 0..10 {
                    let name = format!("a{number}");
                    scope.spawn(|| home.paths.remove(&[name]).unwrap());
                }
                scope.spawn(|| write("c".to_owned()));
            });
            assert_eq!(
                (home.files(), home.bytes()),
                (vec!["998001,Host,c.conf".to_owned()], included)
            );
        }
    }

    #[test]
    fn extended_attributes_stay() {
        let home = Home::with(b"Host b\n");
        let note = |value: &mut [u8]| rustix::fs::getxattr(&home.paths.config, "user.note", value);
        let (path, flags) = (&home.paths.config, rustix::fs::XattrFlags::empty());
        rustix::fs::setxattr(path, "user.note", b"mine", flags).unwrap();
        assert_eq!(home.install("a", "Host a\n"), 2);
        let mut value = [0; 9];
        assert_eq!(note(&mut value), Ok(4));
        assert_eq!(&value[..4], b"mine");
    }

    #[test]
    fn permissions_and_symbolic_links_stay() {
        let home = Home::with(b"");
        let real = home.folder.path().join("dotfiles");
        fs::write(&real, "Host b\n").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        fs::remove_file(&home.paths.config).unwrap();
        symlink("../dotfiles", &home.paths.config).unwrap();
        assert_eq!(home.install("a", "Host a\n"), 2);
        assert!(home.paths.config.is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o640);
        let written = fs::read_to_string(&real).unwrap();
        assert_eq!(written, format!("{OURS}\n{INCLUDE}\nHost b\n"));
    }

    #[test]
    fn what_is_no_file_stays_as_it_is() {
        type Damage<'a> = &'a dyn Fn(&Path);
        let damages: [Damage<'_>; 2] = [&|path| symlink("nowhere", path).unwrap(), &|path| {
            fs::create_dir(path).unwrap()
        }];
        for damage in damages {
            let home = Home::with(b"");
            fs::remove_file(&home.paths.config).unwrap();
            damage(&home.paths.config);
            home.paths.install(&["a".to_owned()], "Host a\n", false).unwrap_err();
            assert!(home.paths.config.is_symlink() || home.paths.config.is_dir());
        }
    }

    #[test]
    fn another_file_includes_the_blocks_by_their_whole_path() {
        let home = Home::new();
        let folder = home.folder.path().join("A User");
        fs::create_dir(&folder).unwrap();
        let paths = ConfigPaths {
            config: folder.join("other"),
            is_default: false,
        };
        let names = ["a".to_owned()];
        assert_eq!(paths.install(&names, "Host a\n", false).unwrap().len(), 2);
        assert_eq!(paths.install(&names, "Host a\n", false).unwrap().len(), 0);
        let lines = format!("{OURS}\nInclude \"{}/switchboard.d/*.conf\"\n", folder.display());
        assert_eq!(fs::read_to_string(&paths.config).unwrap(), lines);
        let place = ConfigPaths {
            config: home.folder.path().join("50%/other"),
            is_default: false,
        };
        place.install(&names, "Host a\n", false).unwrap_err();
    }
}

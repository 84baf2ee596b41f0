//! The client's configuration file: the proxy of each name, and how to log in there.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::proxy_settings::{AmbiguousCredentials, ProxySettings, is_none};
use super::ssh_config::System;
use crate::base::file;
use crate::base::platform;
use crate::base::yaml::diagnostic::{Diagnostics, Position, Report, Severity};
use crate::base::yaml::field::Field;
use crate::base::yaml::{self, de, forms};
use crate::uplink::dial::url::{ProxyUrl, Scheme};

/// The entries of a file, in order.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Configuration {
    #[serde(deserialize_with = "forms::items")]
    proxies: Vec<ProxySettings>,
}

impl Configuration {
    /// Reads a file, and returns it with its warnings. A missing file is an error if `is_demanded`, else it is empty.
    ///
    /// # Errors
    /// The file cannot be read, or has errors: all of them at once.
    pub fn read(path: &Path, is_demanded: bool) -> Result<(Self, Report), Report> {
        Self::load(path, is_demanded, false)
    }

    /// Reads a file that has to exist, and opens the files that it names. Returns the warnings.
    ///
    /// # Errors
    /// As for [`read`](Self::read), and an error for each file that cannot be opened.
    pub fn check(path: &Path) -> Result<Report, Report> {
        Self::load(path, true, true).map(|(_, report)| report)
    }

    fn load(path: &Path, is_demanded: bool, opens_files: bool) -> Result<(Self, Report), Report> {
        let name = path.display().to_string();
        let opened = match file::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_demanded => {
                return Diagnostics::default().finish(None, Self::default());
            }
            opened => opened,
        };
        let unreadable = |error: std::io::Error| Report::unreadable(&name, format!("cannot be read: {error}"));
        let file = opened.map_err(unreadable)?;
        // The file may name programs to run. ssh, too, reads only the user's own files.
        platform::is_the_users(&file)
            .map_err(|reason| Report::unreadable(&name, format!("is not read, as {reason}")))?;
        let is_exposed = opens_files && platform::is_readable_by_others(&file);
        let bytes = yaml::bounded(file).map_err(unreadable)?;
        let home = platform::home();
        let base = PathBase {
            folder: path.parent().unwrap_or(Path::new("")),
            home: home.as_deref(),
            is_check: opens_files,
            is_exposed,
        };
        parse(&bytes, &name, &base)
    }

    /// Returns the first entry with a pattern for the host of that target.
    pub fn entry(&self, target: &str) -> Option<&ProxySettings> {
        let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
        self.proxies.iter().find(|proxy| is_among(host, &proxy.names))
    }
}

/// Returns the file's path: by the XDG Base Directory Specification, or on Windows by its conventions.
pub fn default_path() -> Option<PathBuf> {
    path_on(System::OWN, |name| env::var_os(name))
}

fn path_on(system: System, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| Some(PathBuf::from(variable(name).filter(|value| !value.is_empty())?));
    let settings = match system {
        System::Windows => folder("APPDATA")?,
        // A relative path is to be ignored.
        System::Unix => match folder("XDG_CONFIG_HOME").filter(|path| path.is_absolute()) {
            Some(folder) => folder,
            None => folder("HOME")?.join(".config"),
        },
    };
    Some(settings.join("switchboard").join("config.yaml"))
}

/// The base of a file's paths.
struct PathBase<'a> {
    /// The folder of relative paths.
    folder: &'a Path,
    home: Option<&'a Path>,
    /// True if all is checked: a file that cannot be opened is a fault, and what is probably not meant gets a warning.
    /// Otherwise only the files of the chosen entry are opened, later.
    is_check: bool,
    /// True if other users may read the file.
    is_exposed: bool,
}

impl PathBase<'_> {
    fn whole(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            (Ok(_), None) | (Err(_), _) => self.folder.join(path),
        }
    }
}

fn parse(bytes: &[u8], name: &str, base: &PathBase<'_>) -> Result<(Configuration, Report), Report> {
    let diagnostics = Diagnostics::default();
    let mut configuration = Configuration::default();
    let text = String::from_utf8_lossy(bytes);
    yaml::find_no_break_spaces(&text, Severity::Warning, &diagnostics);
    if base.is_check {
        find_backslashes(&text, &diagnostics);
    }
    // A file with only comments has no entries.
    let tree = (!is_blank(bytes)).then(|| yaml::tree(bytes, &diagnostics)).flatten();
    if let Some(mut tree) = tree {
        configuration = de::read(&mut tree, &diagnostics);
        let fields = Field::root(&tree, &diagnostics).at("proxies");
        for (settings, field) in configuration.proxies.iter_mut().zip(fields.items()) {
            complete(settings, &field, base);
        }
        for (index, field) in fields.items().enumerate().filter(|_| base.is_check) {
            let entries = configuration.proxies.get(..=index).unwrap_or_default();
            warn_of_doubts(entries, &field, base.is_exposed);
        }
    }
    diagnostics.finish(Some(name), configuration)
}

/// Resolves the paths of an entry against the file's folder, and reports contradictions between its settings.
fn complete(settings: &mut ProxySettings, field: &Field<'_>, base: &PathBase<'_>) {
    let files = [
        ("ca", &mut settings.ca),
        ("cert", &mut settings.cert),
        ("key", &mut settings.key),
        ("token_file", &mut settings.token_file),
        ("kubeconfig", &mut settings.kubeconfig),
    ];
    for (key, path) in files {
        let Some(path) = path else { continue };
        *path = base.whole(path);
        let field = field.at(key);
        match base.is_check.then(|| file::open(path)) {
            Some(Err(error)) => {
                let path = path.display().to_string();
                field.fault(format!("{} cannot be read: {error}", path.escape_debug()));
            }
            Some(Ok(file)) if !["ca", "cert"].contains(&key) && platform::is_readable_by_others(&file) => {
                field.warning(EXPOSED);
            }
            Some(Ok(_)) | None => {}
        }
    }
    if let Some(path) = settings.known_hosts.as_mut().filter(|path| !is_none(path)) {
        *path = base.whole(path);
    }
    if !field.has_faults() {
        check_contradictions(settings, field);
    }
}

/// Warns of lines with a control character of a word in double quotes, such as the tab of `"C:\tools"`.
fn find_backslashes(text: &str, diagnostics: &Diagnostics) {
    let is_escape = |pair: &[u8]| matches!(pair, [b'\\', next] if next.is_ascii_alphanumeric());
    for (text, line) in text.lines().zip(1..) {
        let mut quoted = text.split('"').skip(1).step_by(2).map(|part| part.replace(r"\\", ""));
        if quoted.any(|part| part.as_bytes().windows(2).any(is_escape)) && !text.trim_start().starts_with('#') {
            let position = Position { line, column: 1 };
            diagnostics.push(Severity::Warning, Some(position), "", BACKSLASH.to_owned());
        }
    }
}

/// Returns whether a text has nothing but comments.
fn is_blank(text: &[u8]) -> bool {
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.all(|line| line.is_empty() || line.starts_with(b"#"))
}

/// Reports settings that contradict each other.
fn check_contradictions(settings: &ProxySettings, field: &Field<'_>) {
    let url = settings.proxy.as_ref();
    let is_trust = settings.ca.is_some() || settings.cert.is_some() || settings.server_name.is_some();
    let is_named_twice = match settings.source(|_| true) {
        Ok(source) => source.is_some() && url.is_some_and(ProxyUrl::has_credentials),
        Err(AmbiguousCredentials) => true,
    };
    if settings.cert.is_some() != settings.key.is_some() {
        field.fault("`cert` and `key` belong together");
    }
    if is_named_twice {
        field.fault(ONE_SOURCE);
    }
    if is_trust && url.is_some_and(|url| url.scheme() == Scheme::Http) {
        field.fault(NOT_ENCRYPTED);
    }
}

/// Reports what the author of an entry probably does not want. `entries`: the entry is the last one.
fn warn_of_doubts(entries: &[ProxySettings], field: &Field<'_>, is_exposed: bool) {
    let Some((settings, before)) = entries.split_last() else {
        return;
    };
    if is_exposed && settings.proxy.as_ref().is_some_and(ProxyUrl::has_credentials) {
        field.at("proxy").warning(EXPOSED);
    }
    let excluded = |names: &[String]| names.iter().any(|name| name.starts_with('!'));
    // An entry that excludes names may leave some of a pattern to the next one.
    let taken = before
        .iter()
        .filter(|other| !excluded(&other.names))
        .flat_map(|other| &other.names);
    let own = settings.names.iter().filter_map(|name| name.strip_prefix('!'));
    let taken: Vec<_> = taken.map(String::as_str).chain(own).collect();
    let has_port = |name: &str| {
        name.split_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    };
    let is_dead =
        |name: &&String| name.starts_with('!') || has_port(name) || taken.iter().any(|other| is_match(name, other));
    for name in settings
        .names
        .iter()
        .filter(is_dead)
        .filter(|name| !name.starts_with('!'))
    {
        field.at("names").warning(format!("{name} {DEAD}"));
    }
    if settings.names.iter().all(|name| is_dead(&name)) {
        field.warning("this entry never matches");
    }
}

/// Returns whether a host matches patterns as in ssh_config(5): at least one of them, and none with `!`.
pub(super) fn is_among(host: &str, patterns: &[String]) -> bool {
    let host = host.trim_end_matches('.');
    let matches = |pattern: &str| is_match(host, pattern);
    let mut excluded = patterns.iter().filter_map(|pattern| pattern.strip_prefix('!'));
    // A pattern with `!` matches no host here, because no host begins with `!`.
    patterns.iter().any(|pattern| matches(pattern)) && !excluded.any(matches)
}

/// Returns whether a string matches a pattern with `*` and `?`, or all that it matches if it is a pattern itself, in time
/// proportional to the product of both lengths.
fn is_match(text: &str, pattern: &str) -> bool {
    let [text, pattern] = [text, pattern].map(str::to_ascii_lowercase);
    // Element `n` is true if the pattern so far matches the first `n` bytes.
    let mut fits = vec![false; text.len()];
    fits.insert(0, true);
    for &expected in pattern.as_bytes() {
        if expected == b'*' {
            let first = fits.iter().position(|fit| *fit).unwrap_or(fits.len());
            fits.iter_mut().skip(first).for_each(|fit| *fit = true);
            continue;
        }
        fits.pop();
        let fits_byte = |byte: u8| expected == byte || expected == b'?' && byte != b'*';
        fits.iter_mut()
            .zip(text.bytes())
            .for_each(|(fit, byte)| *fit &= fits_byte(byte));
        fits.insert(0, false);
    }
    fits.last() == Some(&true)
}

const BACKSLASH: &str = "in double quotes a backslash begins a control character, in single quotes it does not";
const DEAD: &str = "never matches: it has a port, or an entry before it takes these names, or this one excludes them";
const EXPOSED: &str = "other users may read the file with this secret (chmod go= takes that away)";
const ONE_SOURCE: &str = "only one source of credentials can be used: `token_file`, `token_command`, `kubeconfig` with \
                          `context`, or a user in the URL";
const NOT_ENCRYPTED: &str =
    "`ca`, `cert` and `server_name` are for an https:// proxy: nothing is encrypted or verified here";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::proxy_settings::Resume;
    use crate::uplink::credentials::Source;

    fn read(text: &str) -> Result<Configuration, String> {
        let base = PathBase {
            folder: Path::new("/etc/x"),
            home: Some(Path::new("/home/u")),
            is_check: false,
            is_exposed: false,
        };
        let read = parse(text.as_bytes(), "config.yaml", &base);
        read.map(|(configuration, _)| configuration)
            .map_err(|report| report.to_string())
    }

    #[test]
    fn the_first_entry_with_a_pattern_for_the_host_is_taken() {
        let configuration = read(
            "proxies:\n- names: ['*.prod.example', '!db.prod.example']\n  proxy: https://one\n  ca: ~/ca.pem\n  cert: a.crt\n  \
             key: /b.key\n  context: prod\n  grace: 10m\n  resume: off\n  window: 64KiB\n\
             - {names: ['*'], proxy: 'http://u:p@two:8080'}\n",
        )
        .unwrap();
        let proxy = |target| configuration.entry(target).unwrap().proxy.as_ref().unwrap().to_string();
        assert_eq!(proxy("a.PROD.example.:22"), "https://one:443");
        assert_eq!(proxy("db.prod.example:22"), "http://two:8080");
        assert_eq!(proxy("prod.example:22"), "http://two:8080");
        let entry = configuration.entry("a.prod.example:22").unwrap();
        assert_eq!(entry.ca.as_deref(), Some(Path::new("/home/u/ca.pem")));
        assert_eq!(entry.cert.as_deref(), Some(Path::new("/etc/x/a.crt")));
        assert_eq!(entry.key.as_deref(), Some(Path::new("/b.key")));
        let source = entry.source(|_| true).unwrap();
        assert!(matches!(source, Some(Source::Context { context: Some(context), .. }) if context == "prod"));
        assert_eq!(entry.resume, Some(Resume::Off));
        assert_eq!(
            (entry.grace, entry.window),
            (Some(Duration::from_mins(10)), Some(65_536))
        );
    }

    #[test]
    fn a_file_without_entries_names_no_proxy_and_has_no_fault() {
        for text in ["", "\n", "# proxies:\n#  - names: [a]\n", "{}\n", "proxies: []\n"] {
            assert!(read(text).unwrap().entry("a:22").is_none(), "{text:?}");
        }
    }

    #[test]
    fn every_fault_is_told_at_once_with_its_place_and_without_a_password() {
        let faults = read(
            "proxies:\n- names: [a b]\n  proxy: http://u:s3cret@p:x\n  contxt: prod\n- names: [a]\n  proxy: http://p\n  ca: a\n\
             - names: [a]\n  proxy: https://u:s3cret@p\n  token_file: a\n  cert: b\n",
        );
        let faults = faults.unwrap_err();
        let lines: Vec<_> = faults.lines().collect();
        for (line, start) in lines.iter().zip([
            "config.yaml:2:11: error: proxies[0].names[0]: expected a pattern of names such as",
            "config.yaml:3:10: error: proxies[0].proxy: the port of the proxy URL must be",
            "config.yaml:4:3: error: proxies[0].contxt: unknown key; did you mean `context`?",
            "config.yaml:5:3: error: proxies[1]: `ca`, `cert` and `server_name` are for an https:// proxy",
            "config.yaml:8:3: error: proxies[2]: `cert` and `key` belong together",
            "config.yaml:8:3: error: proxies[2]: only one source of credentials",
        ]) {
            assert!(line.starts_with(start), "{start}: {faults}");
        }
        assert!(lines.len() == 6 && !faults.contains("s3cret"), "{faults}");
    }

    /// Returns the findings of a check of that file.
    fn warnings(text: &str, is_exposed: bool) -> String {
        let base = PathBase {
            folder: Path::new("/etc/x"),
            home: None,
            is_check: true,
            is_exposed,
        };
        let report = parse(text.as_bytes(), "f", &base).map(|(_, report)| report);
        report.unwrap_or_else(|report| report).to_string()
    }

    #[test]
    fn a_check_warns_of_patterns_that_never_match_and_of_a_password_that_others_may_read() {
        let entry = |names: &str| format!("- {{names: [{names}], proxy: 'http://u:s3cret@p'}}\n");
        for (entries, dead) in [
            (&["'*.a'", "'*.b'"][..], &[][..]),
            (&["'*.b'", "'*.a.b', '*.c'"], &["*.a.b"]),
            (&["'*'", "a"], &["a"]),
            (&["'*.b', '!x.b'", "'*.b'"], &[]),
            (&["a", "A"], &["A"]),
            (&["'?.b'", "'*.b'"], &[]),
            (&["'*.b'", "'?.b'"], &["?.b"]),
            (&["'*.a', '!*'"], &["*.a"]),
            (&["a:22", "'::1'"], &["a:22"]),
            (&["'[::1]'"], &[]),
        ] {
            let text = format!(
                "proxies:\n{}",
                entries.iter().map(|names| entry(names)).collect::<String>()
            );
            let said = warnings(&text, false);
            let named: Vec<_> = said.lines().filter(|line| line.contains("never matches: ")).collect();
            assert_eq!(named.len(), dead.len(), "{text}{said}");
            assert!(
                dead.iter()
                    .all(|name| said.contains(&format!("names: {name} never matches"))),
                "{said}"
            );
        }
        assert!(warnings("proxies:\n- {names: ['!a'], proxy: http://p}\n", false).contains("this entry never matches"));
        let exposed = format!("proxies:\n{}- {{names: [b], proxy: http://p}}\n", entry("a"));
        let said = warnings(&exposed, true);
        assert!(
            said.lines().count() == 1 && said.contains(EXPOSED) && !said.contains("s3cret"),
            "{said}"
        );
        assert_eq!(warnings(&exposed, false), "");
        let said = warnings(
            "proxies:\n- {names: [a], proxy: 'https://p', ca: \"C:\\temp\\new.pem\"}\n",
            false,
        );
        assert!(
            said.contains("C:\\temp\\new.pem cannot be read") && said.contains("in single quotes it does not"),
            "{said}"
        );
    }

    #[test]
    fn a_check_warns_of_characters_that_are_probably_not_meant() {
        // The first one is no YAML, as \U is not.
        for (value, warned) in [
            (r#"token_command: "C:\Users\get.exe""#, BACKSLASH),
            (r#"token_command: "C:\tools\get.exe""#, BACKSLASH),
            (r#"token_command: "C:\\tools\\get.exe""#, ""),
            (r"token_command: 'C:\tools\get.exe'", ""),
            ("token_command:\u{a0}get", "a no-break space"),
            ("token_command: get\u{202f}it", "a no-break space"),
            ("# token_command:\u{a0}\"\\t\"", ""),
        ] {
            let said = warnings(
                &format!("proxies:\n- names: [a]\n  proxy: https://p\n  {value}\n"),
                false,
            );
            assert_eq!(
                said.contains(&format!("f:4:1: warning: {warned}")),
                !warned.is_empty(),
                "{value}: {said}"
            );
        }
    }

    #[test]
    fn the_file_is_where_the_system_has_settings() {
        let variables = |pairs: &'static [(&str, &str)]| {
            move |name: &str| {
                pairs
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| OsString::from(value))
            }
        };
        for (system, environment, expected) in [
            (
                System::Unix,
                &[("HOME", "/home/u")][..],
                Some("/home/u/.config/switchboard/config.yaml"),
            ),
            (
                System::Unix,
                &[("HOME", "/home/u"), ("XDG_CONFIG_HOME", "/x")],
                Some("/x/switchboard/config.yaml"),
            ),
            (
                System::Unix,
                &[("HOME", "/home/u"), ("XDG_CONFIG_HOME", "x")],
                Some("/home/u/.config/switchboard/config.yaml"),
            ),
            (System::Unix, &[], None),
            (
                System::Windows,
                &[("APPDATA", "/a"), ("HOME", "/h")],
                Some("/a/switchboard/config.yaml"),
            ),
        ] {
            assert_eq!(path_on(system, variables(environment)), expected.map(PathBuf::from));
        }
    }

    #[test]
    fn patterns_are_those_of_ssh() {
        for (host, pattern, expected) in [
            ("a.b", "*.b", true),
            ("a.b", "?.b", true),
            ("a.b", "*", true),
            ("b", "*.b", false),
            ("aab", "a*ab", true),
            ("abc", "a*d", false),
            ("abcbd", "a*b?", true),
            ("", "*", true),
            ("", "?", false),
            ("*.a.b", "*.b", true),
            ("x*.b", "?*.b", true),
            ("*", "?", false),
            ("*.b", "?.b", false),
            ("?.B", "?.b", true),
        ] {
            assert_eq!(is_match(host, pattern), expected, "{host} and {pattern}");
        }
        let long = "a".repeat(2_000);
        assert!(!is_match(&long, "*a*a*a*a*a*b"));
    }
}

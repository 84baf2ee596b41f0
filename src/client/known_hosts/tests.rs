use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command as StdCommand;
use std::thread;

use super::*;
use crate::protocol::host_key::{HostKeys, KeySource};

const FIRST: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
const SECOND: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC";

fn published(source: KeySource, lines: &[&str]) -> PublishedKeys {
    let keys: HostKeys = lines.join("\n").parse().unwrap();
    PublishedKeys { source, keys }
}

fn known(file: PathBuf) -> KnownHosts {
    KnownHosts::new(file, "DevBox.a:22")
}

#[test]
fn a_name_is_that_of_ssh() {
    for (target, expected) in [
        ("Devbox.A:22", "devbox.a"),
        ("devbox.a:2222", "[devbox.a]:2222"),
        ("[FD00::1]:22", "fd00::1"),
        ("[fd00::1]:2222", "[fd00::1]:2222"),
        ("devbox.:022", "devbox."),
    ] {
        assert_eq!(name(target), expected);
    }
    assert_eq!(alias("[Box]:22").as_deref(), Ok("[box]:22"));
    for text in [
        "", "a b", "a,b", "a\nb", "*.a", "a?", "!a", "|1|a", "#a", "@revoked", "a\tb", "é",
    ] {
        assert!(alias(text).is_err(), "{text:?}");
    }
}

#[test]
fn published_keys_replace_those_of_before_and_no_other_line() {
    let folder = tempfile::tempdir().unwrap();
    let known = known(folder.path().join("new/known"));
    let (read, path) = (|| fs::read_to_string(&known.file).unwrap(), &known.file);
    let first = published(KeySource::Annotation, &[FIRST]);
    assert_eq!(known.update(&first, true).unwrap(), None);
    let line = format!("devbox.a {FIRST} switchboard:annotation\n");
    assert_eq!(read(), line);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(path), mode(&folder.path().join("new"))), (0o600, 0o700));
    // Lines of the user's own for the same name, of another target, one that is no text, and a last one without an end.
    let foreign = b"# mine\ndevbox.a ssh-rsa AAAA\nother.a ssh-ed25519 AAAA switchboard:anchor\n\xff\xfe\ndevbox.a x";
    fs::write(path, [&foreign[..], b"\n", line.as_bytes(), b"x"].concat()).unwrap();
    let unchanged = fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(known.update(&first, true).unwrap(), None);
    assert_eq!(fs::metadata(path).unwrap().modified().unwrap(), unchanged);
    let change = known
        .update(&published(KeySource::Config, &[SECOND]), true)
        .unwrap()
        .unwrap();
    let [old, new] = [FIRST, SECOND].map(|key| key.parse::<HostKey>().unwrap().fingerprint());
    assert_eq!(
        change,
        format!(
            "the host key of devbox.a has changed from {old} to {new} (ssh-ed25519), as the configuration of the proxy says"
        )
    );
    let line = format!("devbox.a {SECOND} switchboard:config\n");
    assert_eq!(
        fs::read(path).unwrap(),
        [&foreign[..], b"\nx\n", line.as_bytes()].concat()
    );
}

#[test]
fn a_key_more_or_of_another_type_is_no_change() {
    let folder = tempfile::tempdir().unwrap();
    let known = known(folder.path().join("known"));
    let ecdsa = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBFvNiVaBTK807389W/0NN3V5DeVsirXzQZ1xgWODE2jgfw3QeKMmDCyigBsrNABmyuYx1lCBIOVXnCdN3Ir51aM=";
    let update = |lines: &[&str]| known.update(&published(KeySource::Annotation, lines), true).unwrap();
    assert_eq!(update(&[FIRST]), None);
    assert_eq!(update(&[ecdsa, FIRST]), None);
    assert_eq!(update(&[FIRST]), None);
    let text = fs::read_to_string(&known.file).unwrap();
    assert!(
        !text.contains("ecdsa"),
        "a key that is withdrawn beside others is removed: {text}"
    );
    assert!(update(&[ecdsa]).unwrap().contains("(ecdsa-sha2-nistp256)"));
}

/// Any server of the name can send them.
#[test]
fn keys_that_are_not_authenticated_are_only_added_for_names_without_any() {
    let folder = tempfile::tempdir().unwrap();
    let mut known = known(folder.path().join("known"));
    let (read, of_anchor) = (
        |file| fs::read_to_string(file).unwrap(),
        |key| published(KeySource::Anchor, &[key]),
    );
    let file = known.file.clone();
    known.update(&of_anchor(FIRST), false).unwrap();
    let added = format!("devbox.a {FIRST} switchboard:anchor\n");
    assert_eq!(read(&file), added);
    assert_eq!(known.update(&of_anchor(SECOND), false).unwrap(), None);
    assert_eq!(read(&file), added);
    known.names.push("box".to_owned());
    known.update(&of_anchor(SECOND), false).unwrap();
    assert_eq!(read(&file), format!("{added}box {SECOND} switchboard:anchor\n"));
    let annotated = published(KeySource::Annotation, &[FIRST]);
    known.update(&annotated, true).unwrap();
    assert_eq!(known.update(&of_anchor(SECOND), false).unwrap(), None);
    assert!(!read(&file).contains(SECOND));
    // A line of the user's own, also one whose name is hashed.
    for own in ["devbox.a,box ssh-rsa AAAA", "# x\nbox,devbox.a ssh-ed25519 AAAA # mine"] {
        fs::write(&file, format!("{own}\n")).unwrap();
        known.update(&of_anchor(SECOND), false).unwrap();
        assert_eq!(read(&file), format!("{own}\n"));
    }
    fs::write(&file, format!("devbox.a {FIRST}\nbox {FIRST}\n")).unwrap();
    let hashed = StdCommand::new("ssh-keygen")
        .args(["-q", "-H", "-f"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(hashed.status.success(), "{hashed:?}");
    let hashed = read(&file);
    assert!(!hashed.contains("box"), "{hashed}");
    known.update(&of_anchor(SECOND), false).unwrap();
    assert_eq!(read(&file), hashed);
}

#[test]
fn a_relative_path_is_that_of_the_working_folder() {
    assert!(known("known".into()).file.is_absolute());
}

#[test]
fn every_alias_has_the_keys() {
    let folder = tempfile::tempdir().unwrap();
    let mut known = known(folder.path().join("known"));
    known.names.push("box".to_owned());
    known
        .update(&published(KeySource::Anchor, &[FIRST, SECOND]), true)
        .unwrap();
    let text = fs::read_to_string(&known.file).unwrap();
    let names: Vec<_> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["devbox.a", "devbox.a", "box", "box"]);
}

#[test]
fn many_logins_at_once_lose_no_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("known");
    let targets: Vec<_> = (0..16).map(|number| format!("box{number}.a:22")).collect();
    thread::scope(|scope| {
        for target in &targets {
            let known = KnownHosts::new(file.clone(), target);
            scope.spawn(move || known.update(&published(KeySource::Annotation, &[FIRST]), true).unwrap());
        }
    });
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), targets.len());
}

#[test]
fn the_oldest_published_keys_are_dropped_before_the_file_is_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let known = known(folder.path().join("known"));
    let old = |number| format!("box{number}.a {FIRST} switchboard:config\n");
    let lines: String = (0..6000).map(old).collect();
    fs::write(&known.file, format!("# mine\n{lines}")).unwrap();
    known.update(&published(KeySource::Config, &[FIRST]), true).unwrap();
    let text = fs::read_to_string(&known.file).unwrap();
    assert!((MAX_BYTES - 200..=MAX_BYTES).contains(&text.len()), "{}", text.len());
    let end = old(5999) + &old(1).replace("box1.a", "devbox.a");
    assert!(text.starts_with("# mine\nbox") && text.ends_with(&end));
    assert!(!text.contains("box0.a"));
}

#[test]
fn a_symbolic_link_stays_and_a_file_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("there"), "# mine\n").unwrap();
    symlink("there", path("link")).unwrap();
    let first = published(KeySource::Annotation, &[FIRST]);
    known(path("link")).update(&first, true).unwrap();
    assert!(path("link").is_symlink());
    assert!(
        fs::read_to_string(path("there"))
            .unwrap()
            .starts_with("# mine\ndevbox.a ")
    );
    symlink("missing/file", path("dangling")).unwrap();
    fs::create_dir(path("directory")).unwrap();
    fs::write(path("large"), vec![b'x'; (1 << 20) + 1]).unwrap();
    for name in ["dangling", "directory", "missing/folder/file", "large", "there/file"] {
        assert!(known(path(name)).update(&first, true).is_err(), "{name}");
    }
}

//! The files that the programs read: nothing but regular files, and no PEM of which a part would be skipped.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::authority::{Authority, Issued};
use crate::harness::process::{Process, Settings, switchboard};
use tempfile::TempDir;

/// Runs a program that refuses a file, and compares its exit status and what it says.
#[track_caller]
fn refuses(arguments: &[&str], status: i32, told: &str) {
    let mut process = Process::spawn(switchboard(arguments));
    let exit = process.exit_status();
    let said = process.stderr.rest().join("\n");
    assert!(exit == status && said.contains(told), "{arguments:?}: {exit} {said}");
}

/// The settings of a port by TLS with these files.
fn settings(cert: &Path, key: &Path, ca: &Path, list: &Path) -> Settings {
    let [cert, key, ca, list] = [cert, key, ca, list].map(Path::display);
    Settings::new(&format!(
        "listen: {{address: \"127.0.0.1:0\", tls: required}}\ntls: {{certificates: [{{cert: \"{cert}\", key: \"{key}\"}}], \
         client_auth: required, client_ca: \"{ca}\", crl: \"{list}\"}}\n"
    ))
}

/// Has each program read that file as each of its files.
fn every_program_refuses(authority: &Authority, file: &Path, told: &str) {
    let Issued { cert, key } = authority.server("server", &[]);
    let (ca, list) = (authority.ca(), authority.revoke(&[]));
    for settings in [
        settings(file, &key, &ca, &list),
        settings(&cert, file, &ca, &list),
        settings(&cert, &key, file, &list),
        settings(&cert, &key, &ca, file),
    ] {
        for program in ["check", "serve"] {
            refuses(&[program, "--config", settings.path()], 2, told);
        }
    }
    let [file, cert, key] = [file, &cert, &key].map(|path| path.to_str().unwrap());
    let connect = ["connect", "--proxy", "https://127.0.0.1:1", "devbox:22"];
    for files in [
        &["--ca", file][..],
        &["--ca", cert, "--cert", file, "--key", key],
        &["--ca", cert, "--cert", cert, "--key", file],
    ] {
        refuses(&[&connect[..], files].concat(), 1, told);
    }
}

#[test]
fn what_is_no_regular_file_is_refused_and_never_waited_for() {
    let (authority, folder) = (Authority::new(), TempDir::new().unwrap());
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (file, kind) in [
        (fifo.as_path(), "a FIFO"),
        (folder.path(), "a directory"),
        (Path::new("/dev/zero"), "a device"),
    ] {
        let told = format!("it is {kind}, not a regular file");
        for program in ["check", "serve"] {
            refuses(&[program, "--config", file.to_str().unwrap()], 2, &told);
        }
        every_program_refuses(&authority, file, &told);
    }
}

/// A file of the right section and another one, without a line end between them.
#[test]
fn glued_sections_are_refused_with_their_line() {
    let authority = Authority::new();
    let Issued { cert, key } = authority.server("both", &[]);
    let list = authority.revoke(&[]);
    let glued = authority.path("glued");
    let mut text = String::new();
    for file in [&cert, &key, &list, &cert] {
        text += fs::read_to_string(file).unwrap().trim_end();
    }
    fs::write(&glued, &text).unwrap();
    let line = text.lines().position(|line| line.contains("----------")).unwrap() + 1;
    every_program_refuses(&authority, &glued, &format!("line {line}: `-----BEGIN …-----` and "));
}

//! The arguments of an anchor that dials in, and those that it refuses.

use crate::harness::process::{Process, anchor};

/// The exit status, and what is said.
fn ends(arguments: &[&str]) -> (i32, String) {
    let mut process = Process::spawn(anchor(&[&["anchor"], arguments].concat()));
    (process.exit_status(), process.stderr.rest().join("\n"))
}

#[test]
fn what_cannot_be_meant_is_named_with_exit_status_2() {
    let dial = ["--dial", "https://ssh.example.com"];
    for (arguments, said) in [
        (&["--serve", "a:22"][..], "--dial"),
        (&dial[..], "--serve"),
        (
            &[&dial[..], &["--serve", "a:22", "--serve", "b:22"]].concat()[..],
            "--serve",
        ),
        (&[&dial[..], &["--serve", "*.lab:22"]].concat()[..], "--serve"),
        (&[&dial[..], &["--serve", "a"]].concat()[..], "--serve"),
        (&["--dial", "ftp://a", "--serve", "a:22"], "--dial"),
        (&["--dial", "http://u:s3cret@a:x", "--serve", "a:22"], "--dial"),
        (&["--token-file", "/token"], "--dial"),
        (
            &[
                "--dial",
                "http://192.0.2.1",
                "--serve",
                "a:22",
                "--token-file",
                "/token",
            ],
            "--allow-cleartext",
        ),
        (
            &["--dial", "http://127.0.0.1", "--serve", "a:22", "--ca", "/ca"],
            "--ca is for an https:// proxy",
        ),
    ] {
        let (status, stderr) = ends(arguments);
        assert_eq!(status, 2, "{arguments:?}: {stderr}");
        assert!(
            stderr.contains(said) && !stderr.contains("s3cret"),
            "{arguments:?}: {stderr}"
        );
    }
}

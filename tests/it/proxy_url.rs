//! A faulty proxy URL on the command line or in the environment: its fault is named, and no part of its password.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

use crate::harness::process::{Process, switchboard};

/// Returns the output of a program, which has to end with that exit status.
#[track_caller]
fn printed(command: Command, status: i32) -> String {
    let mut process = Process::spawn(command);
    let ended = process.exit_status();
    let printed = [process.stdout.rest(), process.stderr.rest()].concat().join("\n");
    assert_eq!(ended, status, "{printed}");
    printed
}

/// The ways to name a proxy.
fn commands(url: impl Into<OsString>) -> [Command; 3] {
    let url = url.into();
    let mut by_environment = switchboard(&["connect", "devbox:22"]);
    by_environment.env("SWITCHBOARD_PROXY", &url);
    let mut by_flag = switchboard(&["connect", "devbox:22", "--proxy"]);
    by_flag.arg(&url);
    let mut joined = OsString::from("--proxy=");
    joined.push(&url);
    let mut by_joined_flag = switchboard(&["connect"]);
    by_joined_flag.arg(joined).arg("devbox:22");
    [by_environment, by_flag, by_joined_flag]
}

#[test]
fn a_faulty_proxy_url_is_reported_by_its_fault_without_its_password() {
    for (url, fault) in [
        ("http://bob:s3cret@host:99999", "the port of the proxy URL must be"),
        ("http://bob:s3cret@more@", "the proxy URL has no host"),
        ("http://bob:s3/cret@host", "takes no path, query or fragment"),
    ] {
        for command in commands(url) {
            let printed = printed(command, 2);
            assert!(!printed.contains("s3") && !printed.contains("cret"), "{url}: {printed}");
            assert!(
                printed.contains("--proxy <URL>") && printed.contains("SWITCHBOARD_PROXY"),
                "{printed}"
            );
            assert!(printed.contains(fault), "{url}: {printed}");
        }
    }
}

#[test]
fn a_proxy_url_that_is_no_text_is_not_printed_either() {
    for command in commands(OsString::from_vec(b"http://bob:s3cret\xff@host".to_vec())) {
        let printed = printed(command, 2);
        assert!(!printed.contains("s3cret"), "{printed}");
    }
}

/// Without quotation marks a password with a space becomes arguments of its own, and so does a URL in the wrong place.
#[test]
fn a_stray_part_of_a_proxy_url_is_not_printed() {
    for arguments in [
        &["--proxy", "http://bob:s3cret", "cret@host", "devbox:22"][..],
        &["--proxy", "http://bob:one", "s3cret", "cret", "devbox:22"],
        &["devbox:22", "http://bob:s3cret@host"],
        &["--proxi", "http://bob:s3cret@host", "devbox:22"],
        &["--proxi=http://bob:s3cret@host", "devbox:22"],
        &["--verbose=http://bob:s3cret@host", "devbox:22"],
        &["--proxy", "http://proxy", "http://bob:s3cret@host"],
    ] {
        let printed = printed(switchboard(&[&["connect"], arguments].concat()), 2);
        assert!(!printed.contains("cret"), "{arguments:?}: {printed}");
    }
    // An argument that cannot be a part of one is named.
    let printed = printed(switchboard(&["connect", "--proxi", "devbox:22"]), 2);
    assert!(printed.contains("'--proxi'"), "{printed}");
}

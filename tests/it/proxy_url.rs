//! A faulty proxy URL on the command line or in the environment: its fault is named, and no part of its password.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

use proptest::prelude::*;

use crate::harness::process::{Process, switchboard};

/// What a `switchboard connect` prints, which has to end with that exit status.
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
        ("http://bob:s3cret@host:", "the port of the proxy URL must be"),
        ("http://bob:s3cret@host:0", "the port of the proxy URL must be"),
        ("http://bob:s3cret", "the port of the proxy URL must be"),
        ("socks5://bob:s3cret@host", "must begin with http:// or https://"),
        ("bob:s3cret@host:8080", "must begin with http:// or https://"),
        ("http:/bob:s3cret@host", "must begin with http:// or https://"),
        (" http://bob:s3cret@host", "must begin with http:// or https://"),
        ("http://bob:s3cret@ho st", "is not a valid name"),
        ("http://bob:s3cret@host ", "must be 1 to 65535|is not a valid name"),
        ("http://bob:s3cret@pr%6Fxy", "is not a valid name"),
        ("http://bob:s3cret%@host", "a % that is not an escape"),
        ("http://bob:s3cret%zz@host", "a % that is not an escape"),
        ("http://bob:s3cret%0A@host", "a character that cannot be sent"),
        ("http://bob%3A:s3cret@host", "a character that cannot be sent"),
        ("http://bob:s3cret@more@", "the proxy URL has no host"),
        ("http://bob:s3cret@", "the proxy URL has no host"),
        ("http://bob:more@s3cret@host:x", "the port of the proxy URL must be"),
        ("http://bob:s3cret@[host]", "only an IPv6 address may be in brackets"),
        (
            "http://bob:s3cret@[::1",
            "in brackets|needs brackets|is not a valid name|must be 1 to 65535",
        ),
        ("http://bob:s3cret@fd00::1", "needs brackets"),
        ("http://bob:s3cret@host/path", "takes no path, query or fragment"),
        ("http://bob:s3/cret@host", "takes no path, query or fragment"),
        ("http://bob:s3cret?@host", "takes no path, query or fragment"),
    ] {
        for command in commands(url) {
            let printed = printed(command, 2);
            assert!(!printed.contains("s3") && !printed.contains("cret"), "{url}: {printed}");
            assert!(
                printed.contains("--proxy <URL>") && printed.contains("SWITCHBOARD_PROXY"),
                "{printed}"
            );
            assert!(
                fault.split('|').any(|fault| printed.contains(fault)),
                "{url}: {printed}"
            );
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
        &["--http1.1=http://bob:s3cret@host", "devbox:22"],
        &["--proxy", "http://proxy", "http://bob:s3cret@host"],
    ] {
        let printed = printed(switchboard(&[&["connect"], arguments].concat()), 2);
        assert!(!printed.contains("cret"), "{arguments:?}: {printed}");
    }
    // What cannot be a part of one is named.
    let printed = printed(switchboard(&["connect", "--proxi", "devbox:22"]), 2);
    assert!(printed.contains("'--proxi'"), "{printed}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The password stands in a URL with one fault at least, or in several at once.
    #[test]
    fn no_malformed_url_is_printed_with_its_password(
        scheme in prop_oneof!["http", "https", "HTTP", "socks5", "", "[a-z ]{0,6}"],
        slashes in prop_oneof![Just("://"), Just(":/"), Just(":"), Just(" ://")],
        user in "[a-z%@: ]{0,6}",
        around in "[%@:/?# \\[\\]]{0,3}",
        host in "[a-z0-9.:%@ \\[\\]]{0,10}",
        port in prop_oneof![Just(":99999"), Just(":0"), Just(":x"), Just(": 1"), Just(":-1")],
    ) {
        let url = format!("{scheme}{slashes}{user}:{around}S3CRET{around}@{host}{port}");
        for command in commands(&url) {
            let printed = printed(command, 2);
            prop_assert!(!printed.to_uppercase().contains("S3CRET"), "{url}: {printed}");
        }
    }
}

//! Tests of the lines of keys, with keys that ssh-keygen has made.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;
use crate::base::text::excerpt;

const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEIPB3+pKidx74UYm+ucPHbqNjjkwTws4ffeZFtYGzob";
const ECDSA: [&str; 3] = [
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEAUpLZ7wdT4TYWLWDfVT7Y3sURp\
     9MrGqZ3ov1veDOR3r84rXVZLIVE7d/Tbx5g7THlMK2XN70dDxk/PngsNLKQ=",
    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBPI0RG1YwgztfuIvW/8l8+t2qOpW\
     1OMGf87w/ROm0iRkYMVnZehzPP67PTyyzE0GDhZDuUJ6+xug6KGIFNUk6FiBSo/piVxhgL5I32egaortDrNCQNhbTGkwt1pdqQHC\
     9A==",
    "ecdsa-sha2-nistp521 AAAAE2VjZHNhLXNoYTItbmlzdHA1MjEAAAAIbmlzdHA1MjEAAACFBADV6j17r6HyHLohKfPF/8Y1ofuz\
     +R3ag5vGXRLhmgVsHqavtV1hckgL9hoNhIofpqkXMCOwjjtCgB8VRfhDynvtzwFT2thpzyEYpzuxlYH+/FjxYDiFLyquma8aGrP2\
     2RrmWgZal5zDvyOSvwP/nw1vELlx9VTiZjEzoH9YqQpI6+hkSw==",
];
const RSA_2048: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7xCWomikokcOFJKWSCZ5Ocf4AcsG6V9j0bsKtm3/lQldRaZ3HvxuCaus9fw6m\
     87cAOcvRhVBIQiXOmSbAIpIZhpCHy9+Kwt9bLR/qb5UcsGS1khejD2DAqlMbti0x/63cYztiPj9mFkP6RsC9xDJHQ+sny9LWwiqG\
     Dzw0wCu1Zi3SavkZsqqkufyW+i5oUMGY6MIlIH3tblMbAAmEgjJiZmSi0araZJRjStvFm6kPvZHLYjR0mjF8srDLBMSdMkq0D1aM\
     me2X7ENQT2kJ/TeZ/RJ9pKfWo+Z3Gww2BX1wnkN4W5kmWdaGgOHAqSiEYUWPIsrBEK1tKPJsM9ogl75r";
const RSA_1024: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDZiHTezKyrBGUaWbveiMPpgaFzqDRWCcoE/H4P9L4/gvz/nGbintbUJORxJuG/\
     D3ixRWUv38A8eUFG7q+XGFvclA8J4G/j2AwX5G68GU9gNtFAOgFlp5v+ZideHAtBEnr6oenHAwEePY+lfCGYw8EsujsEMwkYpdha\
     u9AqjDNB/Q==";
const DSA: &str = "ssh-dss AAAAB3NzaC1kc3MAAACBANeDauGihJK8DdAj/aDijmW1JEOPUU1Nk1f33d7R2GZEQAv0zMlEgyJoT8r6YJ09UFo7vQda\
     Y8I0QVg+GGhokG1Lt/WzgEOcXQA6hziogrj/p9+XSjqQ0DC5bCQQrzi63soks42qNl6NUzMtyPaZ/pEO+UTkWDWLLCb01NxJfto9\
     AAAAFQDQ/ONDa4EiR7DHBGkIhEh6rVbQ+QAAAIAwY8noPZW7+8gEJowvfIGofAlCP5bIOfNMuySI8WkGe/UEOXY5rAbreALiyv1k\
     M/D55DnyGPB1UyflObZfkPowz82yWBIlCSpKgOh8YxxVSYEkTlRpM52Ddw0PTaevHkLZJLRC69A9mwIOwOXjqmvNOnGBkhKRMlse\
     +8pQvP9+ugAAAIB69G2uHHlJNxoZX4KmrbmKGd+NHSqzhCKpEFKXEN04lYmGgOQlXpnspplVUT0dInlsgTq1vS0MUvAxWmCLZ2t9\
     JNLaC2pzAl/dT7WVH8Ged2wf47I8Lav8sKaVyNjc8bMxdz74a2yY/lv6jG2FVqRyC7LfI0nKK4CxoQ0QcyUB/A==";
const SECURITY: &str = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIEIPB3+pKidx74UYm+ucPHbqNjjkwTws4ffeZFtYGzobAAAABHNzaDo=";

fn parse(line: &str) -> UserKey {
    UserKey::parse(line).unwrap_or_else(|fault| panic!("{line}: {fault}"))
}

fn fault(line: &str) -> String {
    match UserKey::parse(line) {
        Ok(key) => panic!("{line}: {key:?}"),
        Err(fault) => fault,
    }
}

#[test]
fn a_key_is_read_with_its_comment_and_its_options() {
    for key in [&[ED25519, RSA_2048][..], &ECDSA].concat() {
        for line in [
            key.to_owned(),
            format!("{key} alice@laptop"),
            format!("{key}\talice's laptop, from=\"home\" "),
            format!("  from=\"192.0.2.1\" {key}"),
            format!("expiry-time=\"20300101\",From=\"10.0.0.0/8\"\t {key} x"),
        ] {
            assert_eq!(parse(&line).key.to_string(), key, "{line}");
        }
    }
}

#[test]
fn keys_that_are_weak_or_not_verified_are_refused_by_a_sentence() {
    let (mut cut, mut other) = (ED25519.to_owned(), ED25519.to_owned());
    cut.pop();
    other.replace_range(4..11, "rsa");
    for (line, expected) in [
        (RSA_1024, "an RSA key has 2048 to 16384 bits here"),
        (DSA, "the type is none of ssh-ed25519, "),
        (
            "ssh-ed25519-cert-v01@openssh.com AAAA",
            "the type is none of ssh-ed25519, ",
        ),
        (SECURITY, SECURITY_KEY),
        (&cut, "the key is damaged, or of another type than it says"),
        (&other, "the key is damaged, or of another type than it says"),
        (
            "ssh-ed25519",
            "expected `TYPE BASE64`, as the file ~/.ssh/id_*.pub has it",
        ),
        (
            "ssh-ed25519 ????",
            "the key is damaged, or of another type than it says",
        ),
    ] {
        let said = fault(line);
        assert!(said.starts_with(expected), "{}: {said}", excerpt(line, 40));
    }
    // 16,384 bits, of which the SSH server verifies no signature.
    let blob = [
        &b"\0\0\0\x07ssh-rsa\0\0\0\x03\x01\0\x01\0\0\x08\x01\0"[..],
        &[0xff; 2048],
    ]
    .concat();
    let line = format!("ssh-rsa {}", STANDARD.encode(blob));
    assert_eq!(fault(&line), "an RSA key has 2048 to 8192 bits here");
}

#[test]
fn an_option_that_is_not_honoured_makes_the_line_an_error_without_a_part_of_it() {
    for options in [
        "no-pty",
        "restrict",
        "cert-authority",
        "command=\"secret\"",
        "no-pty,from=\"10.0.0.0/8\"",
        "from=\"10.0.0.0/8\",command=\"a \\\" b\"",
        "from=\"10.0.0.0/8\",",
        "from=\"10.0.0.0/8\",,expiry-time=\"20300101\"",
        "from=\"10.0.0.0/8",
        "from=10.0.0.0/8",
        "from = \"10.0.0.0/8\"",
        "from",
        "=\"\"",
        "hunter2",
    ] {
        assert_eq!(fault(&format!("{options} {ED25519}")), NO_KEY, "{options}");
    }
    for text in ["", " ", "my secret", "from=\"10.0.0.0/8\"", "# ssh-ed25519"] {
        assert_eq!(fault(text), NO_KEY, "{text}");
    }
    // Without a blank before the key.
    assert_eq!(fault(&format!("from=\"10.0.0.0/8\"{ED25519}")), NO_KEY);
    assert_eq!(fault(&format!("from=\"10.0.0.0/8\",{ED25519}")), NO_KEY);
    for twice in [
        "from=\"10.0.0.0/8\",from=\"::/0\"",
        "expiry-time=\"20300101\",Expiry-Time=\"20310101\"",
    ] {
        assert_eq!(fault(&format!("{twice} {ED25519}")), "an option is there twice");
    }
}

#[test]
fn a_key_is_for_the_clients_that_from_admits_and_does_not_exclude() {
    for (from, admitted, refused) in [
        (
            "192.0.2.1",
            &["192.0.2.1", "::ffff:192.0.2.1"][..],
            &["192.0.2.2", "::1"][..],
        ),
        ("::ffff:192.0.2.1", &["192.0.2.1"], &["192.0.2.2"]),
        ("10.0.0.0/8,!10.1.2.3", &["10.1.2.4"], &["10.1.2.3", "11.0.0.1"]),
        ("!10.1.0.0/16,10.0.0.0/8", &["10.2.0.1"], &["10.1.255.255"]),
        (
            "2001:db8::/32,127.0.0.1",
            &["2001:db8:1::1", "127.0.0.1"],
            &["2001:db9::1", "127.0.0.2"],
        ),
        ("0.0.0.0/0", &["10.0.0.1"], &["::1"]),
    ] {
        let key = parse(&format!("from=\"{from}\" {ED25519}"));
        for (clients, expected) in [(admitted, true), (refused, false)] {
            for client in clients {
                assert_eq!(key.admits(client.parse().unwrap()), expected, "{from} {client}");
            }
        }
    }
    assert!(parse(ED25519).admits("192.0.2.1".parse().unwrap()));
}

#[test]
fn patterns_that_sshd_resolves_or_that_admit_nobody_are_refused() {
    let many = vec!["10.0.0.1"; 65].join(",");
    for from in [
        "",
        "*",
        "192.168.*",
        "10.0.0.?",
        "host.example.com",
        "!10.0.0.1",
        "10.0.0.0/8,",
        "10.1.2.3/8",
        "10.0.0.0/33",
        "!!10.0.0.1",
        " 10.0.0.1",
        "fe80::1%eth0",
        &many,
    ] {
        assert_eq!(fault(&format!("from=\"{from}\" {ED25519}")), FROM, "{from}");
    }
}

#[test]
fn an_expiry_is_read_as_sshd_reads_it_in_utc() {
    for (text, expected) in [
        ("20300102", "2030-01-02T00:00:00Z"),
        ("20300102Z", "2030-01-02T00:00:00Z"),
        ("203001020304", "2030-01-02T03:04:00Z"),
        ("20300102030405", "2030-01-02T03:04:05Z"),
        ("20240229235959z", "2024-02-29T23:59:59Z"),
    ] {
        let key = parse(&format!("expiry-time=\"{text}\" {ED25519}"));
        assert_eq!(key.expires, values::moment(expected), "{text}");
        assert!(key.expires.is_some());
    }
    for text in [
        "",
        "Z",
        "2030",
        "20301301",
        "20300230",
        "2030010",
        "2030-01-02",
        "203001022460",
        "20300102T0304",
        "+2030010",
        "20300102ZZ",
        "always",
        "２０３００１０２",
    ] {
        assert_eq!(fault(&format!("expiry-time=\"{text}\" {ED25519}")), EXPIRY, "{text}");
    }
    assert_eq!(parse(ED25519).expires, None);
}

proptest! {
    #[test]
    fn any_line_is_a_key_or_a_fault(line in "((from|expiry-time|command)=?\"?[0-9a-f.:/!,*Z]{0,30}\"?[, ]?){0,3}(ssh-|ecdsa-|sk-)?\\PC{0,60}") {
        UserKey::parse(&line).ok();
    }
}

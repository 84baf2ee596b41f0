//! Tests of the file of authorities, and of certificates as the SSH server passes them on.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::policy::access::credentials::credential::Credential;
use crate::policy::access::files::passwords::PasswordFile;
use crate::policy::access::files::passwords::key_secret::KeySecret;
use crate::policy::access::sources::{NotProved, Sources};
use crate::policy::access::{NoAnswer, User, Verdict};

/// Made by ssh-keygen(1).
const AUTHORITY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEIPB3+pKidx74UYm+ucPHbqNjjkwTws4ffeZFtYGzob";
const OTHER: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEAUpLZ7wdT4TYWLWDfVT7Y3sURp\
     9MrGqZ3ov1veDOR3r84rXVZLIVE7d/Tbx5g7THlMK2XN70dDxk/PngsNLKQ=";
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

fn seconds_from_now(seconds: i64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.as_secs().checked_add_signed(seconds).unwrap()
}

/// A certificate of alice, by the authority and for an hour, changed by `change`.
fn certificate(change: impl FnOnce(&mut UserCertificate)) -> UserCertificate {
    let mut certificate = UserCertificate {
        authority: AUTHORITY.parse().unwrap(),
        is_for_users: true,
        principals: ["bob".to_owned(), "alice".to_owned()].into(),
        validity: seconds_from_now(-60)..seconds_from_now(3600),
        critical_options: [].into(),
        permits_forwarding: true,
        digest: [0; 32],
    };
    change(&mut certificate);
    certificate
}

fn option(name: &str, value: &str) -> UserCertificate {
    certificate(|own| drop(own.critical_options.insert(name.to_owned(), value.to_owned())))
}

#[track_caller]
fn judged(name: &str, own: &UserCertificate, expected: Result<(), &'static str>) {
    let keys = AuthorityKeys::parse(format!("# ours\n\n{AUTHORITY} ca@example.com\r\n").as_bytes(), None).unwrap();
    assert_eq!(keys.check(name, own, HERE), expected);
}

#[test]
fn a_certificate_says_who_and_when_and_is_of_an_authority() {
    let unnamed = Err("the certificate does not name the user");
    judged("alice", &certificate(|_| {}), Ok(()));
    judged("bob", &certificate(|_| {}), Ok(()));
    judged("alice", &certificate(|own| own.validity = 0..u64::MAX), Ok(()));
    judged("carol", &certificate(|_| {}), unnamed);
    judged("Alice", &certificate(|_| {}), unnamed);
    for (name, principals) in [
        ("", vec![""]),
        ("a\nb", vec!["a\nb"]),
        ("alice", vec![]),
        ("alice", vec!["*"]),
    ] {
        let named = certificate(|own| own.principals = principals.into_iter().map(str::to_owned).collect());
        judged(name, &named, unnamed);
    }
    let foreign = certificate(|own| own.authority = OTHER.parse().unwrap());
    judged("alice", &foreign, Err(UNKNOWN_AUTHORITY));
    let of_host = certificate(|own| own.is_for_users = false);
    judged("alice", &of_host, Err("the certificate is that of a host"));
    let early = certificate(|own| own.validity.start = seconds_from_now(60));
    judged("alice", &early, Err("the certificate is not valid yet"));
    let unforwarded = certificate(|own| own.permits_forwarding = false);
    judged(
        "alice",
        &unforwarded,
        Err("the certificate does not permit port forwarding"),
    );
}

#[test]
fn each_critical_option_of_a_certificate_counts() {
    let unreadable = Err("the certificate's source-address cannot be read");
    let elsewhere = Err("the certificate is not accepted from this address");
    for (value, expected) in [
        ("10.0.0.0/8", Ok(())),
        ("192.0.2.1,10.1.2.3", Ok(())),
        ("192.0.2.0/24,2001:db8::/32", elsewhere),
        ("0.0.0.0/0,!192.0.2.1", unreadable),
        ("10.1.2.3/8", unreadable),
        ("", unreadable),
    ] {
        judged("alice", &option("source-address", value), expected);
    }
    let unknown = Err("the certificate has a critical option other than source-address");
    for (name, value) in [
        ("force-command", "true"),
        ("verify-required", ""),
        ("x@example.com", ""),
    ] {
        judged("alice", &option(name, value), unknown);
    }
}

#[test]
fn each_faulty_line_of_the_file_is_named() {
    let faults = |text: &str| {
        let faults = SshAuthorities::open(file(text).path()).unwrap_err();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        faults(&format!(
            "{AUTHORITY}\ncert-authority {AUTHORITY}\n{AUTHORITY} again\nssh-ed25519 AAAA\nsk-ssh-ed25519@openssh.com AAAA\n"
        )),
        [
            "line 2: the type is none of ssh-ed25519, ecdsa-sha2-nistp256, -nistp384, -nistp521 and ssh-rsa",
            "line 3: this key is there already",
            "line 4: the key is damaged, or of another type than it says",
            "line 5: a security key is not accepted: nothing here would see whether it was touched",
        ]
    );
    assert_eq!(
        faults(""),
        ["it is empty: a file without authorities needs a line that begins with #"]
    );
    assert!(SshAuthorities::open(file("# none\n").path()).unwrap().is_empty());
}

/// The sources of these files, and the verdict on alice's certificate.
fn verdict(
    authorities: SshAuthorities,
    users: Option<PasswordFile>,
    certificate: UserCertificate,
) -> Result<User, NotProved> {
    let sources = Sources {
        ssh_authorities: Some(Arc::new(authorities)),
        users: users.map(Arc::new),
        ..Sources::default()
    };
    let credential = Credential::SshCertificate {
        user: "alice".into(),
        certificate: Arc::new(certificate),
    };
    let user = sources.ssh_user(&credential, HERE);
    match (sources.verify_ssh(&credential, HERE, true), &user) {
        (Ok(Verdict::Authenticated(verified)), Ok(user)) => assert_eq!(&*verified, user),
        (Ok(Verdict::Rejected(phrase)), Ok(user)) => {
            assert!(user.has_expired() && &*phrase == "the key or its certificate has expired");
        }
        (Ok(Verdict::Rejected(phrase)), Err(NotProved::Refused(reason))) => assert_eq!(&*phrase, *reason),
        (Err(error), Err(NotProved::Unread)) => assert_eq!(error.kind, NoAnswer::Unavailable),
        (verified, user) => panic!("{verified:?} {user:?}"),
    }
    user
}

#[test]
fn groups_are_those_of_the_same_user_in_the_file_of_users() {
    let authorities = |prefix: &str| {
        SshAuthorities::open(file(AUTHORITY).path())
            .unwrap()
            .with_prefix(Some(prefix.into()))
    };
    let users = |text: &str, prefix: &str| {
        let users = PasswordFile::open(file(text).path()).unwrap();
        Some(users.with_prefix(Some(prefix.into())))
    };
    // The same key is listed, and has expired: a certificate is judged by its authority.
    let listed = format!("alice::ops\nalice:expiry-time=\"20200101\" {OTHER}\n");
    for (prefixes, own, name, groups) in [
        (["", ""], users(&listed, ""), "alice", &["ops"][..]),
        (["ssh:", "ssh:"], users(&listed, "ssh:"), "ssh:alice", &["ops"]),
        (["ssh:", ""], users(&listed, ""), "ssh:alice", &[]),
        (["", "file:"], users(&listed, "file:"), "alice", &[]),
        (
            ["", ""],
            users(
                "bob::ops\nbob:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEIPB3+pKidx74UYm+ucPHbqNjjkwTws4ffeZFtYGzob\n",
                "",
            ),
            "alice",
            &[],
        ),
        (["", ""], None, "alice", &[]),
    ] {
        let user = verdict(authorities(prefixes[0]), own, certificate(|_| {})).unwrap();
        assert_eq!(&*user.name, name);
        let own: Vec<_> = user.groups.iter().map(|group| &**group).collect();
        assert_eq!(own, [groups, &["system:authenticated"]].concat());
    }
    let expired = verdict(authorities(""), None, certificate(|own| own.validity = 0..60)).unwrap();
    assert_eq!(expired.expires, Some(SystemTime::UNIX_EPOCH + Duration::from_mins(1)));
    let forever = verdict(authorities(""), None, certificate(|own| own.validity.end = u64::MAX)).unwrap();
    assert_eq!(forever.expires, None);
}

#[test]
fn a_key_counts_as_long_as_the_file_or_the_secret_has_it() {
    let key: HostKey = AUTHORITY.parse().unwrap();
    let credential = Credential::PublicKey {
        user: "alice".into(),
        key: Arc::new(key),
    };
    let expired = format!("alice:expiry-time=\"20200101\" {AUTHORITY}\nalice::ops\n");
    let (valid, other) = (
        format!("alice::ops\nalice:{AUTHORITY}\n"),
        format!("alice::ops\nalice:{OTHER}\n"),
    );
    for (number, (users, lines, expected)) in [
        (None, None, "unread"),
        (None, Some(String::new()), "the user has no such key"),
        (None, Some(AUTHORITY.to_owned()), ""),
        (Some(&*valid), None, "ops"),
        (Some(&*valid), Some(String::new()), "ops"),
        (Some(&*other), None, "unread"),
        (Some(&*other), Some(AUTHORITY.to_owned()), "ops"),
        (Some(&*expired), Some(AUTHORITY.to_owned()), "ops"),
        (
            Some(&*expired),
            Some(String::new()),
            "the key or its certificate has expired",
        ),
        (
            Some(&*other),
            Some(format!("from=\"192.0.2.1\" {AUTHORITY}")),
            "the key is not accepted from this address",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let secret = KeySecret::new(None);
        if let Some(lines) = &lines {
            secret.replace(&[("alice".to_owned(), lines.clone().into_bytes())].into());
        }
        let sources = Sources {
            users: users.map(|text| Arc::new(PasswordFile::open(file(text).path()).unwrap())),
            key_secret: Some(Arc::new(secret)),
            ..Sources::default()
        };
        let found = |is_out_of_date| match sources.verify_ssh(&credential, HERE, is_out_of_date) {
            Ok(Verdict::Authenticated(user)) => user.groups.first().map_or_else(String::new, |group| {
                group
                    .strip_prefix("system:")
                    .map_or_else(|| group.to_string(), |_| String::new())
            }),
            Ok(Verdict::Rejected(phrase)) => phrase.into(),
            Err(_) => "unread".to_owned(),
        };
        assert_eq!(found(false), expected, "{number}");
        // In an outage only the file proves a user.
        let in_outage = if users == Some(&*valid) { "ops" } else { "unread" };
        assert_eq!(found(true), in_outage, "{number}");
    }
}

#[test]
fn a_file_that_was_not_read_yet_proves_and_refuses_nobody() {
    let unread = verdict(SshAuthorities::empty("/none"), None, certificate(|_| {}));
    assert_eq!(unread, Err(NotProved::Unread));
    let authorities = SshAuthorities::open(file(AUTHORITY).path()).unwrap();
    // The groups are not known.
    let unread = verdict(authorities, Some(PasswordFile::empty("/none")), certificate(|_| {}));
    assert_eq!(unread, Err(NotProved::Unread));
}

//! Tests of the file of users, with hashes that other programs have made.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;
use crate::base::follow::ReloadResult;
use crate::policy::access::user::{AUTHENTICATED, Method};

mod following;

/// Each is of the password `correct`.
const HASHES: [&str; 6] = [
    // htpasswd -nbB, htpasswd -nbB -C 10, mkpasswd -m bcrypt, mkpasswd -m bcrypt-a
    "$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu",
    "$2y$10$lPR00T8PO0e0CsucVF5uE.tKCDBkVUVMSAMixGUZ9VmBf5Wexoj9W",
    "$2b$05$dFdD19ja62y5FNHzuTHz/ur0eKTpA63GRpL9H0La3wcIV823kQdNK",
    "$2a$05$SAx.v9M.Fzpl6xg2V5HcwOh.uGZMaqzuFCkoTXevgCyMldD7kZ2S6",
    // argon2 saltsaltsalt -id -e, and with -k 256 -t 2 -p 4
    "$argon2id$v=19$m=4096,t=3,p=1$c2FsdHNhbHRzYWx0$k16ISVq0VaTBHarDt7qY0wtPXC0BhHZGHRoMfzFGeik",
    "$argon2id$v=19$m=256,t=2,p=4$c2FsdHNhbHRzYWx0$XXcsdRrqJ0P+bUs5HLfNmWj6U6VhmvsB5JAAWUMF/2k",
];

/// Made by ssh-keygen(1).
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEIPB3+pKidx74UYm+ucPHbqNjjkwTws4ffeZFtYGzob";
const OTHER_KEY: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEAUpLZ7wdT4TYWLWDfVT7Y3sURp\
     9MrGqZ3ov1veDOR3r84rXVZLIVE7d/Tbx5g7THlMK2XN70dDxk/PngsNLKQ=";
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Returns a user's line, quick to check.
fn line(name: &str) -> String {
    format!("{name}:{}\n", HASHES[0])
}

struct File(tempfile::NamedTempFile);

impl File {
    fn new(text: &str) -> Self {
        let file = Self(tempfile::NamedTempFile::new().unwrap());
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        fs::write(self.0.path(), text).unwrap();
    }

    fn open(&self) -> PasswordFile {
        PasswordFile::open(self.0.path()).unwrap()
    }
}

fn faults(text: &str) -> Vec<String> {
    let faults = PasswordFile::open(File::new(text).0.path()).unwrap_err();
    faults.iter().map(ToString::to_string).collect()
}

async fn is_right(users: &PasswordFile, user: &str, password: &str) -> bool {
    match users.verify(user, &password.into()).await.unwrap() {
        Verdict::Authenticated(proved) => {
            assert_eq!((&*proved.name, proved.method), (user, Method::Password));
            true
        }
        Verdict::Rejected(reason) => {
            assert_eq!(&*reason, "the user or the password is wrong");
            false
        }
    }
}

#[tokio::test]
async fn hashes_of_other_programs_are_verified() {
    let lines = (1..).zip(HASHES).map(|(number, hash)| format!("user{number}:{hash}\n"));
    let users = File::new(&lines.collect::<String>()).open();
    assert_eq!(users.len(), HASHES.len());
    for number in 1..=HASHES.len() {
        let user = format!("user{number}");
        assert!(is_right(&users, &user, "correct").await, "{user}");
        for wrong in ["", "correc", "correct ", "Correct"] {
            assert!(!is_right(&users, &user, wrong).await, "{user} {wrong}");
        }
    }
    // It is not hashed.
    assert!(!is_right(&users, "user5", &"x".repeat(129)).await);
}

#[tokio::test]
async fn a_user_has_groups_and_a_name_that_is_compared_byte_by_byte() {
    let hash = HASHES[0];
    let text = format!("# a comment\n\nalice:{hash}:ops,dev\r\nBob@example.com:{hash}\n\u{e9}ve:{hash}:");
    let users = File::new(&text).open();
    for (name, groups) in [
        ("alice", vec!["ops", "dev"]),
        ("Bob@example.com", vec![]),
        ("\u{e9}ve", vec![]),
    ] {
        let Ok(Verdict::Authenticated(user)) = users.verify(name, &"correct".into()).await else {
            panic!("{name} is refused");
        };
        let mut expected: Vec<Box<str>> = groups.into_iter().map(Into::into).collect();
        expected.push(AUTHENTICATED.into());
        assert_eq!((&*user.name, &user.groups), (name, &expected));
        assert_eq!((user.uid.as_deref(), user.expires), (None, None));
    }
    for unknown in ["Alice", "alice ", "", "bob@example.com", "# a comment", "e\u{301}ve"] {
        assert!(!users.contains(unknown));
        let Ok(Verdict::Rejected(reason)) = users.verify(unknown, &"correct".into()).await else {
            panic!("it is the password of a user, but not of {unknown}");
        };
        assert_eq!(&*reason, "the user or the password is wrong");
    }
    assert!(users.contains("alice"));
    assert!(!is_right(&File::new("#").open(), "alice", "x").await);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn every_fault_is_named_with_its_line_and_without_the_hash() {
    let no_key = "it is neither a hash nor a public key: expected `TYPE BASE64` after no other options than from=\"...\" and \
                  expiry-time=\"...\"";
    let accepted = "argon2id and bcrypt ($2y$) are";
    let name = "the name is empty, too long, not printable, or has a space at an end";
    let group = "a group is empty, too long, not printable, or has a space at an end";
    let good = HASHES[0];
    let argon2 = |params: &str| {
        format!("u:$argon2id$v=19${params}$c2FsdHNhbHRzYWx0$k16ISVq0VaTBHarDt7qY0wtPXC0BhHZGHRoMfzFGeik")
    };
    let lines = [
        (format!("alice:{good}"), None),
        (
            format!("alice:{good}:ops"),
            Some("this user is in line 1 already".to_owned()),
        ),
        (
            "alice".to_owned(),
            Some("there is no colon: a line is name:hash, name:hash:groups or name:KEY".to_owned()),
        ),
        (format!(":{good}"), Some(name.to_owned())),
        (format!(" bob:{good}"), Some(name.to_owned())),
        (format!("b\u{202e}ob:{good}"), Some(name.to_owned())),
        (format!("{}:{good}", "x".repeat(257)), Some(name.to_owned())),
        ("carol:".to_owned(), Some(NO_PROOF.to_owned())),
        ("dave::ops".to_owned(), Some(NO_PROOF.to_owned())),
        ("bob:no hash".to_owned(), Some(format!("the key of bob: {no_key}"))),
        ("bob:!locked x".to_owned(), Some(format!("the key of bob: {no_key}"))),
        (format!("bob:no-pty {KEY}"), Some(format!("the key of bob: {no_key}"))),
        (
            format!("bob:from=\"example.com\" {KEY}"),
            Some(
                "the key of bob: `from` has at most 64 addresses and networks, such as \"10.0.0.0/8,!10.1.2.3\", of which one admits".to_owned(),
            ),
        ),
        (
            "bob:hunter2".to_owned(),
            Some(format!("this is not a hash: {accepted}")),
        ),
        (
            "bob:$y$j9T$EZj73DYWs3192TMUgtx88.$FxxfOgD9".to_owned(),
            Some(format!("this kind of hash is not supported: {accepted}")),
        ),
        (
            "bob:$apr1$GfXhX3YT$exyYlL8ixVsX47YhqtOjr/".to_owned(),
            Some(format!("this kind of hash is not supported: {accepted}")),
        ),
        (
            "bob:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=".to_owned(),
            Some(format!("this kind of hash is not supported: {accepted}")),
        ),
        (
            "bob:!".to_owned(),
            Some(format!("a locked password is not supported: {accepted}")),
        ),
        (
            format!("bob:{}", good.replace("2y", "2x")),
            Some(format!("this kind of hash is not supported: {accepted}")),
        ),
        (
            "bob:$argon2i$v=19$m=4096,t=3,p=1$c2FsdA$aGFzaA".to_owned(),
            Some(format!("this kind of hash is not supported: {accepted}")),
        ),
        (
            format!("bob:{}", good.replace("$05$", "$15$")),
            Some("the bcrypt hash has a cost below 4 or above 14".to_owned()),
        ),
        (
            format!("bob:{}", good.replace("$05$", "$03$")),
            Some("the bcrypt hash has a cost below 4 or above 14".to_owned()),
        ),
        (
            format!("bob:{}", &good[..59]),
            Some("the bcrypt hash is malformed".to_owned()),
        ),
        (
            argon2("m=131073,t=1,p=1"),
            Some("the argon2id hash needs more than 128 MiB of memory (m=131072)".to_owned()),
        ),
        (
            argon2("m=4294967295,t=1,p=1"),
            Some("the argon2id hash needs more than 128 MiB of memory (m=131072)".to_owned()),
        ),
        (
            argon2("m=65536,t=17,p=1"),
            Some("the argon2id hash takes too long: m times t is at most 1 GiB (1048576)".to_owned()),
        ),
        (
            argon2("m=8,t=4294967295,p=1"),
            Some("the argon2id hash takes too long: m times t is at most 1 GiB (1048576)".to_owned()),
        ),
        (
            argon2("m=65536,t=1,p=65"),
            Some("the argon2id hash has more than 64 lanes (p)".to_owned()),
        ),
        (
            argon2("m=4096,t=0,p=1"),
            Some("the argon2id hash is malformed".to_owned()),
        ),
        (
            argon2("m=4096,t=1,p=1,x=1"),
            Some("the argon2id hash is malformed".to_owned()),
        ),
        (
            "u:$argon2id$v=19$m=4096,t=1,p=1".to_owned(),
            Some("the argon2id hash is malformed".to_owned()),
        ),
        (
            "u:$argon2id$v=16$m=4096,t=3,p=1$c2FsdHNhbHRzYWx0$k16ISVq0VaTBHarDt7qY0wtPXC0BhHZGHRoMfzFGeik".to_owned(),
            Some("the argon2id hash is malformed".to_owned()),
        ),
        (format!("bob:{good}:a,,b"), Some(group.to_owned())),
        (format!("bob:{good}:a, b"), Some(group.to_owned())),
        (
            format!("bob:{good}:system:masters"),
            Some("there is a colon after the groups: a line is name:hash or name:hash:groups".to_owned()),
        ),
        (
            "root:$6$x$y:19000:0:99999:7:::".to_owned(),
            Some(format!("this kind of hash is not supported: {accepted}")),
        ),
        (
            "bob:$5$rounds=6000$X2PbezBM0LbjBw6O$e7CaNFE.W8ZoeCd.tiyqiVRVf7iNZG3NMBK/J5H9dP9".to_owned(),
            Some(format!("this kind of hash is not supported: {accepted}")),
        ),
    ];
    // A few at a time, after the first line: no more than 20 are reported.
    for some in (1..lines.len()).collect::<Vec<_>>().chunks(20) {
        let (first, last) = (some[0], some[some.len() - 1]);
        let shown = || std::iter::once(&lines[0]).chain(&lines[first..=last]);
        let text: String = shown().map(|(line, _)| format!("{line}\n")).collect();
        let expected = (1..)
            .zip(shown())
            .filter_map(|(number, (_, fault))| Some(format!("line {number}: {}", fault.as_ref()?)));
        assert_eq!(faults(&text), expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_user_has_a_hash_or_keys_or_both_in_any_order() {
    let hash = HASHES[0];
    let text = format!(
        "bob:{KEY} bob@laptop\nalice:{hash}:ops\nalice:{KEY}\nalice:from=\"10.0.0.0/8\" {OTHER_KEY}\ncarol::dev\ncarol:{KEY}\n"
    );
    let users = File::new(&text).open().with_prefix(Some("file:".into()));
    assert_eq!((users.len(), users.has_keys()), (3, true));
    let key = |text: &str| text.parse::<HostKey>().unwrap();
    for (name, groups) in [("alice", vec!["ops"]), ("bob", vec![]), ("carol", vec!["dev"])] {
        let user = users.user_of_key(name, &key(KEY), HERE).unwrap();
        let mut expected: Vec<Box<str>> = groups.into_iter().map(Into::into).collect();
        expected.push(AUTHENTICATED.into());
        assert_eq!((&*user.name, &user.groups), (&*format!("file:{name}"), &expected));
        assert_eq!((user.method, user.expires), (Method::PublicKey, None));
    }
    for (name, text, client, expected) in [
        ("alice", OTHER_KEY, HERE, "the key is not accepted from this address"),
        ("bob", OTHER_KEY, HERE, "the user has no such key"),
        ("nobody", KEY, HERE, "the user has no such key"),
        ("file:bob", KEY, HERE, "the user has no such key"),
    ] {
        assert_eq!(users.user_of_key(name, &key(text), client), Err(expected), "{name}");
    }
    let client = "10.1.2.3".parse().unwrap();
    users.user_of_key("alice", &key(OTHER_KEY), client).unwrap();
    assert!(!File::new(&line("alice")).open().has_keys());
}

#[tokio::test]
async fn a_user_without_a_password_has_none_and_an_expired_key_proves_nobody() {
    let text = format!("alice:{KEY}\nbob:expiry-time=\"20200101\" {KEY}\n");
    let users = File::new(&text).open();
    for password in ["", "correct", KEY] {
        assert!(!is_right(&users, "alice", password).await);
    }
    let with_password = File::new(&(text + &line("zoe"))).open();
    assert!(!is_right(&with_password, "alice", "correct").await);
    assert!(is_right(&with_password, "zoe", "correct").await);
    let expired = users.user_of_key("bob", &KEY.parse().unwrap(), HERE).unwrap();
    assert!(expired.has_expired());
}

#[test]
fn a_user_has_each_key_once_and_few() {
    assert_eq!(
        faults(&format!("alice:{KEY}\nalice:{KEY} again\n")),
        ["line 2: the key of alice: the user has this key already"]
    );
    let key = |number: u8| {
        let blob = [&b"\0\0\0\x0bssh-ed25519\0\0\0\x20"[..], &[number; 32]].concat();
        format!("alice:ssh-ed25519 {}\n", STANDARD.encode(blob))
    };
    let sixteen: String = (0..16).map(key).collect();
    assert_eq!(File::new(&sixteen).open().len(), 1);
    assert_eq!(
        faults(&(sixteen + &key(16))),
        ["line 17: the key of alice: the user has 16 keys already"]
    );
    // A faulty key is one fault, and not a missing hash as well.
    assert_eq!(faults("alice::ops\nalice:ssh-ed25519 x\n").len(), 1);
}

/// As a change of an agent's keys ends no session of a password.
#[tokio::test]
async fn a_password_is_not_hashed_again_when_a_key_comes_or_goes() {
    let file = File::new(&line("alice"));
    let users = file.open();
    let Ok(Verdict::Authenticated(alice)) = users.verify("alice", &"correct".into()).await else {
        panic!("refused")
    };
    for text in [format!("alice:{KEY}\n{}", line("alice")), line("alice")] {
        file.write(&text);
        assert!(matches!(users.reload(), ReloadResult::Loaded));
        assert_eq!(users.has_keys(), text.contains(KEY));
        assert!(users.is_current(&alice));
    }
    file.write(&format!("alice:{KEY}\n"));
    assert!(matches!(users.reload(), ReloadResult::Loaded));
    assert!(!users.is_current(&alice));
}

#[test]
fn of_many_faults_the_first_ones_are_reported_and_the_number_of_the_others() {
    let reported = faults(&"x\n".repeat(500_000));
    assert_eq!(reported.len(), 21);
    assert!(
        reported[19].starts_with("line 20: there is no colon"),
        "{}",
        reported[19]
    );
    assert_eq!(reported[20], "and 499980 more errors");
    assert_eq!(faults(&"x\n".repeat(20)).len(), 20);
}

/// Waits until so many passwords wait to be hashed, while both permits are held.
async fn waits(users: &PasswordFile, passwords: usize) {
    while Arc::strong_count(&users.hashing()) < 3 + passwords {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn two_passwords_are_hashed_at_a_time_and_the_others_wait() {
    let users = Arc::new(File::new(&line("alice")).open());
    let hashing = users.hashing().acquire_many_owned(2).await.unwrap();
    let waiting: Vec<_> = (0..16)
        .map(|_| {
            let users = Arc::clone(&users);
            tokio::spawn(async move { is_right(&users, "alice", "correct").await })
        })
        .collect();
    waits(&users, 16).await;
    assert!(!waiting.iter().any(tokio::task::JoinHandle::is_finished));
    drop(hashing);
    for waiting in waiting {
        assert!(waiting.await.unwrap());
    }
    assert_eq!(users.hashing().available_permits(), 2);
}

#[tokio::test]
async fn a_line_that_is_removed_or_changed_while_its_password_is_checked_counts_no_more() {
    for (changed, expected) in [
        ("#".to_owned(), false),
        (format!("alice:{}\n", HASHES[2]), false),
        (format!("alice:{}:ops\n", HASHES[0]), true),
    ] {
        let file = File::new(&line("alice"));
        let users = Arc::new(file.open());
        let hashing = users.hashing().acquire_many_owned(2).await.unwrap();
        let checked = Arc::clone(&users);
        let checking = tokio::spawn(async move { checked.verify("alice", &"correct".into()).await });
        waits(&users, 1).await;
        file.write(&changed);
        assert!(matches!(users.reload(), ReloadResult::Loaded));
        drop(hashing);
        let verdict = checking.await.unwrap();
        assert_eq!(matches!(verdict, Ok(Verdict::Authenticated(_))), expected);
    }
}

#[test]
fn the_first_line_that_is_guessed_fast_is_named() {
    let weakness = |hashes: &[&str]| {
        let lines = (0..)
            .zip(hashes)
            .map(|(number, hash)| format!("user{}:{hash}\n", 9 - number));
        let users = File::new(&("# a comment\n".to_owned() + &lines.collect::<String>())).open();
        users.weakness().map(|weakness| weakness.to_string())
    };
    assert_eq!(weakness(&[HASHES[1], HASHES[4], HASHES[5]]), None);
    assert_eq!(
        weakness(&[HASHES[1], HASHES[0], HASHES[2], HASHES[3]]).unwrap(),
        "line 3: bcrypt with a cost below 10 is guessed fast: make the hashes with `htpasswd -nB -C 10`"
    );
}

#[test]
fn a_hash_is_not_printed() {
    let users = File::new(&line("alice")).open();
    assert!(!format!("{users:?}").contains("$2y$"));
}

proptest! {
    #[test]
    fn any_file_is_read_or_has_faults_with_lines(text in "(\\PC{0,20}:\\PC{0,60}\\n|[a-z]{1,3}:\\$(2y|5|6|argon2id)\\$[a-zA-Z0-9=$,./]{0,90}\\n){0,6}") {
        prop_assume!(!text.is_empty());
        if let Err(faults) = check(text.as_bytes()) {
            prop_assert!(!faults.is_empty());
            let lines = text.split('\n').count();
            for fault in faults.into_iter().take(20) {
                prop_assert!(fault.line.is_some_and(|line| (1..=lines).contains(&line)));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_have_faults(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes).ok();
    }
}

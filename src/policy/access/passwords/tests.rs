//! Tests of the file of users, with hashes that other programs have made.

use std::fs;

use proptest::prelude::*;

use super::*;
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
            Some("there is no colon: a line is name:hash or name:hash:groups".to_owned()),
        ),
        (format!(":{good}"), Some(name.to_owned())),
        (format!(" bob:{good}"), Some(name.to_owned())),
        (format!("b\u{202e}ob:{good}"), Some(name.to_owned())),
        (format!("{}:{good}", "x".repeat(257)), Some(name.to_owned())),
        ("bob:".to_owned(), Some("there is no hash after the name".to_owned())),
        (
            "bob::ops".to_owned(),
            Some("there is no hash after the name".to_owned()),
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
    for some in (1..lines.len()).collect::<Vec<_>>().chunks(MAX_ERRORS) {
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
    while Arc::strong_count(&users.hashing) < 2 + passwords {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn two_passwords_are_hashed_at_a_time_and_the_others_wait() {
    let users = Arc::new(File::new(&line("alice")).open());
    let hashing = Arc::clone(&users.hashing).acquire_many_owned(2).await.unwrap();
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
    assert_eq!(users.hashing.available_permits(), 2);
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
        let hashing = Arc::clone(&users.hashing).acquire_many_owned(2).await.unwrap();
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
            for fault in faults.into_iter().take(MAX_ERRORS) {
                prop_assert!(fault.line.is_some_and(|line| (1..=lines).contains(&line)));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_have_faults(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes).ok();
    }
}

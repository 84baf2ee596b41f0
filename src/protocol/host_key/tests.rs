//! Keys of ssh-keygen, and texts that are none.

use std::fs;
use std::process::Command;

use super::*;

/// Returns the public key of a new pair, as ssh-keygen writes it.
fn generate(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let mut keygen = Command::new("ssh-keygen");
    keygen
        .args(["-q", "-N", "", "-C", "a comment"])
        .args(arguments)
        .arg("-f")
        .arg(&path);
    assert!(keygen.status().unwrap().success(), "{arguments:?}");
    fs::read_to_string(path.with_extension("pub")).unwrap()
}

fn parse(text: &str) -> Result<HostKey, HostKeyError> {
    text.parse()
}

#[test]
fn the_keys_of_openssh_are_read_and_printed_with_their_fingerprint() {
    for arguments in [
        &["-t", "ed25519"][..],
        &["-t", "ecdsa", "-b", "256"],
        &["-t", "ecdsa", "-b", "384"],
        &["-t", "ecdsa", "-b", "521"],
        &["-t", "rsa", "-b", "2048"],
    ] {
        let text = generate(arguments);
        let key = parse(&text).unwrap();
        assert!(text.starts_with(&format!("{key} a comment")), "{text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &text).unwrap();
        let shown = Command::new("ssh-keygen").arg("-lf").arg(file.path()).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains(&format!(" {} ", key.fingerprint())), "{shown}");
    }
}

#[test]
fn other_keys_are_none() {
    let (ed25519, ecdsa) = (generate(&["-t", "ed25519"]), generate(&["-t", "ecdsa", "-b", "384"]));
    let base64 = |text: &str| text.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(
        parse(&generate(&["-t", "rsa", "-b", "1024"])),
        Err(HostKeyError::RsaSize)
    );
    for (text, error) in [
        (generate(&["-t", "dsa"]), HostKeyError::Type),
        (format!("@cert-authority {ed25519}"), HostKeyError::Type),
        (
            format!("ssh-ed25519-cert-v01@openssh.com {}", base64(&ed25519)),
            HostKeyError::Type,
        ),
        (format!("ssh-ed25519 {}", base64(&ecdsa)), HostKeyError::Damaged),
        (format!("ecdsa-sha2-nistp256 {}", base64(&ecdsa)), HostKeyError::Damaged),
        (
            format!("ssh-ed25519 {}", &base64(&ed25519)[..64]),
            HostKeyError::Damaged,
        ),
        (format!("ssh-ed25519 {}A=", base64(&ed25519)), HostKeyError::Damaged),
        ("ssh-ed25519 =".to_owned(), HostKeyError::Damaged),
        ("ssh-ed25519".to_owned(), HostKeyError::Form),
        (String::new(), HostKeyError::Form),
    ] {
        assert_eq!(parse(&text), Err(error), "{text}");
    }
    // Every prefix of a key, and a byte more than it.
    for text in [&ed25519, &ecdsa] {
        let blob = STANDARD.decode(base64(text)).unwrap();
        for length in 0..blob.len() {
            assert!(
                HostKey::from_base64(&STANDARD.encode(&blob[..length])).is_err(),
                "{length}"
            );
        }
        let longer = [&blob[..], b"x"].concat();
        assert_eq!(
            HostKey::from_base64(&STANDARD.encode(longer)),
            Err(HostKeyError::Damaged)
        );
    }
}

#[test]
fn an_integer_is_positive_and_has_no_digit_too_many() {
    for (bytes, expected) in [
        (&b"\0\0\0\x01\x7f"[..], Ok(7)),
        (b"\0\0\0\x02\0\x80", Ok(8)),
        (b"\0\0\0\0", Err(HostKeyError::Damaged)),
        (b"\0\0\0\x01\0", Err(HostKeyError::Damaged)),
        (b"\0\0\0\x01\x80", Err(HostKeyError::Damaged)),
        (b"\0\0\0\x02\0\x7f", Err(HostKeyError::Damaged)),
        (b"\xff\xff\xff\xff\x01", Err(HostKeyError::Damaged)),
    ] {
        assert_eq!(integer(&mut &*bytes).map(bits), expected, "{bytes:?}");
    }
}

fn ed25519(number: u8) -> HostKey {
    let blob = [b"\0\0\0\x0bssh-ed25519\0\0\0\x20", &[number; 32][..]].concat();
    HostKey::from_base64(&STANDARD.encode(blob)).unwrap()
}

#[test]
fn a_target_has_few_keys() {
    let lines = |count: u8| {
        (0..count)
            .map(|number| format!("{}\n", ed25519(number)))
            .collect::<String>()
    };
    let keys: HostKeys = format!("# ssh-keyscan\n\n{}{}", lines(8), ed25519(3)).parse().unwrap();
    assert_eq!(keys.iter().count(), 8, "one of them is there twice");
    assert_eq!(lines(9).parse::<HostKeys>(), Err(HostKeyError::TooMany));
    assert_eq!(lines(200).repeat(5).parse::<HostKeys>(), Err(HostKeyError::TooMany));
    assert_eq!("# none".parse::<HostKeys>(), Err(HostKeyError::Form));
    let json = serde_json::to_string(&keys).unwrap();
    assert_eq!(serde_json::from_str::<HostKeys>(&json).unwrap(), keys);
}

#[test]
fn published_keys_are_read_as_they_are_printed() {
    let keys = HostKeys::collect([1, 2].map(|number| Ok(ed25519(number))).into_iter()).unwrap();
    for keys in [keys, HostKeys::default()] {
        for source in KeySource::ALL {
            let published = PublishedKeys {
                source,
                keys: keys.clone(),
            };
            let text = published.to_string();
            assert_eq!(text.parse(), Ok(published), "{text}");
        }
    }
    for text in [
        "",
        "()",
        "();from=",
        "();from=root",
        "(:AA);from=config",
        "(:AAAA:);from=config",
        "?1",
    ] {
        assert!(text.parse::<PublishedKeys>().is_err(), "{text}");
    }
}

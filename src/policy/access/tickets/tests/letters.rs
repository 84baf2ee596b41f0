//! The letters of a ticket, and its key.

use super::*;

#[test]
fn a_ticket_is_26_letters_that_differ_each_time() {
    let mut seen = HashSet::new();
    let mut letters = HashSet::new();
    for _ in 0..1000 {
        let minted = NewTicket::new().unwrap();
        let text = minted.ticket.expose().to_owned();
        assert_eq!(text.len(), 26);
        assert_eq!(Key::from_ticket(&minted.ticket), Some(minted.key));
        assert_eq!(Key::parse(&minted.key.to_string()), Some(minted.key));
        letters.extend(text.chars());
        assert!(seen.insert(text));
    }
    // That one is missing in 26,000 letters has the probability 10^-357.
    assert_eq!(letters.len(), 32);
}

#[test]
fn a_ticket_is_read_as_people_write_it_and_nothing_else_is_one() {
    let key = Key::from_ticket(&"0123456789abcdefghjkmnpqrs".into()).unwrap();
    // sha256sum(1) of the 26 letters.
    assert_eq!(
        key.to_string(),
        "6aab299c78d0b17077bd60f9ea95ff9c4dc6a4dfa7b3b308d01c7c187cba3709"
    );
    for same in [
        "0123456789ABCDEFGHJKMNPQRS",
        "o123456789abcdefghjkmnpqrs",
        "Oi23456789abcdefghjkmnpqrs",
        "0L23456789-abcdefgh-jkmnpqrs",
        "-0123456789abcdefghjkmnpqrs-",
    ] {
        assert_eq!(Key::from_ticket(&same.into()), Some(key), "{same}");
    }
    for other in [
        "",
        "0123456789abcdefghjkmnpqr",
        "0123456789abcdefghjkmnpqrst",
        "0123456789abcdefghjkmnpqru",
        "0123456789abcdefghjkmnpqr ",
        "0123456789abcdefghjkmnpqr\u{e9}",
        &"-".repeat(26),
        &format!("{}0123456789abcdefghjkmnpqrs", "-".repeat(27)),
    ] {
        assert_eq!(Key::from_ticket(&other.into()), None, "{other}");
    }
    let hash = key.to_string();
    for bad in [
        "",
        &hash[1..],
        &format!("{hash}0"),
        &hash.to_uppercase(),
        &hash.replace('a', "g"),
        &"\u{e9}".repeat(32),
    ] {
        assert_eq!(Key::parse(bad), None, "{bad}");
    }
}

//! Tests of tickets: their letters, their Secret and their end.

use std::collections::HashSet;
use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;
use crate::policy::access::AUTHENTICATED;

mod letters;

fn at(second: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000 + second)
}

const HOUR: Duration = Duration::from_hours(1);

fn ticket(expires: SystemTime) -> Ticket {
    Ticket {
        user: "alice".into(),
        groups: vec!["ops".into()],
        expires,
        target: None,
    }
}

fn data(entries: &[(&NewTicket, Ticket)]) -> BTreeMap<String, Vec<u8>> {
    entries
        .iter()
        .map(|(minted, ticket)| (minted.key.to_string(), ticket.encode().unwrap()))
        .collect()
}

#[test]
fn a_ticket_proves_its_user_until_it_expires_or_is_taken_back() {
    let (one, two) = (NewTicket::new().unwrap(), NewTicket::new().unwrap());
    let tickets = Tickets::new(HOUR);
    let mut changed = tickets.changed();
    assert_eq!(tickets.lookup(one.key, at(0)), TicketLookup::Unlisted);
    tickets.replace(&BTreeMap::new());
    assert_eq!(tickets.lookup(one.key, at(0)), TicketLookup::Unknown);
    changed.mark_unchanged();
    let target: TicketTarget = "devbox.team-a".parse().unwrap();
    let narrow = Ticket {
        target: Some(target.clone()),
        ..ticket(at(60))
    };
    assert_eq!(tickets.replace(&data(&[(&one, narrow), (&two, ticket(at(3600)))])), []);
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    let proof = proved(&tickets, one.key, at(59));
    assert_eq!(
        (&*proof.user.name, proof.user.method, proof.user.expires),
        ("alice", Method::Ticket, Some(at(60)))
    );
    assert_eq!(proof.user.groups, ["ops".into(), AUTHENTICATED.into()]);
    assert_eq!(proof.target, Some(target));
    assert_eq!(tickets.lookup(one.key, at(60)), TicketLookup::Expired);
    assert_eq!(proved(&tickets, two.key, at(0)).target, None);
    // Of a clock that is behind, or made by other rules.
    assert_eq!(
        tickets.lookup(two.key, at(0) - SKEW - Duration::from_secs(1)),
        TicketLookup::TooLong
    );
    assert_eq!(proved(&tickets, two.key, at(0) - SKEW).target, None);
    assert_eq!(tickets.replace(&data(&[(&one, ticket(at(60)))])), []);
    assert!(changed.has_changed().unwrap());
    assert_eq!(tickets.lookup(two.key, at(0)), TicketLookup::Unknown);
    tickets.replace(&BTreeMap::new());
    assert_eq!(tickets.lookup(one.key, at(0)), TicketLookup::Unknown);
}

fn proved(tickets: &Tickets, key: Key, now: SystemTime) -> TicketIdentity {
    let TicketLookup::Proved(proof) = tickets.lookup(key, now) else {
        panic!("it is in force");
    };
    proof
}

#[test]
fn a_target_is_a_service_of_a_namespace_or_a_static_one() {
    let id = |namespace: &str, service: &str| TargetId {
        namespace: namespace.into(),
        service: service.into(),
    };
    for (text, opens, others) in [
        ("devbox.team-a", id("team-a", "devbox"), id("team-b", "devbox")),
        (
            "devbox.static",
            id("static", "devbox"),
            id("static", "devbox.static:22"),
        ),
        (
            "Box.local:22",
            id("static", "box.local:22"),
            id("static", "box.local:2222"),
        ),
        ("a:22", id("static", "a:22"), id("22", "a")),
        // Other spellings of one name.
        (
            "BOX.local.:022",
            id("static", "box.local:22"),
            id("static", "box.local:2222"),
        ),
        (
            "[0:0:0:0:0:0:0:1]:22",
            id("static", "[::1]:22"),
            id("static", "[::1]:23"),
        ),
        (
            "[::FFFF:10.0.0.1]:22",
            id("static", "[::ffff:10.0.0.1]:22"),
            id("static", "10.0.0.1:22"),
        ),
        ("DevBox.Team-A.", id("team-a", "devbox"), id("team-b", "devbox")),
        ("Box.Team-A.pod", id("team-a", "box._pod"), id("team-b", "box._pod")),
        ("box.team-a.pod", id("team-a", "box._pod"), id("pod", "box.team-a")),
        ("box.team-a", id("team-a", "web-0.box"), id("team-a", "box._pod")),
        ("box.pod", id("pod", "box"), id("box", "pod._pod")),
    ] {
        // Parsed once when the ticket is made, and once when it is read.
        let made: TicketTarget = text.parse().unwrap();
        let target: TicketTarget = made.to_string().parse().unwrap();
        assert_eq!(target, made, "{text}");
        let proof = TicketIdentity {
            user: Arc::new(User::claimed(Method::Ticket, "alice", Vec::new(), None)),
            target: Some(target),
        };
        assert!(proof.allows(&opens) && !proof.allows(&others), "{text}");
    }
}

#[test]
fn a_text_that_can_name_no_target_is_none_in_the_secret_either() {
    for bad in [
        "",
        "devbox",
        ".",
        "a.",
        ".a",
        "a.b.c",
        "pod",
        ".pod",
        "a..pod",
        "a.b.c.pod",
        "a.b.pod.pod",
        "A..b",
        "a.b..",
        "-a.b",
        "a-.b",
        "a_b.c",
        ":",
        "x:",
        ":22",
        "a..b:22",
        "a:99999",
        "a:0",
        "a:+22",
        "a:22:22",
        "::1:22",
        "[::1]",
        "[::1",
        "[fe80::1%eth0]:22",
        "user@a:22",
        "http://a:22",
        "a b.c",
        "a b:22",
        &"x".repeat(300),
        &format!("{}:1", "x".repeat(300)),
    ] {
        assert!(bad.parse::<TicketTarget>().is_err(), "{bad}");
        let entry = format!(r#"{{"user":"alice","target":"{bad}","expires":"2027-01-15T09:00:00Z"}}"#);
        let reason = "its target is neither SERVICE.NAMESPACE nor POD.NAMESPACE.pod nor HOST:PORT of a static target";
        assert_eq!(TicketIdentity::parse(entry.as_bytes()), Err(reason), "{bad}");
    }
}

#[test]
fn a_ticket_expires_at_the_same_moment_in_every_time_zone() {
    let expires = |text: &str| {
        let entry = format!(r#"{{"user":"alice","expires":"{text}"}}"#);
        TicketIdentity::parse(entry.as_bytes()).unwrap().user.expires
    };
    for text in [
        "2027-01-15T18:00:00+09:00",
        "2027-01-15T04:30:00-04:30",
        "2027-01-15T09:00:00+00:00",
    ] {
        assert_eq!(expires(text), expires("2027-01-15T09:00:00Z"), "{text}");
    }
}

#[test]
fn an_entry_that_cannot_be_read_is_no_ticket_and_the_others_count() {
    let good = NewTicket::new().unwrap();
    let no_json = "it is not the JSON of a ticket: user, groups, expires, target";
    let user = "its user is empty, too long, not printable or one of the cluster's own";
    let group = "a group is empty, too long, not printable or one of the cluster's own";
    let expires = r#""expires":"2027-01-15T09:00:00Z""#;
    for (value, expected) in [
        (String::new(), no_json),
        ("{}".to_owned(), no_json),
        (r#"{"user":"alice"}"#.to_owned(), no_json),
        (
            format!(r#"{{"user":"alice",{expires},"only_from":"10.0.0.0/8"}}"#),
            no_json,
        ),
        (format!(r#"{{"user":"alice","user":"root",{expires}}}"#), no_json),
        (format!(r#"{{"user":"alice","groups":"ops",{expires}}}"#), no_json),
        (
            r#"{"user":"alice","expires":"tomorrow"}"#.to_owned(),
            "it has no time at which it expires",
        ),
        (format!(r#"{{"user":"",{expires}}}"#), user),
        (format!(r#"{{"user":"system:admin",{expires}}}"#), user),
        (format!(r#"{{"user":"a\u0000b",{expires}}}"#), user),
        (
            format!(r#"{{"user":"alice","groups":["system:masters"],{expires}}}"#),
            group,
        ),
        (format!(r#"{{"user":"alice","groups":[""],{expires}}}"#), group),
        (
            format!(r#"{{"user":"alice","target":"",{expires}}}"#),
            "its target is neither SERVICE.NAMESPACE nor POD.NAMESPACE.pod nor HOST:PORT of a static target",
        ),
        (
            format!(r#"{{"user":"{}",{expires}}}"#, "x".repeat(4100)),
            "it is longer than 4 KiB",
        ),
    ] {
        let bad = NewTicket::new().unwrap();
        let mut data = data(&[(&good, ticket(at(60)))]);
        data.insert(bad.key.to_string(), value.clone().into_bytes());
        let tickets = Tickets::new(HOUR);
        let faults = tickets.replace(&data);
        assert_eq!(tickets.counts(), (1, 1));
        assert_eq!(
            faults,
            [TicketEntryError {
                key: format!("{}…", &bad.key.to_string()[..8]).into(),
                reason: expected
            }],
            "{value}"
        );
        assert_eq!(tickets.lookup(bad.key, at(0)), TicketLookup::Unknown);
        proved(&tickets, good.key, at(0));
    }
    let tickets = Tickets::new(HOUR);
    let named = BTreeMap::from([("note\u{1b}".to_owned(), Vec::new())]);
    assert_eq!(
        tickets.replace(&named)[0].to_string(),
        "note\\u{1b}: its key is no SHA-256 in lower-case hexadecimal digits"
    );
}

#[test]
fn what_would_not_be_accepted_is_not_encoded() {
    for bad in [
        Ticket {
            user: "system:admin".into(),
            ..ticket(at(0))
        },
        Ticket {
            groups: vec!["system:masters".into()],
            ..ticket(at(0))
        },
        Ticket {
            groups: vec!["x".into(); 65],
            ..ticket(at(0))
        },
    ] {
        assert!(bad.encode().is_err(), "{bad:?}");
    }
    let text = String::from_utf8(ticket(at(0)).encode().unwrap()).unwrap();
    assert_eq!(
        text,
        r#"{"user":"alice","groups":["ops"],"expires":"2027-01-15T08:00:00Z"}"#
    );
}

#[test]
fn the_data_of_a_secret_is_read() {
    let minted = NewTicket::new().unwrap();
    let value = ticket(at(60)).encode().unwrap();
    let secret = format!(
        r#"{{"kind":"Secret","type":"switchboard.dev/tickets","metadata":{{"name":"x"}},"data":{{"{}":"{}","x":"*"}}}}"#,
        minted.key,
        STANDARD.encode(&value)
    );
    let data = data_of(secret.as_bytes(), SECRET_TYPE).unwrap();
    assert_eq!(data[&minted.key.to_string()], value);
    assert_eq!(data["x"], b"");
    for empty in [
        r#"{"type":"switchboard.dev/tickets"}"#,
        r#"{"type":"switchboard.dev/tickets","data":null}"#,
        r#"{"kind":"Secret","type":"switchboard.dev/tickets"}"#,
    ] {
        assert!(data_of(empty.as_bytes(), SECRET_TYPE).unwrap().is_empty(), "{empty}");
    }
    for bad in ["", "[]", r#"{"kind":"Status"}"#, r#"{"data":{"x":1}}"#] {
        assert_eq!(
            data_of(bad.as_bytes(), SECRET_TYPE),
            Err("it is no Secret".to_owned()),
            "{bad}"
        );
    }
    for other in ["{}", r#"{"type":"Opaque","data":{}}"#] {
        assert_eq!(
            data_of(other.as_bytes(), SECRET_TYPE),
            Err("its type is not switchboard.dev/tickets".to_owned()),
            "{other}"
        );
    }
}

#[test]
fn a_table_is_bounded() {
    let value = ticket(at(60)).encode().unwrap();
    let data: BTreeMap<String, Vec<u8>> = (0..MAX_TICKETS + 2)
        .map(|number| (format!("{number:064x}"), value.clone()))
        .collect();
    let tickets = Tickets::new(HOUR);
    assert_eq!(tickets.replace(&data).len(), 2);
    assert_eq!(tickets.counts(), (MAX_TICKETS, 2));
}

#[test]
fn a_ticket_is_not_printed() {
    let minted = NewTicket::new().unwrap();
    assert!(!format!("{minted:?}").contains(minted.ticket.expose()));
}

proptest! {
    #[test]
    fn any_text_is_a_ticket_or_none(text in "\\PC{0,60}|[0-9a-zA-Z-]{20,30}") {
        if Key::from_ticket(&text.as_str().into()).is_some() {
            prop_assert_eq!(text.chars().filter(|letter| *letter != '-').count(), 26);
        }
    }

    #[test]
    fn any_entry_is_a_ticket_or_a_fault(name in "[0-9a-f]{64}|\\PC{0,20}", value in "\\PC{0,80}|\\{\"user\":\"\\PC{0,9}\",\"expires\":\"\\PC{0,25}\"\\}") {
        let tickets = Tickets::new(HOUR);
        let faults = tickets.replace(&BTreeMap::from([(name, value.into_bytes())]));
        prop_assert_eq!(faults.len() + tickets.counts().0, 1);
    }
}

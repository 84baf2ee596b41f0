//! Tickets as credentials: what they prove, what they open, and their end.

use std::collections::BTreeMap;

use super::*;
use crate::policy::access::tickets::{NewTicket, Ticket, TicketTarget, Tickets};

const TTL: Duration = Duration::from_hours(12);

/// Returns a world with tickets beside tokens, and no ticket yet.
fn world(change: impl FnOnce(&mut Options)) -> (World, Arc<Tickets>) {
    let world = World::new(change);
    world.publish(["a".to_owned(), "b".to_owned()], None);
    let tickets = Arc::new(Tickets::new(TTL));
    tickets.replace(&BTreeMap::new());
    with(&world, &tickets);
    (world, tickets)
}

/// Accepts these tickets.
fn with(world: &World, tickets: &Arc<Tickets>) {
    let sources = Sources {
        reviewer: Some(Arc::clone(&world.script) as Arc<dyn Reviewer>),
        tickets: Some(Arc::clone(tickets)),
        ..Sources::default()
    };
    let options = Options::clone(&world.access.decider.config.load().options);
    world.access.apply(options, sources);
}

/// Makes a ticket of the Secret the only one.
fn write(tickets: &Tickets, minted: &NewTicket, ticket: &Ticket) {
    let data = BTreeMap::from([(minted.key.to_string(), ticket.encode().unwrap())]);
    assert_eq!(tickets.replace(&data), []);
}

fn ticket(lives: Duration) -> Ticket {
    Ticket {
        user: "alice".into(),
        groups: vec!["ops".into()],
        expires: SystemTime::now() + lives,
        target: None,
    }
}

fn password(user: &str, password: &str) -> RequestCredentials<'static> {
    let mut request = request("", 1);
    request.credential = Some(Ok(Credential::Basic {
        user: user.into(),
        password: password.into(),
    }));
    request
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_a_token_or_the_password_of_any_user_in_any_case_and_asks_no_review() {
    let (world, tickets) = world(|_| {});
    let minted = NewTicket::new().unwrap();
    write(&tickets, &minted, &ticket(TTL / 2));
    let text = minted.ticket.expose();
    let hyphened = format!("{}-{}", &text[..13], text[13..].to_uppercase());
    for request in [request(text, 1), password("", text), password("bob", &hyphened)] {
        let subject = world.access.authenticate(request).await.unwrap();
        assert_eq!((&*subject.user.name, subject.user.method), ("alice", Method::Ticket));
        assert!(subject.user.groups.contains(&"ops".into()));
        world.access.authorize(&subject, &world.target("a")).await.unwrap();
    }
    assert_eq!(world.script.tokens.load(Ordering::Relaxed), 0);
    // The API server is asked for the user that the ticket names.
    world
        .script
        .set_access(|user, _| Ok(decision(user.groups.contains(&"admins".into()))));
    world.access.changed(&Change::Everywhere);
    assert_eq!(
        world.grant(text, "b").await.unwrap_err().reason,
        RefusalReason::NotAuthorized
    );
    let shown = page(&world.registry).unwrap();
    let line = "switchboard_access_requests_total{method=\"ticket\",result=\"allowed\"} 3";
    assert!(shown.contains(line) && !shown.contains(text), "{shown}");
    world.access.count();
    let page = page(&world.registry).unwrap();
    assert!(page.contains("switchboard_access_tickets{state=\"valid\"} 1"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_known_beside_a_file_of_users_and_other_passwords_stay_passwords() {
    let (world, tickets) = world(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    // The password is `correct`: made by htpasswd(1).
    std::fs::write(
        &file,
        "carol:$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu\n",
    )
    .unwrap();
    let sources = Sources {
        users: Some(Arc::new(PasswordFile::open(file).unwrap())),
        ..Sources::clone(&world.access.decider.config.load().sources)
    };
    let options = Options::clone(&world.access.decider.config.load().options);
    world.access.apply(options, sources);
    let minted = NewTicket::new().unwrap();
    write(&tickets, &minted, &ticket(TTL / 2));
    for (request, name, method) in [
        (password("carol", minted.ticket.expose()), "alice", Method::Ticket),
        (password("carol", "correct"), "carol", Method::Password),
        (request("bob", 1), "bob", Method::TokenReview),
    ] {
        let user = world.access.authenticate(request).await.unwrap().user;
        assert_eq!((&*user.name, user.method), (name, method));
    }
    // One that is not known is no password, and is sent to no API server.
    let wrong = NewTicket::new().unwrap();
    let reviews = world.script.tokens.load(Ordering::Relaxed);
    let refusal = world
        .access
        .authenticate(password("carol", wrong.ticket.expose()))
        .await
        .unwrap_err();
    assert_eq!(refusal.phrase(), "the ticket is not known, or was revoked");
    assert_eq!(world.script.tokens.load(Ordering::Relaxed), reviews);
}

#[tokio::test(start_paused = true)]
async fn wrong_tickets_are_bounded_for_their_network_and_another_one_gets_in() {
    let (world, tickets) = world(|_| {});
    let minted = NewTicket::new().unwrap();
    write(&tickets, &minted, &ticket(TTL / 2));
    let mut bounded = 0;
    for _ in 0..10_000 {
        let wrong = NewTicket::new().unwrap();
        let refusal = world.identify(wrong.ticket.expose(), 7).await.unwrap_err();
        bounded += usize::from(refusal.reason == RefusalReason::GuessRate);
    }
    assert_eq!(bounded, 9900);
    // No guess is judged, not even a right one.
    let right = world.identify(minted.ticket.expose(), 7).await.unwrap_err();
    assert_eq!(right, RefusalReason::GuessRate.into());
    world.identify(minted.ticket.expose(), 1000).await.unwrap();
    assert_eq!(world.script.tokens.load(Ordering::Relaxed), 0);
    sleep(seconds(11)).await;
    world.identify(minted.ticket.expose(), 7).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ticket_opens_its_target_alone_and_the_right_is_asked_about_as_well() {
    let (world, tickets) = world(|_| {});
    let minted = NewTicket::new().unwrap();
    let target: TicketTarget = "a.team".parse().unwrap();
    let narrow = Ticket {
        target: Some(target),
        ..ticket(TTL / 2)
    };
    write(&tickets, &minted, &narrow);
    let grant = world.grant(minted.ticket.expose(), "a").await.unwrap();
    let refusal = world.grant(minted.ticket.expose(), "b").await.unwrap_err();
    assert_eq!(
        (refusal.reason, refusal.phrase()),
        (RefusalReason::NotAuthorized, "this ticket is for a.team only")
    );
    // Made narrower while a tunnel runs.
    let other = Ticket {
        target: Some("b.team".parse().unwrap()),
        ..ticket(TTL / 2)
    };
    write(&tickets, &minted, &other);
    world.access.tickets_changed();
    assert_eq!(grant.revoked_or_expired().await, CloseReason::AccessRevoked);
    world.script.set_access(|_, _| Ok(decision(false)));
    world.access.changed(&Change::Everywhere);
    assert!(world.grant(minted.ticket.expose(), "b").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_is_taken_back_ends_its_tunnels_at_once_and_no_others() {
    let (world, tickets) = world(|_| {});
    let minted = NewTicket::new().unwrap();
    write(&tickets, &minted, &ticket(TTL / 2));
    let own = world.grant(minted.ticket.expose(), "a").await.unwrap();
    let others = world.grant("alice", "a").await.unwrap();
    let subject = world.identify(minted.ticket.expose(), 1).await.unwrap();
    tickets.replace(&BTreeMap::new());
    world.access.tickets_changed();
    assert!(has_ended(&own) && !has_ended(&others));
    // Between the two steps of a request, too.
    let refusal = world.access.authorize(&subject, &world.target("a")).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::CredentialsRefused);
    assert_eq!(
        world.grant(minted.ticket.expose(), "a").await.unwrap_err().phrase(),
        "the ticket is not known, or was revoked"
    );
    // As long as new lists are not in, nothing ends, and nothing is refused permanently.
    write(&tickets, &minted, &ticket(TTL / 2));
    let own = world.grant(minted.ticket.expose(), "a").await.unwrap();
    let unlisted = Arc::new(Tickets::new(TTL));
    with(&world, &unlisted);
    world.access.tickets_changed();
    sleep(seconds(30)).await;
    assert!(!has_ended(&own));
    let refusal = world.grant(minted.ticket.expose(), "a").await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::AuthorizationUnavailable);
    // Tickets are accepted no more.
    world.access.apply(
        Options::clone(&world.access.decider.config.load().options),
        Sources {
            reviewer: Some(Arc::clone(&world.script) as Arc<dyn Reviewer>),
            ..Sources::default()
        },
    );
    assert_eq!(own.revoked_or_expired().await, CloseReason::AccessRevoked);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_opens_no_tunnel_five_seconds_after_a_watch_has_lost_the_cluster_and_ends_none() {
    let (world, tickets) = world(|_| {});
    let (minted, expired) = (NewTicket::new().unwrap(), NewTicket::new().unwrap());
    write(&tickets, &minted, &ticket(TTL / 2));
    let own = world.grant(minted.ticket.expose(), "a").await.unwrap();
    let refusal = async |ticket: &NewTicket| {
        let denied = world.grant(ticket.ticket.expose(), "a").await.err();
        denied.map(|refusal| refusal.reason)
    };
    let watches = world.access.watches();
    let (watch, other) = (watches.add(), watches.add());
    other.note(true);
    watch.note(false);
    sleep(seconds(4)).await;
    watch.note(false);
    assert_eq!(refusal(&minted).await, None);
    sleep(seconds(1)).await;
    assert_eq!(refusal(&minted).await, Some(RefusalReason::AuthorizationUnavailable));
    // It may have been made since.
    let unknown = NewTicket::new().unwrap();
    assert_eq!(refusal(&unknown).await, Some(RefusalReason::AuthorizationUnavailable));
    world.access.tickets_changed();
    world.access.changed(&Change::Everywhere);
    sleep(seconds(5)).await;
    assert!(!has_ended(&own));
    world.grant("alice", "a").await.unwrap();
    watch.note(true);
    assert_eq!(refusal(&minted).await, None);
    assert_eq!(refusal(&unknown).await, Some(RefusalReason::CredentialsRefused));
    // One that ends with its settings keeps nothing back.
    watch.note(false);
    sleep(seconds(5)).await;
    drop(watch);
    assert_eq!(refusal(&minted).await, None);
    // A no that stays one is said.
    let watch = world.access.watches().add();
    watch.note(false);
    sleep(seconds(5)).await;
    write(&tickets, &expired, &ticket(Duration::ZERO));
    let refusal = world.identify(expired.ticket.expose(), 1).await.unwrap_err();
    assert_eq!(refusal.phrase(), "the ticket has expired");
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_taken_back_ends_the_tunnels_of_a_ticket() {
    let (world, tickets) = world(|_| {});
    let minted = NewTicket::new().unwrap();
    write(&tickets, &minted, &ticket(TTL / 2));
    let grant = world.grant(minted.ticket.expose(), "a").await.unwrap();
    world.script.set_access(|_, _| Ok(decision(false)));
    world.access.changed(&Change::Namespace("team".into()));
    assert_eq!(grant.revoked_or_expired().await, CloseReason::AccessRevoked);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_expires_is_left_to_on_expiry() {
    for (on_expiry, ends) in [(OnExpiry::Keep, false), (OnExpiry::Close, true)] {
        let (world, tickets) = world(|options| options.on_expiry = on_expiry);
        let minted = NewTicket::new().unwrap();
        write(&tickets, &minted, &ticket(Duration::from_hours(1)));
        let grant = world.grant(minted.ticket.expose(), "a").await.unwrap();
        sleep(Duration::from_mins(59)).await;
        assert!(!has_ended(&grant));
        sleep(Duration::from_mins(2)).await;
        // It is deleted after its expiry: that takes nothing back.
        tickets.replace(&BTreeMap::new());
        world.access.tickets_changed();
        assert_eq!(has_ended(&grant), ends, "{on_expiry:?}");
        if ends {
            assert_eq!(grant.revoked_or_expired().await, CloseReason::Expired);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_taken_back_though_the_certificate_beside_it_has_expired() {
    let (world, tickets) = world(|_| {});
    let minted = NewTicket::new().unwrap();
    write(&tickets, &minted, &ticket(TTL / 2));
    let client_tls = identities::certificate(seconds(60));
    let both = RequestCredentials {
        client_tls: Some(&client_tls),
        ..request(minted.ticket.expose(), 1)
    };
    let subject = world.access.authenticate(both).await.unwrap();
    let grant = world.access.authorize(&subject, &world.target("a")).await.unwrap();
    sleep(seconds(61)).await;
    assert!(!has_ended(&grant));
    tickets.replace(&BTreeMap::new());
    world.access.tickets_changed();
    assert!(has_ended(&grant));
}

/// The rights of a ticket's user are reviewed like any other user's.
#[tokio::test(start_paused = true)]
async fn a_burst_of_a_tickets_own_requests_brings_no_lost_right_back() {
    let (world, tickets) = world(|_| {});
    let others = (0..39).map(|number| format!("s{number}"));
    world.publish(others.chain(["a".to_owned()]), None);
    let minted = NewTicket::new().unwrap();
    write(&tickets, &minted, &ticket(TTL / 2));
    let text = minted.ticket.expose();
    world.grant(text, "a").await.unwrap();
    sleep(seconds(11)).await;
    world.script.set_access(|_, _| Ok(decision(false)));
    let others = (0..39).map(|number| {
        let (world, target) = (&world, format!("s{number}"));
        async move { world.grant(text, &target).await.map(drop) }
    });
    let own = async {
        tokio::task::yield_now().await;
        world.grant(text, "a").await
    };
    let (_, own) = tokio::join!(futures_util::future::join_all(others), own);
    assert_eq!(own.unwrap_err().reason, RefusalReason::AuthorizationUnavailable);
}

//! Guesses at passwords: what bounds them, and which users the bound locks out.

use std::collections::BTreeMap;

use futures_util::FutureExt;

use super::*;
use crate::policy::access::credentials::guess_limiter::RATE;
use crate::policy::access::tickets::Tickets;

const EACH: Duration = RATE.interval;
const BURST: u32 = RATE.burst;

/// Returns a world whose file has alice and bob, with the password `correct`: made by htpasswd(1).
fn world() -> World {
    let world = World::new(|_| {});
    let file = tempfile::NamedTempFile::new().unwrap();
    let hash = "$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu";
    std::fs::write(file.path(), format!("alice:{hash}\nbob:{hash}\n")).unwrap();
    let sources = Sources {
        users: Some(Arc::new(PasswordFile::open(file.path()).unwrap())),
        ..Sources::clone(&world.access.decider.config.load().sources)
    };
    let options = Options::clone(&world.access.decider.config.load().options);
    world.access.apply(options, sources);
    world
}

/// Returns a world of the same users that accepts tickets, and has none.
fn with_tickets() -> World {
    let world = world();
    let tickets = Arc::new(Tickets::new(seconds(60)));
    tickets.replace(&BTreeMap::new());
    let config = world.access.decider.config.load_full();
    let sources = Sources {
        tickets: Some(tickets),
        ..config.sources.clone()
    };
    world.access.apply(config.options.clone(), sources);
    world
}

fn login(user: &str, password: &str, client: u32) -> RequestCredentials<'static> {
    RequestCredentials {
        credential: Some(Ok(Credential::Basic {
            user: user.into(),
            password: password.into(),
        })),
        ..request("", client)
    }
}

async fn refusal(world: &World, user: &str, password: &str, client: u32) -> Option<RefusalReason> {
    let identified = world.access.authenticate(login(user, password, client)).await;
    identified.err().map(|refusal| refusal.reason)
}

async fn guess(world: &World, user: &str, client: u32, guesses: std::ops::Range<u32>) {
    for number in guesses {
        let refused = refusal(world, user, &format!("wrong{number}"), client).await;
        assert_eq!(refused, Some(RefusalReason::CredentialsRefused), "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guess_beyond_the_bound_is_neither_hashed_nor_judged() {
    let world = world();
    guess(&world, "alice", 1, 0..BURST - 1).await;
    // No user has this name, which makes no difference.
    guess(&world, "nobody", 1, 0..1).await;
    for (user, password) in [
        ("alice", "correct"),
        ("alice", "x"),
        ("bob", "correct"),
        ("nobody", "x"),
    ] {
        // At once: what is hashed takes a thread.
        let answer = world.access.authenticate(login(user, password, 1)).now_or_never();
        assert_eq!(
            answer.unwrap().unwrap_err(),
            RefusalReason::GuessRate.into(),
            "{user} {password}"
        );
    }
    // Tokens are no guesses.
    world.identify("alice", 1).await.unwrap();
    sleep(EACH).await;
    assert_eq!(refusal(&world, "bob", "correct", 1).await, None);
    for (result, count) in [("credentials_refused", BURST), ("guess_rate", 4)] {
        let line = format!("switchboard_access_requests_total{{method=\"password\",result=\"{result}\"}} {count}\n");
        assert!(page(&world.registry).unwrap().contains(&line), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_at_whom_others_guess_gets_in_from_a_network_without_wrong_guesses() {
    let world = world();
    for (network, first) in [(1, 0), (2, 50)] {
        guess(&world, "alice", network, first..first + 50).await;
    }
    assert_eq!(refusal(&world, "alice", "x", 2).await, Some(RefusalReason::GuessRate));
    // Another user of that network, too.
    assert_eq!(refusal(&world, "bob", "correct", 2).await, None);
    assert_eq!(refusal(&world, "alice", "correct", 3).await, None);
    // One guess of each network, until it is forgotten.
    guess(&world, "alice", 4, 100..101).await;
    assert_eq!(
        refusal(&world, "alice", "correct", 4).await,
        Some(RefusalReason::GuessRate)
    );
    sleep(EACH).await;
    assert_eq!(refusal(&world, "alice", "correct", 4).await, None);
}

/// As an editor does that reconnects with the password of yesterday.
#[tokio::test(start_paused = true)]
async fn an_old_password_that_is_repeated_locks_no_one_out() {
    let world = world();
    for _ in 0..2 * BURST {
        assert_eq!(
            refusal(&world, "alice", "old", 1).await,
            Some(RefusalReason::CredentialsRefused)
        );
        sleep(seconds(11)).await;
    }
    for _ in 0..2 * BURST {
        assert_eq!(
            refusal(&world, "bob", "old", 1).await,
            Some(RefusalReason::CredentialsRefused)
        );
    }
    assert_eq!(refusal(&world, "alice", "correct", 1).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_password_that_is_remembered_is_so_for_its_network_alone() {
    let world = world();
    for (client, hits) in [(1, 0), (1, 1), (2, 1)] {
        assert_eq!(refusal(&world, "alice", "correct", client).await, None);
        let line = format!("switchboard_access_cache_hits_total{{answer=\"verdict\"}} {hits}\n");
        let page = page(&world.registry).unwrap();
        assert!(page.contains(&line), "others could guess without being counted: {page}");
    }
}

/// A right one that were answered from memory, and a wrong one that were not, would be told apart without being counted.
#[tokio::test(start_paused = true)]
async fn right_and_wrong_passwords_have_the_same_answer_where_none_is_checked() {
    let world = world();
    for age in [0, 11] {
        assert_eq!(refusal(&world, "alice", "correct", 1).await, None);
        sleep(seconds(age)).await;
        let client = Ipv4Addr::from_bits(1).into();
        let passwords = &world.access.decider.reviews.passwords;
        let permits: Vec<_> = std::iter::from_fn(|| passwords.enter(client).now_or_never()).collect();
        let mut waiting = Vec::new();
        for _ in 0..64 {
            let mut enter = Box::pin(passwords.enter(client));
            assert!(futures_util::poll!(&mut enter).is_pending());
            waiting.push(enter);
        }
        for password in ["wrong", "correct"] {
            let refused = refusal(&world, "alice", password, 1).await;
            assert_eq!(
                refused,
                Some(RefusalReason::AuthorizationUnavailable),
                "{password} after {age} s"
            );
        }
        drop((permits, waiting));
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_tickets_of_any_number_of_networks_make_no_wrong_password_forgotten() {
    let world = with_tickets();
    guess(&world, "alice", 1, 0..BURST).await;
    guess(&world, "alice", 2, BURST..BURST + 1).await;
    for network in 3..10_000 {
        for number in [10, 11] {
            let wrong = world.identify(&format!("{number:026}"), network).await.unwrap_err();
            assert_eq!(wrong.reason, RefusalReason::CredentialsRefused);
        }
    }
    assert_eq!(
        refusal(&world, "alice", "correct", 2).await,
        Some(RefusalReason::GuessRate)
    );
}

#[tokio::test(start_paused = true)]
async fn wrong_tickets_that_come_at_the_same_moment_are_a_hundred_together() {
    let world = with_tickets();
    let clock = tokio::runtime::Handle::current();
    for network in 0..200 {
        let together = std::sync::Barrier::new(2);
        let guess = |first: u32| {
            let _clock = clock.enter();
            together.wait();
            let wrong = (first..first + BURST).map(|number| format!("{number:026}"));
            let answers = wrong.map(|ticket| world.identify(&ticket, network).now_or_never().unwrap().unwrap_err());
            answers
                .filter(|refusal| refusal.reason == RefusalReason::CredentialsRefused)
                .count()
        };
        let looked_at = std::thread::scope(|scope| {
            let other = scope.spawn(|| guess(BURST));
            guess(0) + other.join().unwrap()
        });
        assert_eq!(looked_at, BURST as usize, "of network {network}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guess_that_is_beyond_the_bound_after_its_wait_is_refused_as_one() {
    let world = world();
    guess(&world, "alice", 1, 0..BURST - 1).await;
    let passwords = &world.access.decider.reviews.passwords;
    let client = Ipv4Addr::from_bits(1).into();
    let mut permits: Vec<_> = std::iter::from_fn(|| passwords.enter(client).now_or_never()).collect();
    let release = async {
        tokio::task::yield_now().await;
        drop(permits.pop());
    };
    let (first, second, ()) = tokio::join!(
        refusal(&world, "alice", "x", 1),
        refusal(&world, "alice", "y", 1),
        release
    );
    assert_eq!(first, Some(RefusalReason::CredentialsRefused));
    assert_eq!(second, Some(RefusalReason::GuessRate));
}

/// Two of one network are hashed at a time.
#[tokio::test(start_paused = true)]
async fn of_two_guesses_that_are_hashed_at_the_same_moment_one_is_the_last() {
    let world = world();
    for (client, [first, second]) in [(1, ["x", "y"]), (2, ["x", "correct"]), (3, ["correct", "x"])] {
        guess(&world, "alice", client, 0..BURST - 1).await;
        let refused = tokio::join!(
            refusal(&world, "alice", first, client),
            refusal(&world, "alice", second, client)
        );
        let refused: [_; 2] = refused.into();
        let guesses = |reason| refused.iter().filter(|refused| **refused == Some(reason)).count();
        // A right one that comes before the last wrong one counts.
        let is_before = refused.contains(&None);
        let expected = if is_before { [1, 0] } else { [1, 1] };
        let found = [RefusalReason::CredentialsRefused, RefusalReason::GuessRate].map(guesses);
        assert_eq!(found, expected, "{refused:?}");
        sleep(2 * EACH * BURST).await;
    }
}

/// Each login needs the two slots for hashes.
#[tokio::test(start_paused = true)]
async fn a_recheck_hashes_no_password_of_a_line_that_is_unchanged() {
    const OTHER: &str = "$2b$05$dFdD19ja62y5FNHzuTHz/ur0eKTpA63GRpL9H0La3wcIV823kQdNK";
    let world = world();
    let config = world.access.decider.config.load_full();
    let file = tempfile::NamedTempFile::new().unwrap();
    let hash = "$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu";
    let write = |lines: &str| std::fs::write(file.path(), lines).unwrap();
    write(&format!("alice:{hash}\n"));
    let users = Arc::new(PasswordFile::open(file.path()).unwrap());
    let sources = Sources {
        users: Some(Arc::clone(&users)),
        ..config.sources.clone()
    };
    world.access.apply(config.options.clone(), sources);
    world.publish(["a".to_owned()], None);
    let subject = world.access.authenticate(login("alice", "correct", 1)).await.unwrap();
    let grant = world.access.authorize(&subject, &world.target("a")).await.unwrap();
    let kept = || {
        let page = page(&world.registry).unwrap();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("switchboard_access_rechecks_total{result=\"kept\"} "));
        line.unwrap().parse::<u32>().unwrap()
    };
    // Nothing is hashed during that time.
    let slots = users.hashing().acquire_many_owned(2).await.unwrap();
    let mut before = kept();
    for lines in [
        format!("alice:{hash}\n"),
        format!("# moved\nalice:{hash}\nbob:{OTHER}\n"),
    ] {
        write(&lines);
        users.reload();
        world.access.users_changed();
        sleep(seconds(700)).await;
        assert!(kept() > before + 1, "{lines}");
        before = kept();
    }
    drop(slots);
    // Another hash of the same password: hashed once.
    write(&format!("alice:{OTHER}\n"));
    users.reload();
    world.access.users_changed();
    sleep(seconds(10)).await;
    assert!(kept() > before);
    let slots = users.hashing().acquire_many_owned(2).await.unwrap();
    before = kept();
    sleep(seconds(700)).await;
    assert!(kept() > before + 1 && !has_ended(&grant));
    drop(slots);
    write(&format!("alice:{}\n", OTHER.replace("H0La3", "H0La4")));
    users.reload();
    world.access.users_changed();
    sleep(seconds(2)).await;
    assert!(has_ended(&grant));
}

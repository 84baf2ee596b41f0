//! Rights that end while tunnels use them.

use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt;
use switchboard::policy::access::{Change, Mode};
use switchboard::policy::allowlist::StaticTarget;
use switchboard::tunnel::limits::{Limits, OwnerLimits};
use switchboard::tunnel::outcome::RefusalReason;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::world::{World, service};
use super::{bearer, request};
use crate::harness::{CONFIRMATION, DEADLINE};

async fn tunnel(world: &World, name: &str, token: &str) -> TcpStream {
    let (answer, client) = world.ask(&request(name, "1.1", &bearer(token))).await;
    assert_eq!(answer, CONFIRMATION);
    client
}

/// The end of a tunnel that the proxy cuts off: a reset, since an end of stream would look complete.
async fn ends(mut client: TcpStream) {
    let read = timeout(DEADLINE, client.read_u8()).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

const CLOSED: &str = r#"tunnels_closed_total{by="proxy",reason="access_revoked"}"#;

#[tokio::test]
async fn a_deleted_binding_ends_the_tunnels_of_its_user_within_a_second_and_no_others() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    world.cluster.allow("bob", "team/a");
    let (alices, bobs) = (
        tunnel(&world, "a.team:22", "alices").await,
        tunnel(&world, "a.team:22", "bobs").await,
    );
    world.cluster.forbid("alice", "team/a");
    let start = Instant::now();
    world.shared.access.changed(&Change::Namespace("team".into()));
    ends(alices).await;
    let took = start.elapsed();
    println!("ended after {took:?}");
    world.counts(CLOSED, 1.0).await;
    world
        .counts(r#"tunnels_active{target_namespace="team",target_service="a"}"#, 1.0)
        .await;
    let (answer, _client) = world.ask(&request("a.team:22", "1.1", &bearer("alices"))).await;
    assert!(
        answer.starts_with("HTTP/1.1 403 alice may not ssh to a.team\r\n"),
        "{answer}"
    );
    drop(bobs);
}

#[tokio::test]
async fn an_api_server_that_is_away_ends_no_tunnel() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    let alices = tunnel(&world, "a.team:22", "alices").await;
    world.cluster.is_away.store(true, Relaxed);
    // An allowed user stays allowed, until a change that the watch tells.
    let again = tunnel(&world, "a.team:22", "alices").await;
    world.shared.access.changed(&Change::Everywhere);
    world.counts(r#"access_rechecks_total{result="unknown"}"#, 1.0).await;
    let (answer, _client) = world.ask(&request("a.team:22", "1.1", &bearer("alices"))).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(world.page().value(CLOSED), 0.0);
    drop((alices, again));
}

/// The right was given for a Service that is not there any more when the answer comes: neither the old one is dialled, nor
/// one that has got its name or its address since.
#[tokio::test]
async fn a_service_that_goes_between_the_review_and_the_answer_is_not_dialled() {
    for becomes in [&[][..], &["renamed"], &["b", "a"]] {
        let world = World::new(Mode::Enforce, |_| {}).await;
        let held = world.cluster.answers.lock().await;
        let asked = async {
            let (answer, _client) = world.ask(&request("a.team:22", "1.1", &bearer("alices"))).await;
            answer
        };
        let changed = async {
            let is_asked = async {
                while world.cluster.access_reviews.load(Relaxed) == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(DEADLINE, is_asked).await.unwrap();
            let address = world.target.local_addr().unwrap();
            world.writer.replace(Vec::new(), true);
            world
                .writer
                .replace(becomes.iter().map(|name| service(name, address)).collect(), true);
            drop(held);
        };
        let (answer, ()) = tokio::join!(asked, changed);
        let expected = format!("HTTP/1.1 403 {}\r\n", RefusalReason::NotAllowed.phrase());
        assert!(answer.starts_with(&expected), "{becomes:?}: {answer}");
        assert!(world.target.accept().now_or_never().is_none(), "{becomes:?}");
        // The right of the review is that of this name, and a Service that has it now has it, too.
        let (answer, _client) = world.ask(&request("a.team:22", "1.1", &bearer("alices"))).await;
        assert_eq!(answer == CONFIRMATION, becomes.contains(&"a"), "{becomes:?}: {answer}");
    }
}

/// Names the users of `box.local:22`.
fn name(world: &mut World, users: &[&str]) {
    let address = world.target.local_addr().unwrap();
    let mut own: StaticTarget = format!("box.local:22={address}").parse().unwrap();
    own.allowed_users = Some(users.iter().map(|user| Box::from(*user)).collect());
    let limits = Limits {
        ssh_only: false,
        ..Limits::default()
    };
    world.writer.publish(&[own], &limits);
}

#[tokio::test]
async fn a_user_that_leaves_the_lists_of_a_target_leaves_it() {
    let mut world = World::new(Mode::Enforce, |_| {}).await;
    name(&mut world, &["alice", "bob"]);
    let (alices, bobs) = (
        tunnel(&world, "box.local:22", "alices").await,
        tunnel(&world, "box.local:22", "bobs").await,
    );
    name(&mut world, &["bob"]);
    world.shared.access.user_lists_changed();
    ends(alices).await;
    world.counts(CLOSED, 1.0).await;
    assert_eq!(world.cluster.access_reviews.load(Relaxed), 0);
    drop(bobs);
}

#[tokio::test]
async fn a_user_has_its_own_slots_wherever_it_connects_from() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    world.cluster.allow("bob", "team/a");
    world.shared.users.set(OwnerLimits {
        tunnels: NonZeroU32::new(3),
        ..Limits::default().user_limits()
    });
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(tunnel(&world, "a.team:22", "alices").await);
    }
    let full = "HTTP/1.1 429 this user has reached the tunnel limit of 3, try again later\r\n";
    let (answer, _client) = world.ask(&request("a.team:22", "1.1", &bearer("alices"))).await;
    assert!(answer.starts_with(full), "{answer}");
    // Another user at the same address has as many.
    open.push(tunnel(&world, "a.team:22", "bobs").await);
    let served = timeout(DEADLINE, world.target.accept()).await.unwrap().unwrap();
    drop((open.remove(0), served));
    let freed = async {
        loop {
            let (answer, client) = world.ask(&request("a.team:22", "1.1", &bearer("alices"))).await;
            if answer == CONFIRMATION {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    drop(timeout(DEADLINE, freed).await.unwrap());
}

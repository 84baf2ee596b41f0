//! Peers that vanish: no FIN, no reset, no packet at all.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::spawn_blocking;

use super::lab;
use super::proxy::within;
use super::stage::Stage;
use crate::harness::wait_for_user_timeout;

/// TCP_USER_TIMEOUT and keepalive come to 120 s, and a keepalive probe is sent every 15. Without them it would be two
/// hours, or 15 minutes of retransmissions (tcp(7), tcp_keepalive_time and tcp_retries2).
const GIVEN_UP: Duration = Duration::from_secs(300);

fn idle_and_busy_tunnels_whose_peers_vanish_are_given_up() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let mut idle = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
        idle.echo().await.unwrap();
        let mut busy = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
        busy.flood().await;
        let started = Instant::now();
        // Every packet of clients and pods is lost from now on, without a FIN or a reset.
        let down = Command::new("ip").args(["link", "set", "pods", "down"]).status();
        assert!(down.unwrap().success());
        let is_given_up = |line: &Value| line["status"] == 200 && line["reason"] == "vanished";
        let given_up = || stage.proxy.access().into_iter().filter(is_given_up).count();
        for count in 1..=2 {
            let left = GIVEN_UP.saturating_sub(started.elapsed());
            within(left, &format!("{count} tunnels given up"), async || given_up() >= count).await;
            eprintln!("figure: {count} of 2 vanished after {:?}", started.elapsed());
        }
        assert_eq!(given_up(), 2, "{:#?}", stage.proxy.access());
        drop((idle, busy));
    });
}

/// An `ssh` that is stopped by Ctrl-Z reads nothing, and its kernel answers. With TCP_USER_TIMEOUT alone Linux gives it up, as it
/// does a connection of this test.
fn a_client_that_is_suspended_under_a_busy_channel_keeps_its_tunnel() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let mut suspended = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
        suspended.flood().await;
        spawn_blocking(wait_for_user_timeout).await.unwrap();
        let ends = stage.proxy.access();
        let is_failure = |line: &Value| line["reason"] == "vanished" || line["reason"] == "io";
        assert!(!ends.iter().any(is_failure), "{ends:#?}");
        assert!(suspended.rate(Duration::from_secs(1)).await > 0.0);
    });
}

tests_in! {
    slow: idle_and_busy_tunnels_whose_peers_vanish_are_given_up,
    a_client_that_is_suspended_under_a_busy_channel_keeps_its_tunnel
}

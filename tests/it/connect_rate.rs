//! Many connections in one moment: those within the limits get through, whatever else comes with them.

use std::net::Ipv4Addr;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::{Blackhole, Echo};
use crate::harness::{CONFIRMATION, allow, refused, request};
use switchboard::tunnel::outcome::RefusalReason;

/// A proxy before one target, with the default limits, and timeouts that a slow machine does not reach.
fn proxy(target: &Echo, limits: &str) -> Proxy {
    let list = allow(&[("devbox:22", target.address())]);
    let timeouts = "timeouts: {request_header: 1h, dial: 1h, connect: 1h, ssh_identification: 1h}\n";
    Proxy::start(&format!("{list}{timeouts}{limits}"))
}

/// The first bytes of each client's answer, once all of them are connected and have asked for a tunnel.
fn answers(mut clients: Vec<Peer>) -> Vec<String> {
    for client in &mut clients {
        // A connection that exceeds the rate may be closed by now.
        client.try_send(request("devbox:22")).ok();
    }
    let mut answers = Vec::new();
    let mut open = Vec::new();
    for mut client in clients {
        let answer = client.try_read_once().unwrap_or_default();
        answers.push(String::from_utf8(answer).unwrap());
        open.push(client);
    }
    answers
}

fn confirmed(answers: &[String]) -> usize {
    answers.iter().filter(|answer| *answer == CONFIRMATION).count()
}

#[test]
fn a_burst_within_the_connect_rate_gets_through_whole() {
    let target = Echo::listen();
    let proxy = proxy(&target, "");
    let clients = (0..200).map(|_| Peer::connect(proxy.public())).collect();
    let answers = answers(clients);
    assert_eq!(confirmed(&answers), 200);
}

#[test]
fn connections_over_the_rate_push_out_none_within_it() {
    let target = Echo::listen();
    let proxy = proxy(
        &target,
        // However long the connects take, no more than the burst is within the rate, or few more.
        "limits: {client: {connects_per_second: 1}}\n",
    );
    let clients = (0..1000).map(|_| Peer::connect(proxy.public())).collect();
    let answers = answers(clients);
    // The rate is judged in the order in which the connections are served, which is nearly that of their accepts.
    assert!(confirmed(&answers) >= 200, "{}", confirmed(&answers));
    let told = |answer: &&String| answer.starts_with("HTTP/1.1 429 ") || answer.is_empty() || *answer == CONFIRMATION;
    assert_eq!(answers.iter().filter(told).count(), 1000);
}

#[test]
fn a_thousand_clients_of_one_target_wait_for_its_dials_in_a_queue() {
    let target = Echo::listen();
    let proxy = proxy(&target, "");
    let address = |number: u32| Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + number + 1);
    let clients = (0..1000).map(|number| Peer::connect_from(address(number), proxy.public()));
    let answers = answers(clients.collect());
    assert_eq!(confirmed(&answers), 1000);
}

#[test]
fn the_queue_of_a_target_that_answers_nothing_is_bounded() {
    const QUEUE: usize = 1024;
    let hole = Blackhole::open();
    let list = allow(&[("hole:22", hole.address())]);
    let limits = "limits: {target: {max_dials: 2}, client: {connects_per_second: unlimited, max_tunnels: unlimited}}\n";
    let proxy = Proxy::start(&format!("{list}timeouts: {{dial: 1h, connect: 1h}}\n{limits}"));
    let _waiting: Vec<_> = (0..QUEUE + 2).map(|_| proxy.client(request("hole:22"))).collect();
    proxy.settles("connections_active", (QUEUE + 2) as f64);
    proxy.settles("connections_unfinished", 0.0);
    let busy = refused(RefusalReason::TargetBusy);
    assert_eq!(proxy.answer("hole:22"), busy);
    hole.expect_dials(2);
}

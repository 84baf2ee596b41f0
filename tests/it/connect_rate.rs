//! The connect rate of a client: a burst within it gets through whole, and connections over it get 429 and push out none.

use std::net::Ipv4Addr;
use std::time::Instant;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::{Echo, Target};
use crate::harness::{CONFIRMATION, allow, eventually, refused, request};
use switchboard::tunnel::outcome::RefusalReason;

/// Another client.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

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
fn a_client_above_its_connect_rate_gets_429_with_retry_after() {
    const BURST: u64 = 5;
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let limits = format!("limits: {{client: {{connects_per_second: 1, connects_burst: {BURST}}}}}\n");
    let proxy = Proxy::start(&format!("{list}{limits}"));
    let start = Instant::now();
    let mut passed = 0;
    for _ in 0..20 {
        let mut client = proxy.client(request("devbox:22"));
        let answer = client.read_once();
        if answer == CONFIRMATION.as_bytes() {
            passed += 1;
            target.accept();
        } else {
            let told = String::from_utf8([answer, client.rest()].concat()).unwrap();
            assert_eq!(told, refused(RefusalReason::ConnectRate));
        }
    }
    assert!(
        (BURST..=BURST + start.elapsed().as_secs() + 1).contains(&passed),
        "{passed}"
    );
    target.expect_no_connection();
    // One that closes and comes again does not start again, and another client is none the worse.
    let mut other = Peer::connect_from(ELSEWHERE, proxy.public());
    other.send(request("devbox:22"));
    other.expect(CONFIRMATION);
    let limits = "limits: {client: {connects_per_second: unlimited}}\n";
    proxy.reload(&format!("{list}{limits}"));
    eventually("the reload", || {
        (proxy.client(request("devbox:22")).read_once() == CONFIRMATION.as_bytes()).then_some(())
    });
    let open: Vec<_> = (0..50).map(|_| proxy.open("devbox:22")).collect();
    drop(open);
}

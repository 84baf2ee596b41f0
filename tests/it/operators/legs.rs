//! The two connections of a tunnel as the kernel sees them, in the API and in the access line.

use std::any::Any;

use serde_json::Value;
use switchboard::daemon::admin::api;

use super::{all, two_targets};
use crate::harness::authority::Authority;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Target;
use crate::harness::{allow, eventually};
use crate::http2::peer::Peer as Http2;
use crate::tls::client::{config, connect, open};

#[track_caller]
fn detail(server: &Server, id: &str) -> api::Detail {
    let answer = server.ask_admin("GET", &format!("/tunnels/{id}"));
    serde_json::from_str(&answer.body).unwrap()
}

#[test]
fn the_connections_of_a_tunnel_are_seen_while_it_is_open_and_noted_at_its_end() {
    let (one, other) = (Target::listen(), Target::listen());
    let mut server = two_targets(&one, &other, "");
    for is_reset in [false, true] {
        let (mut client, mut service) = server.tunnel("one:22", &one);
        client.send("there");
        service.expect("there");
        service.send("and back");
        client.expect("and back");
        let id = all(&server, 1)[0].tunnel_id.clone();
        let legs = detail(&server, &id).legs;
        assert_eq!(legs.unknown, "");
        for leg in [legs.client.unwrap(), legs.upstream.unwrap()] {
            assert!(leg.rtt_ms > 0.0 && leg.peer_window > 0, "{leg:?}");
            assert_eq!((leg.not_sent, leg.receive_queue), (0, 0), "{leg:?}");
        }
        if is_reset {
            client.reset();
        } else {
            service.finish();
            client.expect_end();
            client.finish();
        }
        let line: Value = serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap();
        for side in ["client", "upstream"] {
            let rtt = line[format!("{side}.rtt_ms")].as_f64().unwrap();
            // The clients are on this host; a retransmission is not expected, and possible.
            assert!(rtt > 0.0 && rtt < 10_000.0, "{line}");
            assert!(line[format!("{side}.retransmits")].is_u64(), "{line}");
        }
        drop(service);
        all(&server, 0);
    }
}

/// Without a look before, of a tunnel that has lived a second.
#[test]
fn an_orderly_end_leaves_the_round_trips_of_both_sides_in_the_log() {
    let (one, other) = (Target::listen(), Target::listen());
    let mut server = two_targets(&one, &other, "");
    for is_client_first in [true, false] {
        let (mut client, mut service) = server.tunnel("one:22", &one);
        client.send("there");
        service.expect("there");
        eventually("the tunnel is a second old", || {
            (all(&server, 1)[0].age_ms >= 1000).then_some(())
        });
        let (first, last) = if is_client_first {
            (&mut client, &mut service)
        } else {
            (&mut service, &mut client)
        };
        first.finish();
        last.expect_end();
        last.finish();
        first.expect_end();
        let line: Value = serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap();
        for field in ["client.rtt_ms", "upstream.rtt_ms"] {
            assert!(line[field].as_f64().unwrap() > 0.0, "{field}: {line}");
        }
    }
}

/// A receiver that does not read, and a limit, are told apart without a network between.
#[test]
fn a_client_that_does_not_read_and_a_limit_are_named_as_what_makes_a_tunnel_slow() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "limits: {tunnel: {burst: 16KiB}}\n");
    let (client, service) = server.tunnel("one:22", &one);
    let id = all(&server, 1)[0].tunnel_id.clone();
    let diagnosis = || -> api::Diagnosis {
        let answer = server.ask_admin("GET", &format!("/tunnels/{id}/diagnosis?over_ms=300"));
        serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
    };
    assert_eq!(diagnosis().verdict, api::Verdict::Nothing);
    let writer = std::thread::spawn(move || {
        let mut service = service;
        // It is ended before all of it is sent.
        service.try_send(vec![0; 64 << 20]).ok();
    });
    let is = |verdict| move |found: api::Diagnosis| (found.verdict == verdict).then_some(found);
    let found = eventually("the client does not read", || is(api::Verdict::Client)(diagnosis()));
    assert!(found.evidence[0].contains("does not read"), "{found:?}");
    let slow = server.tell_admin("PATCH", &format!("/tunnels/{id}"), r#"{"download": "100KiB/s"}"#);
    assert_eq!(slow.status, 200);
    let reader = std::thread::spawn(move || {
        let mut client = client;
        client.rest_before_reset();
    });
    let found = eventually("the limit is named", || is(api::Verdict::Limit)(diagnosis()));
    assert!(found.evidence[0].contains("for its limits"), "{found:?}");
    assert_eq!(server.ask_admin("DELETE", &format!("/tunnels/{id}")).status, 200);
    reader.join().unwrap();
    writer.join().unwrap();
}

/// A tunnel's diagnosis must not depend on how its client has connected.
#[test]
fn a_client_that_does_not_read_is_named_over_tls_and_http_2_too() {
    let (authority, one) = (Authority::new(), Target::listen());
    let issued = authority.server("server", &["localhost"]);
    let settings = format!(
        "listen: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{}]}}\n{}",
        issued.setting(),
        allow(&[("one:22", one.address())])
    );
    let server = Server::with(&Settings::new(&settings));
    let clients: [(&str, &str, Begin); 3] = [
        ("2", "", |server, _| Box::new(http_2(Http2::connect(server.public())))),
        ("2", "1.3", |server, authority| {
            Box::new(http_2(Http2::connect_over_tls(server.public(), &authority.ca())))
        }),
        ("1", "1.3", |server, authority| {
            let mut client = connect(server.public(), &config(authority, None), "localhost").unwrap();
            open(&mut client, "one:22");
            Box::new(client)
        }),
    ];
    for (http, tls, begin) in clients {
        let client = begin(&server, &authority);
        let mut service = one.accept();
        let id = all(&server, 1)[0].tunnel_id.clone();
        let seen = detail(&server, &id);
        assert_eq!((&*seen.tunnel.http_version, &*seen.tunnel.tls_version), (http, tls));
        assert_eq!(seen.legs.unknown, "", "{http} {tls}");
        assert!(
            seen.legs.client.is_some() && seen.legs.upstream.is_some(),
            "{http} {tls}"
        );
        let writer = std::thread::spawn(move || {
            // It is ended before all of it is sent.
            service.try_send(vec![0; 64 << 20]).ok();
        });
        eventually(&format!("HTTP/{http} {tls}: the client does not read"), || {
            let answer = server.ask_admin("GET", &format!("/tunnels/{id}/diagnosis?over_ms=300"));
            let found: api::Diagnosis = serde_json::from_str(&answer.body).unwrap();
            (found.verdict == api::Verdict::Client).then_some(())
        });
        assert_eq!(server.ask_admin("DELETE", &format!("/tunnels/{id}")).status, 200);
        writer.join().unwrap();
        drop(client);
        all(&server, 0);
    }
}

/// Opens a tunnel whose client does not read.
type Begin = fn(&Server, &Authority) -> Box<dyn Any>;

/// A client whose tunnel takes nothing.
fn http_2(mut peer: Http2) -> Http2 {
    peer.tell("mute 1");
    peer.open(1, "one:22");
    peer
}

//! TLS records that cannot be decrypted: the client gets its alert, and the end has a reason of its own.

use std::io::{Read, Write};
use std::net::Shutdown;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error, StreamOwned};

use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::{Blackhole, Target};
use crate::harness::{allow, request};

use super::client::{Client, config, connect, open};
use super::settings;

/// A record of application data that no key has made.
const BROKEN: [u8; 37] = {
    let mut record = [0x5a; 37];
    [record[0], record[1], record[2], record[3], record[4]] = [23, 3, 3, 0, 32];
    record
};

/// Sends a broken record, and reads the alert and the end behind it.
#[track_caller]
fn breaks(client: &mut Client) {
    client.sock.write_all(&BROKEN).unwrap();
    let alert = loop {
        match client.read(&mut [0; 1024]) {
            Ok(0) => panic!("an end without an alert"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let alert = alert.get_ref().and_then(|error| error.downcast_ref::<Error>());
    assert_eq!(alert, Some(&Error::AlertReceived(AlertDescription::BadRecordMac)));
    client.sock.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.sock.read(&mut [0; 64]).unwrap(), 0);
}

fn tls(authority: &Authority, ssh_only: bool) -> String {
    let server = authority.server("server", &[]);
    settings("optional", &[&server], "").replace("ssh_only: false", &format!("ssh_only: {ssh_only}"))
}

#[test]
fn a_broken_record_before_the_answer_is_a_refusal_of_its_own() {
    let (authority, blackhole) = (Authority::new(), Blackhole::open());
    let patient = "timeouts: {dial: 1h, connect: 1h}\n";
    let list = allow(&[("devbox:22", blackhole.address())]);
    let proxy = Proxy::start(&(tls(&authority, false) + &list + patient));
    for (number, head) in ["", "CONNECT dev", &request("devbox:22")].into_iter().enumerate() {
        let count = u8::try_from(number + 1).unwrap().into();
        let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
        proxy.settles(HANDSHAKES, count);
        client.write_all(head.as_bytes()).unwrap();
        client.flush().unwrap();
        if head.ends_with("\r\n\r\n") {
            blackhole.expect_dials(1);
        }
        breaks(&mut client);
        proxy.settles("connect_requests_total{code=\"499\",reason=\"tls_record\"}", count);
    }
    blackhole.expect_dials(0);
    proxy.settles("connections_active", 0.0);
}

#[test]
fn a_broken_record_ends_a_tunnel_with_an_alert_and_a_reset_of_the_target() {
    let (authority, target) = (Authority::new(), Target::listen());
    let list = allow(&[("devbox:22", target.address())]);
    // In the relay, and before the first line of SSH.
    for ssh_only in [false, true] {
        let proxy = Proxy::start(&(tls(&authority, ssh_only) + &list));
        let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
        open(&mut client, "devbox:22");
        let mut service = target.accept();
        if !ssh_only {
            client.write_all(b"whole").unwrap();
            service.expect("whole");
        }
        breaks(&mut client);
        service.expect_reset();
        proxy.settles("tunnels_closed_total{by=\"client\",reason=\"corrupted\"}", 1.0);
        proxy.settles("connections_active", 0.0);
    }
}

#[test]
fn a_broken_record_under_http_2_gets_its_alert_too() {
    let authority = Authority::new();
    let proxy = Proxy::start(&tls(&authority, false));
    for (number, begin) in [&b""[..], PREFACE].into_iter().enumerate() {
        let count = u8::try_from(number + 1).unwrap().into();
        let mut http2 = (*config(&authority, None)).clone();
        http2.alpn_protocols = vec![b"h2".to_vec()];
        let mut client = connect(proxy.public(), &http2.into(), "127.0.0.1").unwrap();
        proxy.settles(HANDSHAKES, count);
        client.write_all(begin).unwrap();
        client.flush().unwrap();
        breaks(&mut client);
        proxy.settles("connect_requests_total{code=\"499\",reason=\"tls_record\"}", count);
    }
    proxy.settles("connections_active", 0.0);
}

/// Encrypted as it should be, but of no content type (RFC 8446 section 5.4): rustls makes no alert of that.
#[test]
fn a_malformed_record_that_has_no_alert_gets_no_close_notify() {
    let (authority, target) = (Authority::new(), Target::listen());
    let proxy = Proxy::start(&(tls(&authority, false) + &allow(&[("devbox:22", target.address())])));
    let mut extractable = (*config(&authority, None)).clone();
    extractable.enable_secret_extraction = true;
    let mut client = connect(proxy.public(), &extractable.into(), "127.0.0.1").unwrap();
    open(&mut client, "devbox:22");
    let mut service = target.accept();
    let StreamOwned { conn, mut sock } = client;
    let (sequence, secrets) = conn.dangerous_extract_secrets().unwrap().tx;
    let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else {
        panic!("another cipher suite")
    };
    let mut nonce: [u8; 12] = iv.as_ref().try_into().unwrap();
    for (byte, other) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
        *byte ^= other;
    }
    let (mut record, header) = (vec![0; 3], [23, 3, 3, 0, 19]);
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap());
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, Aad::from(header), &mut record)
        .unwrap();
    sock.write_all(&[&header, &*record].concat()).unwrap();
    let mut end = Vec::new();
    sock.read_to_end(&mut end).unwrap();
    assert!(end.is_empty(), "a close_notify: {end:?}");
    service.expect_reset();
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"corrupted\"}", 1.0);
}

/// A client that gives up, as one does that finds a fault of its own.
#[test]
fn a_fatal_alert_of_the_client_is_its_reset() {
    let (authority, target) = (Authority::new(), Target::listen());
    let proxy = Proxy::start(&(tls(&authority, false) + &allow(&[("devbox:22", target.address())])));
    let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
    open(&mut client, "devbox:22");
    let mut service = target.accept();
    // A record reaches the client broken: rustls makes an alert of it.
    let mut from_elsewhere = &BROKEN[..];
    client.conn.read_tls(&mut from_elsewhere).unwrap();
    client.conn.process_new_packets().unwrap_err();
    client.conn.write_tls(&mut client.sock).unwrap();
    service.expect_reset();
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"reset\"}", 1.0);
    drop(Peer::of(client.sock));
}

/// Before its end a broken record would be one of the handshake.
const HANDSHAKES: &str = "tls_handshakes_total{resumed=\"false\",version=\"1.3\"}";
/// The client's preface and empty SETTINGS (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

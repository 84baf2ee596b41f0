//! Which certificate the proxy shows, which ones of clients it accepts, and how they change.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::harness::authority::{Authority, Issued, replace};
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;
use crate::harness::{allow, eventually};

use super::client::{answer, config, connect, open};
use super::{fails, settings};

#[test]
fn the_server_name_selects_the_certificate() {
    let authority = Authority::new();
    let first = authority.server("first", &["a.example.com"]);
    let second = authority.server("second", &["b.example.com", "*.apps.example.com"]);
    let proxy = Proxy::start(&settings("required", &[&first, &second], ""));
    for (name, expected) in [
        ("a.example.com", &first),
        ("b.example.com", &second),
        ("x.apps.example.com", &second),
        ("127.0.0.1", &first),
    ] {
        let client = connect(proxy.public(), &config(&authority, None), name).unwrap();
        assert_eq!(client.conn.peer_certificates().unwrap()[0], expected.load().0, "{name}");
    }
    // A client that does not trust it sends an alert.
    let stranger = Authority::new();
    connect(proxy.public(), &config(&stranger, None), "a.example.com").unwrap_err();
    fails(&proxy, "certificate_refused");
    let series = |issued: &Issued| {
        format!(
            "tls_certificate_expiry_timestamp_seconds{{certificate=\"{}\"}}",
            issued.cert.display()
        )
    };
    assert!(
        [first, second]
            .iter()
            .all(|issued| proxy.scrape().value(&series(issued)) > 1e9)
    );
}

#[test]
fn client_certificates_are_asked_for_checked_and_revoked() {
    let (authority, target) = (Authority::new(), Target::listen());
    let server = authority.server("server", &[]);
    let [good, revoked] = [("good", 5), ("revoked", 6)].map(|(name, serial)| authority.client(name, &[], serial));
    let stranger = Authority::new();
    let foreign = stranger.client("foreign", &[], 5);
    let expired = authority.expired_client("expired");
    let settings = |auth: &str| {
        let more = format!(
            ", client_auth: {auth}, client_ca: \"{}\", crl: \"{}\"",
            authority.ca().display(),
            authority.revoke(&[6]).display()
        );
        settings("required", &[&server], &more) + &allow(&[("devbox:22", target.address())])
    };
    for auth in ["optional", "required"] {
        let proxy = Proxy::start(&settings(auth));
        let tries = |shows: Option<&Issued>| {
            let mut client = connect(proxy.public(), &config(&authority, shows), "127.0.0.1").unwrap();
            answer(&mut client, "unknown:22")
        };
        assert!(tries(Some(&good)).starts_with("HTTP/1.1 403"));
        for (shows, cause) in [
            (&revoked, "client_certificate_revoked"),
            (&foreign, "client_certificate_invalid"),
            (&expired, "client_certificate_expired"),
        ] {
            let said = tries(Some(shows));
            assert!(!said.contains("HTTP"), "{said}");
            proxy.settles(&format!("tls_handshake_failures_total{{cause=\"{cause}\"}}"), 1.0);
        }
        let without = tries(None);
        assert_eq!(without.starts_with("HTTP/1.1 403"), auth == "optional", "{without}");
        // A connection that was answered is known not to have failed; the other one is counted after its alert was sent.
        let expected = f64::from(u8::from(auth == "required"));
        proxy.settles(
            "tls_handshake_failures_total{cause=\"client_certificate_missing\"}",
            expected,
        );
    }
    // No session with a certificate is resumed, so one that is revoked later does not get in by an earlier one.
    let proxy = Proxy::start(&settings("required"));
    let remembering = config(&authority, Some(&good));
    let come = || {
        answer(
            &mut connect(proxy.public(), &remembering, "127.0.0.1").unwrap(),
            "unknown:22",
        )
    };
    assert!(come().starts_with("HTTP/1.1 403"));
    assert!(come().starts_with("HTTP/1.1 403"));
    let handshakes = |resumed| format!("tls_handshakes_total{{resumed=\"{resumed}\",version=\"1.3\"}}");
    assert_eq!(proxy.scrape().value(&handshakes(false)), 2.0);
    assert_eq!(proxy.scrape().value(&handshakes(true)), 0.0);
    authority.revoke(&[5, 6]);
    eventually("the list is read", || (!come().contains("HTTP")).then_some(()));
}

#[test]
fn a_session_without_a_certificate_is_not_resumed_once_certificates_are_required() {
    let authority = Authority::new();
    let server = authority.server("server", &[]);
    let asked = |auth: &str| format!(", client_auth: {auth}, client_ca: \"{}\"", authority.ca().display());
    let settings = |more: &str| settings("required", &[&server], more);
    for before in ["", &asked("optional")] {
        let proxy = Proxy::start(&settings(before));
        let nameless = config(&authority, None);
        let come = || {
            let client = connect(proxy.public(), &nameless, "127.0.0.1");
            client.map_or_else(|_| String::new(), |mut client| answer(&mut client, "unknown:22"))
        };
        assert!(come().starts_with("HTTP/1.1 403"));
        proxy.reload(&settings(&asked("required")));
        eventually("all have to", || (!come().contains("HTTP")).then_some(()));
    }
}

#[test]
fn certificates_change_in_the_middle_of_handshakes_and_tunnels() {
    let (authority, target) = (Authority::new(), Target::listen());
    let all: Vec<_> = (0..6)
        .map(|number| authority.server(&format!("s{number}"), &[]))
        .collect();
    let mounted = authority.mount(&all[0]);
    let unpaced = "limits: {client: {connects_per_second: unlimited}}\n";
    let allowed = allow(&[("devbox:22", target.address())]);
    let proxy = Proxy::start(&(settings("required", &[&mounted], "") + unpaced + &allowed));
    let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
    open(&mut client, "devbox:22");
    let mut service = target.accept();
    let (over, address) = (Arc::new(AtomicBool::new(false)), proxy.public());
    let serves = |issued: &Issued| {
        let client = connect(address, &config(&authority, None), "127.0.0.1").unwrap();
        client.conn.peer_certificates().unwrap()[0] == issued.load().0
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            let (over, config) = (Arc::clone(&over), config(&authority, None));
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    connect(address, &config, "127.0.0.1").unwrap();
                }
            });
        }
        let change = || {
            for issued in &all[1..] {
                authority.swap(issued);
                eventually("the new certificate serves", || serves(issued).then_some(()));
            }
            // A key of another certificate: what was there serves on.
            authority.swap_files(&all[0].cert, &all[1].key);
            proxy.settles("tls_reload_failures_total", 1.0);
            assert!(serves(&all[5]));
            authority.swap(&all[0]);
            eventually("a good one serves again", || serves(&all[0]).then_some(()));
        };
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
        over.store(true, Ordering::Relaxed);
        changed.unwrap();
    });
    let page = proxy.scrape();
    assert_eq!(page.counted("tls_handshake_failures_total"), []);
    assert_eq!(page.value("tls_reload_failures_total"), 1.0);
    client.write_all(b"still here").unwrap();
    service.expect("still here");
}

#[test]
fn a_reload_brings_other_certificates() {
    let authority = Authority::new();
    let [old, new] = ["old", "new"].map(|name| authority.server(name, &[]));
    let quiet = ", client_auth: off";
    let proxy = Proxy::start(&settings("required", &[&old], quiet));
    proxy.reload(&settings("required", &[&new], quiet));
    let shown = || connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
    eventually("the new one", || {
        (shown().conn.peer_certificates().unwrap()[0] == new.load().0).then_some(())
    });
    // The tickets outlive the certificates.
    let remembering = config(&authority, None);
    let come = || {
        answer(
            &mut connect(proxy.public(), &remembering, "127.0.0.1").unwrap(),
            "unknown:22",
        )
    };
    come();
    proxy.reload(&settings("required", &[&old], quiet));
    eventually("the old one", || {
        (shown().conn.peer_certificates().unwrap()[0] == old.load().0).then_some(())
    });
    come();
    assert_eq!(
        proxy
            .scrape()
            .value("tls_handshakes_total{resumed=\"true\",version=\"1.3\"}"),
        1.0
    );
    replace(&old.cert, "nothing");
    proxy.settles("tls_reload_failures_total", 1.0);
    proxy.reload(&settings("required", &[&old], ""));
    proxy.settles("config_reload_failures_total", 1.0);
    shown();
}

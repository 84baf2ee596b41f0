//! Revocation lists: the one that counts, and one that is past its nextUpdate.

use crate::harness::authority::{Authority, Issued};
use crate::harness::eventually;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::proxy::Proxy;

use super::client::{answer, config, connect};
use super::{failures, settings};

/// The section `tls` with the authority's list as it is in its file.
fn with_list(authority: &Authority, server: &Issued, more: &str) -> String {
    let (ca, list) = (authority.ca(), authority.path("crl.pem"));
    let more = format!(
        ", client_auth: required, client_ca: \"{}\", crl: \"{}\"{more}",
        ca.display(),
        list.display()
    );
    settings("required", &[server], &more)
}

/// Returns the answer to a client that asks for an unknown name, such as a 403, or its error.
fn tries(proxy: &impl Ports, authority: &Authority, shows: &Issued) -> String {
    let client = connect(proxy.public(), &config(authority, Some(shows)), "127.0.0.1");
    client.map_or_else(
        |error| error.to_string(),
        |mut client| answer(&mut client, "unknown:22"),
    )
}

#[test]
fn a_reload_changes_what_becomes_of_an_expired_list() {
    let authority = Authority::new();
    let server = authority.server("server", &[]);
    let good = authority.client("good", &[], 5);
    authority.revoke_once(&[6]);
    let proxy = Proxy::start(&with_list(&authority, &server, ", crl_expired: accept"));
    assert!(tries(&proxy, &authority, &good).starts_with("HTTP/1.1 403"));
    proxy.reload(&with_list(&authority, &server, ""));
    eventually("refused", || {
        (!tries(&proxy, &authority, &good).contains("HTTP")).then_some(())
    });
}

#[test]
fn an_expired_list_is_told_by_check_and_by_serve_and_its_time_by_the_metrics() {
    let authority = Authority::new();
    let server = authority.server("server", &[]);
    let list = authority.revoke_once(&[]);
    let settings = Settings::new(&with_list(&authority, &server, ""));
    let told = format!("{}: line 1: the revocation list of ", list.display());
    let mut check = Process::spawn(switchboard(&["check", "--config", settings.path()]));
    let line = check.stderr.find(&told);
    assert!(
        line.contains("has expired: its nextUpdate was Jan  1 00:00:00 2021 +00:00"),
        "{line}"
    );
    assert_eq!(check.exit_status(), 0);
    let mut serve = Process::spawn(switchboard(&["serve", "--config", settings.path()]));
    let line = serve.stderr.find(&told);
    assert!(
        line.contains("WARN") && line.contains("client certificates of this authority are refused"),
        "{line}"
    );
    drop(serve);
    let mut process = Server::with(&settings);
    let issuer = format!("CN=the authority of {}", list.parent().unwrap().display());
    let series = |issuer: &str| format!("tls_crl_next_update_timestamp_seconds{{issuer=\"{issuer}\"}}");
    assert_eq!(process.scrape().value(&series(&issuer)), 1_609_459_200.0);
    authority.revoke(&[]);
    process.process.stderr.find("certificates loaded");
    assert_eq!(process.scrape().value(&series(&issuer)), 3_786_912_000.0);
}

/// Nothing is read again: the time alone passes. The client offers to resume its session, which is no way in either.
#[test]
fn a_list_expires_without_a_reload_for_resuming_clients_as_well() {
    let authority = Authority::new();
    let server = authority.server("server", &[]);
    let good = authority.client("good", &[], 5);
    authority.revoke_for(&[], 5);
    let settings = Settings::new(&with_list(&authority, &server, "").replace("poll: 20ms", "poll: 1s"));
    let mut process = Server::with(&settings);
    let remembering = config(&authority, Some(&good));
    let comes = || {
        let client = connect(process.public(), &remembering, "127.0.0.1");
        client.map_or_else(|_| String::new(), |mut client| answer(&mut client, "unknown:22"))
    };
    // On a slow machine the list has expired before the first one.
    comes();
    eventually("the list expires", || (!comes().contains("HTTP")).then_some(()));
    eventually("counted", || (failures(&process, "crl_expired") >= 1.0).then_some(()));
    process.process.stderr.find("has expired: its nextUpdate was");
}

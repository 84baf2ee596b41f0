//! What the front pages say is what there is: their tables against the enums, the metrics and the files.

use std::fs;

use switchboard::metrics::Metrics;
use switchboard::outcome::{Reason, Refusal};

const README: &str = include_str!("../README.md");

#[test]
fn every_refusal_has_a_row() {
    for refusal in [
        Refusal::NotAllowed,
        Refusal::MethodNotAllowed,
        Refusal::HeadTimeout,
        Refusal::HeadTooLarge,
        Refusal::TargetRefused,
        Refusal::TargetUnreachable,
        Refusal::DialTimeout,
        Refusal::NoEndpoint,
        Refusal::TargetFull,
        Refusal::TargetBusy,
        Refusal::ClientFull,
        Refusal::ConnectRate,
        Refusal::ProxyFull,
        Refusal::Crowded,
        Refusal::AllowlistUnknown,
        Refusal::UntrustedProxy,
        Refusal::BadProxyHeader,
        Refusal::Draining,
        Refusal::Exhausted,
        Refusal::Internal,
    ] {
        let row = format!("| {} | `{}` |", refusal.status(), refusal.phrase());
        assert!(README.contains(&row), "no row begins with: {row}");
    }
}

#[test]
fn every_way_a_tunnel_ends_is_named() {
    for reason in Reason::ALL {
        assert!(README.contains(&format!("`{}`", reason.label())), "{reason:?}");
    }
}

#[test]
fn every_metric_has_a_row_and_no_other() {
    let metrics = Metrics::new().unwrap();
    let target = metrics.target("namespace", "service");
    metrics.answered(None);
    metrics.watch_may_fail("kind");
    let page = metrics.encode().unwrap();
    drop(target);
    let mut there: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE switchboard_")?.split(' ').next())
        .collect();
    let mut told: Vec<_> = README
        .lines()
        .filter_map(|line| line.strip_prefix("| `switchboard_")?.split(['{', '`']).next())
        .collect();
    there.sort_unstable();
    told.sort_unstable();
    assert_eq!(there, told);
}

#[test]
fn every_file_of_tests_has_a_row() {
    let table = include_str!("README.md");
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            !name.ends_with(".rs") || table.contains(&format!("| `{name}` |")),
            "no row: {name}"
        );
    }
}

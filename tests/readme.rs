//! What the front page says is what the program does: its tables against the enums and metrics that they describe.

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

//! The tables of the documents against the program: refusals, reasons, metrics, limits and programs of tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use switchboard::anchor::metrics::Metrics as AnchorMetrics;
use switchboard::policy::access::Access;
use switchboard::proxy::config::Config;
use switchboard::proxy::metrics::Metrics;
use switchboard::tunnel::outcome::{CloseReason, RefusalReason};

const REFUSALS: &str = include_str!("../../docs/refusals.md");
const ACCESS_LOG: &str = include_str!("../../docs/access-log.md");
const TESTS: &str = include_str!("../README.md");
const MODULES: &str = include_str!("main.rs");
const METRICS: &str = include_str!("../../docs/metrics.md");

/// The table of answers has status and phrase, the table of connections without an answer reason and status.
#[test]
fn every_refusal_has_a_row_and_no_other_has_one() {
    let mut rows: Vec<_> = REFUSALS
        .lines()
        .filter(|line| line.starts_with("| 4") || line.starts_with("| 5") || line.starts_with("| `"))
        .collect();
    for refusal in RefusalReason::ALL {
        let (status, label) = (refusal.status(), refusal.label());
        let answered = if let RefusalReason::Malformed(_) = refusal {
            format!("| {status} | a sentence that names the fault")
        } else {
            format!("| {status} | `{}` |", refusal.phrase())
        };
        let unanswered = format!("| `{label}` | {status} |");
        let before = rows.len();
        rows.retain(|row| !row.starts_with(&answered) && !row.starts_with(&unanswered));
        assert_eq!(
            before - rows.len(),
            1,
            "rows that begin with {answered} or {unanswered}"
        );
    }
    assert!(rows.is_empty(), "rows of no refusal: {rows:#?}");
}

#[test]
fn every_way_a_tunnel_ends_is_named() {
    for reason in CloseReason::ALL {
        let row = format!("| `{}` |", reason.label());
        assert!(ACCESS_LOG.contains(&row), "no row begins with: {row}");
    }
}

#[test]
fn every_reason_of_a_refusal_is_named_beside_its_status() {
    for refusal in RefusalReason::ALL {
        let (start, label) = (format!("| {} |", refusal.status()), format!("`{}`", refusal.label()));
        let named = |line: &str| line.starts_with(&start) && line.contains(&label);
        assert!(ACCESS_LOG.lines().any(named), "{start} {label}");
    }
}

/// Those of the harness are no tests.
#[test]
fn every_module_of_tests_is_listed_by_subject() {
    let (_, list) = TESTS.split_once("| subject | modules of `it` |\n|---|---|\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let listed: BTreeSet<_> = list.split('`').skip(1).step_by(2).collect();
    let modules = MODULES
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    assert_eq!(listed, modules.filter(|name| *name != "harness").collect());
}

/// Metrics of the proxy about anchors that dial in.
const OF_PROXY: [&str; 2] = ["anchor_registrations_total", "anchor_streams"];

#[test]
fn every_metric_has_a_row_and_no_other() {
    let metrics = Metrics::new().unwrap();
    let target = metrics.targets.series("namespace", "service");
    metrics.answered(None);
    metrics.cluster.watch_errors.zero(["kind"]);
    Access::open(&metrics.access).count();
    metrics.cluster.endpoint_errors.zero(["reason"]);
    metrics.tls_timestamps(&[("tls.crt".to_owned(), 1)], &[("CN=authority".to_owned(), 1)]);
    let page = metrics.encode().unwrap();
    drop(target);
    let mut there: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE switchboard_")?.split(' ').next())
        .collect();
    let mut documented: Vec<_> = METRICS
        .lines()
        .filter_map(|line| line.strip_prefix("| `switchboard_")?.split(['{', '`']).next())
        .filter(|name| !name.starts_with("anchor_") || OF_PROXY.contains(name))
        .collect();
    there.sort_unstable();
    documented.sort_unstable();
    assert_eq!(there, documented);
}

#[test]
fn every_metric_of_the_anchor_has_a_row_and_no_other() {
    let metrics = AnchorMetrics::new().unwrap();
    metrics.sessions.set(["attached"], 1);
    metrics.session_ends.zero(["done"]);
    metrics.dial_in.dials.zero(["surplus"]);
    metrics.handshakes.zero(["plain"]);
    metrics.session_bytes().upload.inc_by(1);
    let page = metrics.encode().unwrap();
    let named = |line: &'static str, prefix| line.strip_prefix(prefix)?.split(['{', '`']).next();
    let of_proxy = OF_PROXY.map(|name| name.strip_prefix("anchor_").unwrap());
    let mut documented: Vec<_> = METRICS
        .lines()
        .filter_map(|line| named(line, "| `switchboard_anchor_"))
        .filter(|name| !of_proxy.contains(name))
        .collect();
    let mut there: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE switchboard_anchor_")?.split(' ').next())
        .collect();
    there.sort_unstable();
    documented.sort_unstable();
    assert_eq!(there, documented);
}

/// The rows of the table of limits in SECURITY.md: a setting and its default.
fn limits() -> Vec<(&'static str, &'static str)> {
    let rows = include_str!("../../SECURITY.md").lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split("` | `");
        let (setting, rest) = (cells.next()?, cells.next()?);
        Some((setting, rest.split('`').next()?))
    });
    rows.collect()
}

#[test]
fn every_limit_in_security_md_has_its_default() {
    let limits = limits();
    assert!(limits.len() > 10, "{limits:?}");
    for (setting, default) in &limits {
        let keys: Vec<_> = setting.split('.').collect();
        let text = |value: &str| {
            let open: String = keys.iter().map(|key| format!("{{{key}: ")).collect();
            format!("{open}{value}{}", "}".repeat(keys.len()))
        };
        assert_eq!(
            Config::parse(&text(default)),
            Ok(Config::default()),
            "{setting}: {default}"
        );
        // It is this setting that has it, and not one that anything would do for.
        let others = ["1", "false", "2s", "20s"].map(|other| Config::parse(&text(other)));
        assert!(
            others.into_iter().flatten().any(|config| config != Config::default()),
            "{setting}"
        );
    }
}

#[test]
fn every_cap_and_timeout_is_in_security_md() {
    let mut section = ["", ""];
    let mut seen = 0;
    for line in include_str!("../../config/switchboard.yaml").lines() {
        let key = line.trim_start();
        let Some((key, value)) = key.split_once(':').filter(|_| !key.starts_with(['#', '-'])) else {
            continue;
        };
        match line.len() - line.trim_start().len() {
            0 => section = [key, ""],
            2 if value.trim().is_empty() => section[1] = key,
            _ => {}
        }
        let path = [section[0], section[1], key].join(".").replace("..", ".");
        if path.starts_with("timeouts.") && value.len() > 1 || key.starts_with("max_") || key.starts_with("connects_") {
            seen += 1;
            let has_row = limits().iter().any(|(setting, _)| *setting == path);
            assert!(has_row, "{path} is not in SECURITY.md");
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn every_other_program_of_tests_has_a_row() {
    let table = include_str!("../README.md");
    for entry in fs::read_dir(format!("{}/tests", env!("CARGO_MANIFEST_DIR"))).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            !name.ends_with(".rs") || table.contains(&format!("| `{name}` |")),
            "{name}"
        );
    }
}

#[test]
fn every_link_between_documents_leads_to_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut documents: Vec<_> = [
        "",
        "docs",
        "docs/decisions",
        "deploy",
        "benches",
        "benches/compare",
        "tests",
    ]
    .iter()
    .flat_map(|folder| fs::read_dir(root.join(folder)).unwrap())
    .map(|entry| entry.unwrap().path())
    .collect();
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(documents.len() > 10, "{documents:?}");
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next())
        {
            let is_file = document.parent().unwrap().join(link).exists();
            assert!(link.starts_with("http") || is_file, "{}: {link}", document.display());
        }
    }
}

//! Holds `deploy/` to the sources: every metric that a dashboard, an alert or an autoscaler names is declared in
//! the `metrics.rs` of the proxy, and every reason that they select is one that can happen. And `.dockerignore` to what is built.

#![expect(clippy::unwrap_used, reason = "a test that cannot read the files has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The readers of metrics. `deploy/check` sees to it that the copies of them under `deploy/kustomize` are the same.
const READERS: [&str; 9] = [
    "deploy/helm/switchboard/files/dashboard.json",
    "deploy/helm/switchboard/files/rules.yaml",
    "deploy/helm/switchboard/templates/hpa.yaml",
    "deploy/kustomize/components/monitoring/dashboard.json",
    "deploy/kustomize/components/monitoring/prometheusrule.yaml",
    "deploy/kustomize/components/autoscaling/hpa.yaml",
    "deploy/checks/rules.test.yaml",
    "deploy/checks/recorded.yaml",
    "deploy/README.md",
];

/// The metrics of the prometheus crate's process collector.
const PROCESS: [&str; 7] = [
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_threads",
    "process_virtual_memory_bytes",
];

#[test]
fn every_metric_in_an_alert_is_declared() {
    let declared = Declared::read();
    for path in READERS {
        let names = metrics_in(&read(path));
        assert!(!names.is_empty(), "{path} reads no metric: is it still the right file?");
        for name in names {
            assert!(
                declared.has_series(&name),
                "{path} reads {name}, which no metrics.rs of the proxy declares"
            );
        }
    }
}

#[test]
fn every_reason_in_an_alert_exists() {
    let sources = [
        "src/tunnel/outcome.rs",
        "src/tunnel/outcome/refusal_reason.rs",
        "src/proxy/metrics.rs",
        "src/kubernetes/metrics.rs",
        "src/kubernetes/targets/controller.rs",
    ]
    .map(read)
    .concat();
    let mut seen = 0;
    for path in READERS {
        for reason in reasons_in(&read(path)) {
            seen += 1;
            assert!(
                sources.contains(&format!("\"{reason}\"")),
                "{path} selects reason {reason}, which no outcome has"
            );
        }
    }
    assert!(seen > 0, "no reason is selected anywhere");
}

/// `.cargo/config.toml` has to reach every build, that of the image too.
#[test]
fn no_program_measures_the_jitter_of_the_clock_at_its_start() {
    let built = env!("CARGO_BIN_EXE_switchboard");
    let found = Command::new("grep")
        .args(["--quiet", "--text", "jent_read_entropy", built])
        .status()
        .unwrap();
    assert_eq!(found.code(), Some(1), "{built} has it");
    assert!(read(".dockerignore").lines().any(|line| line == "!.cargo"));
    assert!(!read(".gitignore").contains(".cargo"));
}

#[test]
fn the_context_of_the_image_has_every_file_that_a_source_includes() {
    let ignore = read(".dockerignore");
    let context: Vec<_> = ignore.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut seen = 0;
    // Those of tests are not compiled into the image.
    for source in files_below("src").iter().filter(|source| !source.contains("tests")) {
        let text = read(source);
        let calls = ["include_str!(\"", "include_bytes!(\""];
        let calls = calls.iter().flat_map(|call| text.match_indices(call));
        for (_, rest) in calls.map(|(at, call)| text.split_at(at + call.len())) {
            let mut path = Path::new(source).parent().unwrap().to_owned();
            for part in rest.split('"').next().unwrap().split('/') {
                if part == ".." {
                    path.pop();
                } else {
                    path.push(part);
                }
            }
            seen += 1;
            assert!(
                context.iter().any(|kept| path.starts_with(kept)),
                "{source} includes {}, which .dockerignore leaves out",
                path.display()
            );
        }
    }
    assert!(seen > 0, "nothing is included: does the test still find it?");
}

/// Returns the files in a folder and those below it, relative to the project.
fn files_below(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
    let mut files = Vec::new();
    for entry in entries.map(Result::unwrap) {
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_below(&path));
        } else if path.ends_with(".rs") {
            files.push(path);
        }
    }
    files
}

/// The metrics that a source declares, as string literals of whole names.
struct Declared {
    plain: BTreeSet<String>,
    histograms: BTreeSet<String>,
}

impl Declared {
    fn read() -> Self {
        let mut all = Self::of(&read("src/proxy/metrics.rs"));
        // The last one has those of the process, which both programs have.
        for path in [
            "src/policy/access/metrics.rs",
            "src/kubernetes/metrics.rs",
            "src/tunnel/target_metrics.rs",
            "src/tunnel/exposition.rs",
        ] {
            let further = Self::of(&read(path));
            all.plain.extend(further.plain);
            all.histograms.extend(further.histograms);
        }
        all
    }

    fn of(source: &str) -> Self {
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let mut declared = Self {
            plain: BTreeSet::new(),
            histograms: BTreeSet::new(),
        };
        let mut before = String::new();
        for (index, part) in code.split('"').enumerate() {
            let is_literal = index % 2 == 1;
            if is_literal && part.starts_with("switchboard_") && part.chars().all(is_of_name) {
                let call = before.rsplit_once('(').map_or("", |(call, _)| call);
                if call.ends_with("histogram") {
                    declared.histograms.insert(part.to_owned());
                } else {
                    declared.plain.insert(part.to_owned());
                }
            }
            before.push_str(part);
        }
        if code.contains("ProcessCollector::for_self()") {
            declared.plain.extend(PROCESS.map(str::to_owned));
        }
        declared
    }

    fn has_series(&self, name: &str) -> bool {
        self.plain.contains(name)
            || ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .any(|base| self.histograms.contains(base))
    }
}

/// The words of a text that can only be metrics.
fn metrics_in(text: &str) -> BTreeSet<String> {
    text.split(|letter| !is_of_name(letter))
        .filter(|word| word.starts_with("switchboard_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

/// The values of all matchers `reason="…"` and `reason=~"…|…"`, in YAML or escaped in JSON.
fn reasons_in(text: &str) -> Vec<String> {
    let text = text.replace("\\\"", "\"");
    text.split("reason=")
        .skip(1)
        .filter_map(|rest| rest.trim_start_matches('~').strip_prefix('"')?.split('"').next())
        .flat_map(|values| values.split('|'))
        .map(str::to_owned)
        .collect()
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

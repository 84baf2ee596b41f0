//! Holds the sources to the layers: an import goes down or sideways, never up, and makes no circle.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot read the sources has failed"
)]

mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use self::sources::{Sources, root};

/// The folders of `src` from the bottom to the top, each with the file of its name; some are a file alone.
const LAYERS: [(&str, &[&str]); 6] = [
    (
        "values",
        &[
            "access_line",
            "api",
            "authority",
            "cold",
            "credential",
            "direction",
            "fnv",
            "json",
            "outcome",
            "secret",
            "text",
            "units",
            "user_name",
            "values",
        ],
    ),
    (
        "machinery",
        &[
            "drain",
            "exposition",
            "file",
            "keepalive",
            "limits",
            "net",
            "platform",
            "yaml",
        ],
    ),
    (
        "protocols",
        &[
            "end_notice",
            "http2",
            "relay",
            "resume",
            "ssh",
            "ssh_disconnect",
            "ticket",
            "tls",
            "tls_records",
            "x509",
        ],
    ),
    ("lookups", &["access", "allowlist", "connect", "metrics"]),
    ("tunnel", &["tunnel"]),
    (
        "programs",
        &[
            "anchor",
            "app",
            "cli",
            "client",
            "config",
            "daemon",
            "desk",
            "import",
            "kubernetes",
            "main",
            "operator",
        ],
    ),
];

/// The folders that may name a crate. Crates that are not listed are free to all.
const OWNERS: [(&str, &[&str]); 36] = [
    ("anyhow", &["cli"]),
    ("arc_swap", &["access", "allowlist"]),
    ("aws_lc_rs", &["access", "client", "desk", "resume", "ticket", "tls"]),
    ("axum", &["app", "daemon", "desk"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("futures_util", &["app", "connect", "tunnel"]),
    ("granit_parser", &["yaml"]),
    ("h2", &["client", "connect", "http2"]),
    ("http_body_util", &["access", "app", "client", "kubernetes", "operator"]),
    ("httparse", &["client", "connect"]),
    (
        "humantime",
        &[
            "access",
            "app",
            "cli",
            "desk",
            "kubernetes",
            "operator",
            "ticket",
            "values",
        ],
    ),
    (
        "hyper",
        &["access", "app", "client", "daemon", "desk", "kubernetes", "operator"],
    ),
    ("hyper_util", &["access", "client", "daemon", "desk", "operator"]),
    ("jiff", &["client"]),
    ("jsonwebtoken", &["access"]),
    ("k8s_openapi", &["kubernetes"]),
    ("kube", &["kubernetes"]),
    ("nix", &["daemon"]),
    ("prometheus", &["anchor", "exposition", "metrics"]),
    (
        "rustix",
        &[
            "daemon",
            "exposition",
            "kubernetes",
            "limits",
            "net",
            "platform",
            "relay",
        ],
    ),
    ("ratatui", &["operator"]),
    ("rcgen", &["client", "kubernetes"]),
    ("rustls", &["access", "client", "tls", "x509"]),
    ("rustls_native_certs", &["access", "client"]),
    (
        "serde_json",
        &[
            "access",
            "app",
            "client",
            "config",
            "daemon",
            "desk",
            "kubernetes",
            "operator",
            "ticket",
            "tunnel",
            "yaml",
        ],
    ),
    ("serde_saphyr", &["client"]),
    ("socket2", &["client", "keepalive", "net"]),
    ("strsim", &["yaml"]),
    ("toml", &["import"]),
    ("tokio_rustls", &["access", "client"]),
    ("tracing_appender", &["daemon"]),
    ("tracing_subscriber", &["daemon"]),
    ("x509_parser", &["kubernetes", "tls", "x509"]),
    (
        "zeroize",
        &["access", "client", "credential", "kubernetes", "secret", "ticket"],
    ),
];

/// What asks for a system, and is in one folder only of what every build has.
const SYSTEM: [&str; 6] = [
    "cfg(unix",
    "cfg(windows",
    "cfg(not(unix",
    "target_os",
    "std::os::",
    "signal::unix",
];

#[test]
fn every_folder_has_a_layer_and_imports_none_above_it() {
    let sources = Sources::read();
    let mut wrong = Vec::new();
    for source in &sources.0 {
        let Some(own) = layer(source.folder()) else {
            wrong.push(format!("{} belongs to no layer", source.path.display()));
            continue;
        };
        for import in source.imports(&sources) {
            if layer(&import[0]).is_none_or(|other| other > own) {
                wrong.push(format!("{} imports {}", source.path.display(), import.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_module_imports_nothing_that_one_of_its_builds_lacks() {
    let builds = Builds::read();
    for (module, build) in [
        ("client", 0),
        ("resume", 0),
        ("anchor", 1),
        ("relay", 1),
        ("kubernetes", 2),
        ("tunnel", 2),
    ] {
        assert_eq!(builds.first_with(&[module.into()]), build, "{module}");
    }
    let mut wrong = Vec::new();
    let sources = Sources::read();
    for source in &sources.0 {
        let own = builds.first_with(&source.module);
        let gates = ["cfg(feature", "cfg(not(feature"].map(|gate| source.code.matches(gate).count());
        // Those of cli.rs: a module, its program and its call.
        let allowed = if source.module == ["cli"] { [7, 3] } else { [0; 2] };
        if gates.iter().zip(allowed).any(|(&count, most)| count > most) {
            wrong.push(format!("{} is gated inside", source.path.display()));
        }
        let asks = SYSTEM.iter().find(|word| source.code.contains(**word));
        if let Some(word) = asks.filter(|_| own == 0 && source.folder() != "platform") {
            wrong.push(format!("{} says {word}: platform/ does", source.path.display()));
        }
        for import in source.imports(&sources) {
            // cli.rs calls every program, each behind its gate.
            let calls = source.module == ["cli"] && import[0] == "cli";
            if !calls && builds.first_with(&import) > own {
                wrong.push(format!("{} imports {}", source.path.display(), import.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let sources = Sources::read();
    let mut graph = BTreeMap::new();
    for source in &sources.0 {
        let files = source
            .imports(&sources)
            .into_iter()
            .filter_map(|path| sources.definition(&path));
        // A file may use what the files above it in its own folder define: they hold the folder's words.
        let others = files.filter(|file| !source.module.starts_with(&file.module));
        let others: BTreeSet<_> = others.map(|file| file.module.join("::")).collect();
        graph.insert(source.module.join("::"), others);
    }
    assert_no_circle(graph);
}

#[test]
fn folders_do_not_import_each_other_in_circles() {
    let sources = Sources::read();
    let mut graph: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for source in &sources.0 {
        let folders = source.imports(&sources).into_iter().map(|path| path[0].clone());
        let others = folders.filter(|folder| folder != source.folder());
        graph.entry(source.folder().to_owned()).or_default().extend(others);
    }
    assert_no_circle(graph);
}

#[test]
fn each_crate_is_named_by_its_owners_only() {
    let mut wrong = Vec::new();
    for source in &Sources::read().0 {
        for (name, owners) in OWNERS {
            if !owners.contains(&source.folder()) && names_crate(&source.code, name) {
                wrong.push(format!("{} names {name}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_file_says_what_it_does_first_and_stays_small() {
    let vague = ["mod", "util", "utils", "common", "helpers", "types", "manager"];
    for source in &Sources::read().0 {
        let path = source.path.display();
        let text = fs::read_to_string(&source.path).unwrap();
        assert!(text.starts_with("//! "), "{path} does not say what it does");
        let lines = text
            .lines()
            .take_while(|line| !line.starts_with("#[cfg(test)]"))
            .count();
        assert!(lines <= 400, "{path} has {lines} lines before its tests");
        let stem = source.path.file_stem().unwrap().to_str().unwrap();
        assert!(!vague.contains(&stem), "{path} has a name that says nothing");
    }
}

/// Takes away what imports nothing that is left. A circle, and what imports it, stays.
fn assert_no_circle(mut graph: BTreeMap<String, BTreeSet<String>>) {
    while let Some(free) = graph
        .iter()
        .find(|(_, imports)| imports.iter().all(|name| !graph.contains_key(name)))
    {
        let free = free.0.clone();
        graph.remove(&free);
    }
    // And what nothing in the circle imports, so that the rest is the circle alone.
    while let Some(unused) = graph
        .keys()
        .find(|name| !graph.values().any(|imports| imports.contains(*name)))
        .cloned()
    {
        graph.remove(&unused);
    }
    let circle: BTreeMap<_, Vec<_>> = graph
        .iter()
        .map(|(name, imports)| {
            (
                name,
                imports.iter().filter(|import| graph.contains_key(*import)).collect(),
            )
        })
        .collect();
    assert!(circle.is_empty(), "these import each other: {circle:#?}");
}

/// The features that add modules to a build, each with the modules of those before it.
const FEATURES: [&str; 2] = ["anchor", "server"];

/// The gates of the modules.
struct Builds {
    /// Those of `src/lib.rs`.
    library: BTreeMap<String, usize>,
    /// Those of `src/cli.rs`.
    programs: BTreeMap<String, usize>,
}

impl Builds {
    fn read() -> Self {
        let gates_of = |path: &str| gates(&fs::read_to_string(root().join(path)).unwrap());
        Self {
            library: gates_of("src/lib.rs"),
            programs: gates_of("src/cli.rs"),
        }
    }

    /// The smallest build that has the module of a path: 0 is every build, then those of [`FEATURES`].
    fn first_with(&self, path: &[String]) -> usize {
        let gate = match path {
            [folder, program, ..] if folder == "cli" => self.programs.get(program),
            [folder, ..] => self.library.get(folder),
            [] => None,
        };
        gate.copied().unwrap_or(0)
    }
}

/// The modules that a file declares behind one of [`FEATURES`].
fn gates(declaring: &str) -> BTreeMap<String, usize> {
    let lines: Vec<_> = declaring.lines().collect();
    let gated = lines.windows(2).filter_map(|pair| {
        let feature = pair[0].strip_prefix("#[cfg(feature = \"")?.strip_suffix("\")]")?;
        let name = pair[1].strip_suffix(';')?.split("mod ").nth(1)?;
        let build = FEATURES.iter().position(|known| *known == feature);
        Some((name.to_owned(), 1 + build.expect("a feature of this list")))
    });
    gated.collect()
}

fn layer(folder: &str) -> Option<usize> {
    LAYERS.iter().position(|(_, folders)| folders.contains(&folder))
}

fn names_crate(code: &str, name: &str) -> bool {
    code.match_indices(&format!("{name}::")).any(|(start, _)| {
        let before = code[..start].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || character == '_' || character == ':')
    })
}

//! Checks the structure of `src`: the thirteen parts and their imports, circles, features, crates, names, patterns, and the
//! map of ARCHITECTURE.md.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot read the sources has failed"
)]

mod renames;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use self::renames::renames;
use self::sources::{ModulePath, Source, Sources, root};

/// The parts of `src` from the bottom to the top, each with exactly the parts that it imports.
const PARTS: [(&str, &str); 13] = [
    ("base", ""),
    ("net", "base"),
    ("protocol", "base"),
    ("tunnel", "base net protocol"),
    ("uplink", "base net protocol"),
    ("policy", "base net protocol tunnel uplink"),
    ("daemon", "base net tunnel"),
    ("kubernetes", "base daemon policy protocol tunnel uplink"),
    ("client", "base protocol uplink"),
    ("anchor", "base daemon net protocol tunnel uplink"),
    ("operator", "base daemon kubernetes net policy tunnel"),
    ("proxy", "base daemon kubernetes net policy protocol tunnel"),
    (
        "cli",
        "anchor base client daemon kubernetes operator proxy tunnel uplink",
    ),
];

/// Groups whose members import nothing of each other.
const PROGRAMS: [&[&str]; 2] = [
    &["client", "anchor", "operator", "proxy"],
    &["operator::desk", "operator::import"],
];

/// Exceptions: the folders `x/` where `x.rs` and a child import each other. The list only shrinks.
const KNOTS: [&str; 0] = [];

/// The files that may gate modules.
const GATED: [&str; 6] = ["", "base", "net", "tunnel", "tunnel::ssh::jump", "cli"];

/// The features that add modules to a build, each with the modules of those before it.
const FEATURES: [&str; 3] = ["anchor", "server", "jump"];

/// The module with a twin for the builds without its feature, so that its users need no gates.
const TWIN: &str = "tunnel::ssh::jump::server";

/// The modules that may name a crate, with all below them. Crates that are not listed are free to all.
const OWNERS: [(&str, &[&str]); 39] = [
    ("anyhow", &["cli", "client", "uplink"]),
    ("arc_swap", &["policy"]),
    ("argon2", &["policy::access::files::passwords"]),
    (
        "aws_lc_rs",
        &[
            "client",
            "net::tls",
            "operator::desk",
            "policy::access",
            "protocol",
            "tunnel::ssh::jump",
            "uplink",
        ],
    ),
    ("axum", &["daemon::admin", "operator::desk", "proxy::admin"]),
    ("bcrypt", &["policy::access::files::passwords"]),
    (
        "clap",
        &[
            "anchor",
            "cli",
            "client",
            "daemon::admin::api",
            "daemon::logging",
            "kubernetes::proxy_pods",
            "operator::drain_request",
            "operator::import",
            "proxy::config",
        ],
    ),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    (
        "futures_util",
        &[
            "kubernetes::writes",
            "operator",
            "policy::access::decision",
            "policy::access::grants",
            "proxy",
            "tunnel::http2",
            "tunnel::ssh::jump",
        ],
    ),
    ("granit_parser", &["base::yaml"]),
    ("h2", &["proxy::http", "tunnel::http2"]),
    (
        "http_body_util",
        &["kubernetes::api", "net::exchange", "operator::replicas"],
    ),
    ("httparse", &["proxy::http", "uplink::dial"]),
    (
        "humantime",
        &[
            "base::values",
            "cli",
            "kubernetes",
            "operator",
            "policy::allowlist::workload",
            "protocol::ticket",
            "proxy::admin",
        ],
    ),
    (
        "hyper",
        &[
            "daemon::admin",
            "kubernetes",
            "net::exchange",
            "operator",
            "proxy::admin",
        ],
    ),
    (
        "hyper_util",
        &[
            "daemon::admin",
            "kubernetes::api",
            "net::exchange",
            "operator",
            "uplink",
        ],
    ),
    ("jiff", &["base::values", "client", "uplink::credentials"]),
    ("jsonwebtoken", &["policy::access::oidc"]),
    ("k8s_openapi", &["kubernetes"]),
    ("kube", &["kubernetes"]),
    ("nix", &["daemon"]),
    (
        "prometheus",
        &[
            "anchor::metrics",
            "kubernetes::metrics",
            "policy::access::metrics",
            "proxy::metrics",
            "tunnel::exposition",
            "tunnel::target_metrics",
        ],
    ),
    ("russh", &["tunnel::ssh::jump"]),
    (
        "rustix",
        &[
            "base::platform",
            "daemon",
            "kubernetes::files",
            "net",
            "operator::tables::columns",
            "tunnel",
        ],
    ),
    ("rustls", &["net", "policy::access::oidc::tests", "uplink"]),
    ("rustls_native_certs", &["uplink"]),
    (
        "serde_json",
        &[
            "anchor::record",
            "base::yaml",
            "client",
            "daemon",
            "kubernetes",
            "operator",
            "policy::access",
            "protocol::jwt",
            "protocol::ticket",
            "proxy",
            "uplink",
        ],
    ),
    ("serde_saphyr", &["uplink::credentials"]),
    ("socket2", &["net"]),
    ("strsim", &["base::yaml"]),
    ("tokio_rustls", &["policy::access::oidc::tests", "uplink"]),
    ("toml", &["operator::import"]),
    ("tower", &["kubernetes::api"]),
    ("tracing_appender", &["daemon::logging"]),
    ("tracing_subscriber", &["daemon::logging"]),
    ("tungstenite", &["protocol::websocket"]),
    ("x509_parser", &["net"]),
    (
        "zeroize",
        &[
            "base::secret",
            "kubernetes::users",
            "policy::access::credentials",
            "protocol::ticket",
            "tunnel::ssh::jump",
            "uplink::credentials",
            "uplink::dial",
        ],
    ),
];

/// The words that ask for a system. What every build has says them in `base::platform` only.
const SYSTEM: [&str; 6] = [
    "cfg(unix",
    "cfg(windows",
    "cfg(not(unix",
    "target_os",
    "std::os::",
    "signal::unix",
];

#[test]
fn the_tree_has_thirteen_parts_and_no_folder_more_than_thirteen_names() {
    let parts = PARTS.iter().map(|(part, _)| *part);
    let known: BTreeSet<_> = parts.chain(["lib", "main"]).map(str::to_owned).collect();
    assert_eq!(names_in(&root().join("src")), known, "the names in src/");
    for module in Sources::read().folders().keys().filter(|module| !module.is_empty()) {
        let folder = root().join("src").join(module.iter().collect::<PathBuf>());
        let names = names_in(&folder);
        assert!(names.len() <= 13, "{} has {}: {names:?}", folder.display(), names.len());
    }
}

#[test]
fn each_part_imports_exactly_the_parts_of_its_line() {
    let sources = Sources::read();
    let mut arrows: BTreeMap<&str, BTreeMap<&str, &Path>> = BTreeMap::new();
    for source in sources.iter() {
        let arrows = arrows.entry(source.part()).or_default();
        for file in sources.needs(source) {
            if file[0] != source.part() {
                arrows.entry(&file[0]).or_insert(&source.path);
            }
        }
    }
    let mut below = BTreeSet::new();
    for (part, imports) in PARTS {
        let known: BTreeSet<_> = imports.split_whitespace().collect();
        assert!(known.is_subset(&below), "{part} imports a part that is not below it");
        below.insert(part);
        let arrows = arrows.remove(part).unwrap_or_default();
        for (import, path) in &arrows {
            assert!(known.contains(import), "{part} imports {import}: {}", path.display());
        }
        for import in known {
            assert!(arrows.contains_key(import), "{part} imports {import} no more");
        }
    }
}

#[test]
fn programs_import_nothing_of_each_other() {
    let sources = Sources::read();
    let program = |module: &[String], programs: &[&'static str]| {
        let name = module.join("::");
        programs.iter().copied().find(|program| is_within(&name, program))
    };
    for programs in PROGRAMS {
        for source in sources.iter() {
            let Some(own) = program(&source.module, programs) else {
                continue;
            };
            let others = sources
                .needs(source)
                .into_iter()
                .filter_map(|file| program(file, programs));
            for other in others {
                assert_eq!(own, other, "{}", source.path.display());
            }
        }
    }
}

#[test]
fn children_do_not_import_each_other_in_circles() {
    let sources = Sources::read();
    let needs: BTreeMap<_, _> = sources.iter().map(|file| (&file.module, sources.needs(file))).collect();
    for (folder, children) in sources.folders() {
        let mut graph: BTreeMap<_, BTreeSet<_>> = children.into_iter().map(|child| (child, BTreeSet::new())).collect();
        for (module, needed) in &needs {
            let Some(own) = child_on_the_way(&folder, module) else {
                continue;
            };
            let others = needed.iter().filter_map(|other| child_on_the_way(&folder, other));
            let others = others.filter(|other| *other != own).cloned();
            graph.entry(own.clone()).or_default().extend(others);
        }
        assert_no_circle(&folder.join("::"), graph);
    }
}

#[test]
fn an_own_file_and_a_child_do_not_import_each_other() {
    let sources = Sources::read();
    let needs: BTreeMap<_, _> = sources.iter().map(|file| (&file.module, sources.needs(file))).collect();
    let mut knots: BTreeMap<String, BTreeSet<&String>> = BTreeMap::new();
    for (own, needed) in &needs {
        let children: BTreeSet<_> = needed.iter().filter_map(|file| child_on_the_way(own, file)).collect();
        for (module, needed) in &needs {
            let child = child_on_the_way(own, module).filter(|child| children.contains(child));
            if let Some(child) = child.filter(|_| needed.contains(*own)) {
                knots.entry(own.join("::")).or_default().insert(child);
            }
        }
    }
    for knot in KNOTS {
        assert!(knots.remove(knot).is_some(), "{knot} is no exception any more");
    }
    assert!(knots.is_empty(), "these import what imports them: {knots:#?}");
}

#[test]
fn a_module_imports_nothing_that_one_of_its_builds_lacks() {
    let builds = Builds::read();
    for (module, build) in [
        ("client", 0),
        ("protocol::resume", 0),
        ("base::boxed", 1),
        ("anchor", 1),
        ("tunnel::relay", 1),
        ("tunnel::target_metrics", 2),
        ("kubernetes", 2),
        ("cli::server::serve", 2),
    ] {
        let path: Vec<_> = module.split("::").map(str::to_owned).collect();
        assert_eq!(builds.first_with(&path), build, "{module}");
    }
    let mut wrong = Vec::new();
    let sources = Sources::read();
    for source in sources.iter() {
        let (own, path) = (builds.first_with(&source.module), source.path.display());
        let asks = SYSTEM.iter().find(|word| source.code.contains(**word));
        if let Some(word) = asks.filter(|_| own == 0 && !is_within(&source.name(), "base::platform")) {
            wrong.push(format!("{path} says {word}: base/platform/ does"));
        }
        for import in sources.imports(source) {
            // cli.rs calls every program, each behind its gate.
            let calls = source.module == ["cli"] && import[0] == "cli";
            if !calls && builds.first_with(&import) > own {
                wrong.push(format!("{path} imports {}", import.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn gates_stand_before_modules_in_six_files() {
    for source in Sources::read().iter() {
        let (name, path) = (source.name(), source.path.display());
        let count = ["cfg(feature", "cfg(not(feature"].map(|gate| source.code.matches(gate).count());
        let allowed = match &*name {
            // A module, its program and its call.
            "cli" => [7, 3],
            // A twin.
            "tunnel::ssh::jump" => [1, 1],
            name if GATED.contains(&name) => [gates(&fs::read_to_string(&source.path).unwrap()).len(), 0],
            _ => [0; 2],
        };
        let fits = count.iter().zip(allowed).all(|(&count, most)| count <= most);
        assert!(fits, "{path} is gated inside");
    }
}

#[test]
fn each_crate_is_named_by_its_owners_only() {
    let mut wrong = Vec::new();
    for source in Sources::read().iter() {
        for (name, owners) in OWNERS {
            let is_owner = owners.iter().any(|owner| is_within(&source.name(), owner));
            if !is_owner && names_crate(&source.code, name) {
                wrong.push(format!("{} names {name}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_file_says_what_it_does_first() {
    let vague = ["mod", "util", "utils", "common", "helpers", "types", "manager"];
    for source in Sources::read().iter() {
        let path = source.path.display();
        assert!(!first_line(source).is_empty(), "{path} does not say what it does");
        let stem = source.path.file_stem().unwrap().to_str().unwrap();
        assert!(!vague.contains(&stem), "{path} has a name that says nothing");
    }
}

#[test]
fn patterns_bind_fields_by_their_own_words() {
    let mut found = Vec::new();
    for source in Sources::read().iter() {
        let of_file = renames(&source.code).into_iter();
        found.extend(of_file.map(|renamed| format!("{}: {renamed}", source.path.display())));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_map_in_the_documents_is_the_tree() {
    let sources = Sources::read();
    let mut map = "| part | what it is | in it | imports |\n|---|---|---|---|\n".to_owned();
    for (part, imports) in PARTS {
        let own = sources.iter().find(|source| source.module == [part]).unwrap();
        let folder = root().join("src").join(part);
        let names = names_in(&folder).into_iter().map(|name| {
            let slash = if folder.join(&name).is_dir() { "/" } else { "" };
            format!("`{name}{slash}`")
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let imports = imports.replace(' ', ", ");
        writeln!(map, "| `{part}/` | {} | {names} | {imports} |", first_line(own)).unwrap();
    }
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(
        page.contains(&map),
        "ARCHITECTURE.md has another map than this:\n\n{map}"
    );
}

/// The names of a folder's files and folders, but for those of tests. A file and the folder of its name are one.
fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.map(|name| name.to_str().unwrap().trim_end_matches(".rs").to_owned());
    names
        .filter(|name| !["tests", "test_support"].contains(&&**name))
        .collect()
}

/// The first line of a file, without the marks of a comment.
fn first_line(source: &Source) -> String {
    let text = fs::read_to_string(&source.path).unwrap();
    let line = text.lines().next().and_then(|line| line.strip_prefix("//! "));
    line.unwrap_or_default().to_owned()
}

/// The child of a folder by which a path leads; `None` if it does not lead below the folder.
fn child_on_the_way<'a>(folder: &[String], path: &'a ModulePath) -> Option<&'a String> {
    path.starts_with(folder).then(|| path.get(folder.len())).flatten()
}

fn is_within(module: &str, parent: &str) -> bool {
    let rest = module.strip_prefix(parent);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Takes away what imports nothing that is left. A circle, and what imports it, stays.
fn assert_no_circle(place: &str, mut graph: BTreeMap<String, BTreeSet<String>>) {
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
    assert!(circle.is_empty(), "in {place}/ these import each other: {circle:#?}");
}

/// The gates of the modules.
struct Builds(BTreeMap<ModulePath, usize>);

impl Builds {
    fn read() -> Self {
        let mut all = BTreeMap::new();
        for file in GATED {
            let name = if file.is_empty() { "lib" } else { file };
            let path = format!("src/{}.rs", name.replace("::", "/"));
            let text = fs::read_to_string(root().join(path)).unwrap();
            let own: ModulePath = file.split_terminator("::").map(str::to_owned).collect();
            all.extend(
                gates(&text)
                    .into_iter()
                    .map(|(name, build)| ([&own[..], &[name]].concat(), build))
                    .filter(|(module, _)| module.join("::") != TWIN),
            );
        }
        Self(all)
    }

    /// The smallest build that has the module of a path: 0 is every build, then those of [`FEATURES`].
    fn first_with(&self, path: &[String]) -> usize {
        let gates = (1..=path.len()).filter_map(|length| self.0.get(&path[..length]));
        gates.copied().max().unwrap_or(0)
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

fn names_crate(code: &str, name: &str) -> bool {
    code.match_indices(&format!("{name}::")).any(|(start, _)| {
        let before = code[..start].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || character == '_' || character == ':')
    })
}

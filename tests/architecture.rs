//! Reads the sources and holds them to the layers: an import goes down or sideways, never up, and makes no cycle.

#![expect(clippy::unwrap_used, reason = "a test that cannot read the sources has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top. A module is a file of `src`, with all that is in the folder of its name.
const LAYERS: [(&str, &[&str]); 6] = [
    ("words", &["authority", "cold", "direction", "fnv", "outcome", "text"]),
    ("machinery", &["drain", "limits", "net"]),
    ("protocols", &["relay", "ssh", "tls"]),
    ("questions", &["allowlist", "connect", "metrics"]),
    ("tunnel", &["tunnel"]),
    ("programs", &["app", "client", "config", "kubernetes", "main"]),
];

/// Which modules may name a crate. Crates that are not listed are free to all.
const OWNERS: [(&str, &[&str]); 23] = [
    ("anyhow", &["main"]),
    ("arc_swap", &["allowlist"]),
    ("clap", &["main"]),
    ("futures_util", &["connect"]),
    ("granit_parser", &["config"]),
    ("h2", &["client", "connect"]),
    ("http_body_util", &["app", "kubernetes"]),
    ("httparse", &["client", "connect"]),
    ("humantime", &["config", "kubernetes", "main"]),
    ("hyper", &["app", "kubernetes"]),
    ("hyper_util", &["app"]),
    ("k8s_openapi", &["kubernetes"]),
    ("kube", &["kubernetes"]),
    ("prometheus", &["metrics"]),
    ("rustix", &["client", "kubernetes", "limits", "net", "relay"]),
    ("rustls", &["client", "tls"]),
    ("rustls_native_certs", &["client"]),
    ("serde_json", &["app", "kubernetes"]),
    ("socket2", &["client", "net"]),
    ("tokio_rustls", &["client"]),
    ("tracing_appender", &["app"]),
    ("tracing_subscriber", &["app"]),
    ("x509_parser", &["tls"]),
];

/// A source file: its module, and its code without tests, comments and strings.
struct Source {
    path: PathBuf,
    module: String,
    code: String,
}

#[test]
fn every_module_has_a_layer_and_imports_none_above_it() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(own) = layer(&source.module) else {
            wrong.push(format!("{} belongs to no layer", source.path.display()));
            continue;
        };
        for import in imports(&source.code) {
            if layer(&import).is_none_or(|other| other > own) {
                wrong.push(format!("{} imports {import}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn modules_do_not_import_each_other_in_circles() {
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources() {
        let imports = imports(&source.code)
            .into_iter()
            .filter(|import| *import != source.module);
        graph.entry(source.module.clone()).or_default().extend(imports);
    }
    assert!(graph.len() > 10, "the sources were not found");
    // Whoever imports nothing that is left is taken away, until nobody is left or everybody is in a circle.
    while let Some(free) = graph
        .iter()
        .find(|(_, imports)| imports.iter().all(|name| !graph.contains_key(name)))
    {
        let free = free.0.clone();
        graph.remove(&free);
    }
    assert!(graph.is_empty(), "in or above a circle: {graph:#?}");
}

#[test]
fn each_crate_is_named_by_its_owners_only() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (name, owners) in OWNERS {
            if !owners.contains(&source.module.as_str()) && names_crate(&source.code, name) {
                wrong.push(format!("{} names {name}", source.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn there_is_no_unsafe_and_nothing_relaxes_the_lints() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("unsafe_code = \"forbid\""));
    for source in sources() {
        for word in ["unsafe", "allow"] {
            let found = match word {
                "allow" => source.code.contains("#[allow(") || source.code.contains("#![allow("),
                _ => words(&source.code).any(|found| found == word),
            };
            assert!(!found, "{}: {word}", source.path.display());
        }
    }
}

#[test]
fn a_file_says_what_it_does_first_and_stays_small() {
    let vague = ["mod", "util", "utils", "common", "helpers", "types", "manager"];
    for source in sources() {
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

#[test]
fn the_reading_of_sources_sees_what_it_should() {
    let code = strip("use crate::{a::B, c};\nfn f() { crate::d::g() } // crate::e\nlet s = \"crate::f\";\n");
    assert_eq!(imports(&code).into_iter().collect::<Vec<_>>(), ["a", "c", "d"]);
    let nested = strip("use crate::{\n    a::{B, C},\n    d,\n};\n");
    assert_eq!(imports(&nested).into_iter().collect::<Vec<_>>(), ["a", "d"]);
    assert!(names_crate("use hyper::body::Bytes;", "hyper"));
    assert!(!names_crate("use hyper_util::rt::TokioIo;", "hyper"));
    assert!(!names_crate("crate::hyper::x", "hyper"));
    assert_eq!(strip("a '\"' b \"x\" c"), "a '' b \"\" c");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|(_, modules)| modules.contains(&module))
}

/// All but the files that are tests as a whole.
fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
                let inside = path.strip_prefix(root().join("src")).unwrap();
                let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
                let module = first.trim_end_matches(".rs").to_owned();
                if module != "lib" {
                    let text = fs::read_to_string(&path).unwrap();
                    found.push(Source {
                        path,
                        module,
                        code: strip(&text),
                    });
                }
            }
        }
    }
    found
}

/// The code up to its tests, without comments and with empty strings.
fn strip(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut stripped = String::new();
    for line in code.lines() {
        let mut characters = line.chars().peekable();
        let mut in_string = false;
        while let Some(character) = characters.next() {
            match character {
                '\\' if in_string => _ = characters.next(),
                '"' => {
                    in_string = !in_string;
                    stripped.push('"');
                }
                _ if in_string => {}
                '\'' if characters.peek() == Some(&'"') => {
                    characters.next();
                    stripped.push('\'');
                }
                '/' if characters.peek() == Some(&'/') => break,
                _ => stripped.push(character),
            }
        }
        stripped.push('\n');
    }
    stripped.truncate(stripped.trim_end().len());
    stripped
}

/// The modules of this crate that the code names, by `crate::` or, in `main`, by the crate's name.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for root in ["crate::", "switchboard::"] {
        for (start, _) in code.match_indices(root) {
            let rest = &code[start + root.len()..];
            match rest.strip_prefix('{') {
                Some(group) => found.extend(first_names_of_group(group)),
                None => found.extend(words(rest).next().map(str::to_owned)),
            }
        }
    }
    found
}

fn first_names_of_group(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut depth, mut at_start) = (0, true);
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_start = true,
            _ if character.is_whitespace() => {}
            _ if at_start && depth == 0 => {
                names.extend(words(&group[index..]).next().map(str::to_owned));
                at_start = false;
            }
            _ => {}
        }
    }
    names
}

fn names_crate(code: &str, name: &str) -> bool {
    code.match_indices(&format!("{name}::")).any(|(start, _)| {
        let before = code[..start].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || character == '_' || character == ':')
    })
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|character: char| !character.is_alphanumeric() && character != '_')
        .filter(|word| !word.is_empty())
}

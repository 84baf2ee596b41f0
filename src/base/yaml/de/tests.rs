//! Every fault of a file at once, each with its place; and the schema of the same types.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::base::units::Rate;
use crate::base::yaml::schema::schema;
use crate::base::yaml::{forms, tree};

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    limits: Limits,
    mode: Mode,
    #[serde(deserialize_with = "forms::items")]
    r#static: Vec<Target>,
    strict: Option<bool>,
    listen: Option<Listen>,
    ca: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    download: Rate,
    #[serde(deserialize_with = "forms::one::<forms::Cap, _>")]
    tunnels: Option<NonZeroU32>,
    #[serde(deserialize_with = "forms::one::<forms::BriefTimeout, _>")]
    head: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            download: Rate::UNLIMITED,
            tunnels: None,
            head: Duration::from_secs(5),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Open,
    Report,
    Enforce,
}

forms::forms! {
    Address: SocketAddr = |text: &str| text.parse::<SocketAddr>().map_err(|_| "expected IP:port"), forms::ADDRESS,
        at least one: "at least one address is needed";
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename = "name, addresses", deny_unknown_fields)]
struct Target {
    name: Box<str>,
    #[serde(deserialize_with = "forms::list::<Address, _, _>")]
    addresses: Vec<SocketAddr>,
    #[serde(default)]
    mode: Mode,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename = "any of")]
enum Listen {
    #[serde(rename = "a single value", deserialize_with = "forms::one::<Address, _>")]
    One(SocketAddr),
    #[serde(rename = "a map")]
    Target(Target),
}

fn read_text(text: &str) -> Result<File, String> {
    let diagnostics = Diagnostics::default();
    let mut root = tree::read(text, &diagnostics).unwrap();
    let file = read(&mut root, &diagnostics);
    let finished = diagnostics.finish(None, file);
    finished.map(|(file, _)| file).map_err(|report| report.to_string())
}

#[test]
fn a_file_is_read_into_its_type() {
    let file = read_text(
        "limits: {download: 50MiB/s, tunnels: unlimited, head: ~}\nmode: enforce\nstrict: true\nca: /a\nlisten: 1.1.1.1:1\n\
         static:\n  - {name: a, addresses: [1.1.1.1:1], mode: report}\n",
    );
    let address: SocketAddr = "1.1.1.1:1".parse().unwrap();
    let target = Target {
        name: "a".into(),
        addresses: vec![address],
        mode: Mode::Report,
    };
    let expected = File {
        limits: Limits {
            download: Rate::per_second(50 << 20).unwrap(),
            ..Limits::default()
        },
        mode: Mode::Enforce,
        r#static: vec![target],
        strict: Some(true),
        listen: Some(Listen::One(address)),
        ca: Some("/a".into()),
    };
    assert_eq!(file, Ok(expected));
    assert_eq!(read_text("{}"), Ok(File::default()));
    let of_a_map = read_text("listen: {name: a, addresses: [1.1.1.1:1]}").unwrap();
    assert!(matches!(of_a_map.listen, Some(Listen::Target(_))));
}

#[test]
fn every_fault_is_reported_once_with_its_place_and_a_suggestion() {
    let text = "limits:\n  download: 10mbps\n  tunels: 1\n  tunnels: \"10\"\n  head: 0s\n  head: 1s\n  head: 1s\nmode: Enforce\n\
                strict: yes\nlisten: [1]\nca: {}\nstatic:\n  - {name: a}\n  - {addresses: [1, 1.1.1.1:1, 2], mode: on, mode: open}\n  \
                - b\n  - {name: '', addresses: []}\n  - {name: ~, addresses: 1.1.1.1:1}\n  - {}\n";
    assert_eq!(
        read_text(text).unwrap_err().lines().collect::<Vec<_>>(),
        [
            "2:13: error: limits.download: expected `unlimited` or a number with a unit such as `50MiB/s` or `80Mbit/s` \
             (found `10mbps`); did you mean `10Mbit/s` or `10MB/s`?",
            "3:3: error: limits.tunels: unknown key; did you mean `tunnels`? Known here: download, tunnels, head",
            "4:12: error: limits.tunnels: expected a number without quotes (found the text \"10\")",
            "5:9: error: limits.head: must be more than 0s (found `0s`)",
            "6:3: error: limits.head: duplicate key; it is on line 5 too",
            "7:3: error: limits.head: duplicate key; it is on line 5 too",
            "8:7: error: mode: expected `open`, `report` or `enforce` (found `Enforce`); did you mean `enforce`?",
            "9:9: error: strict: expected `true` or `false` (found `yes`); did you mean `true`?",
            "10:1: error: listen: expected a single value or a map (found a list)",
            "11:1: error: ca: expected a single value (found a map)",
            "13:5: error: static[0]: `addresses` is missing",
            "14:5: error: static[1]: `name` is missing",
            "14:18: error: static[1].addresses[0]: expected IP:port (found `1`)",
            "14:32: error: static[1].addresses[2]: expected IP:port (found `2`)",
            "14:42: error: static[1].mode: expected `open`, `report` or `enforce` (found `on`)",
            "14:46: error: static[1].mode: duplicate key; it is on line 14 too",
            "15:5: error: static[2]: expected a map (found a single value)",
            "16:12: error: static[3].name: expected a text (found ``)",
            "16:16: error: static[3].addresses: at least one address is needed",
            "17:5: error: static[4]: `name` is missing",
            "17:26: error: static[4].addresses: expected a list (found a single value)",
            "18:5: error: static[5]: `name` is missing",
            "18:5: error: static[5]: `addresses` is missing",
        ]
    );
    assert_eq!(
        read_text("- a").unwrap_err(),
        "1:1: error: expected a map (found a list)"
    );
}

/// As the name of its struct says nothing, serde itself tells of the first.
#[test]
fn a_missing_key_is_a_fault_even_where_the_struct_does_not_name_it() {
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct All {
        pair: Option<Pair>,
    }
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "the fault is what is looked at")]
    struct Pair {
        a: bool,
        b: bool,
    }
    let diagnostics = Diagnostics::default();
    let mut root = tree::read("pair: {b: 1}", &diagnostics).unwrap();
    assert!(read::<All>(&mut root, &diagnostics).pair.is_none());
    assert_eq!(
        diagnostics.finish(None, ()).unwrap_err().to_string(),
        "1:1: error: pair: `a` is missing\n1:11: error: pair.b: expected `true` or `false` (found `1`)"
    );
}

/// A pass over the largest file takes milliseconds, and there are as many as an item has faults.
#[test]
fn a_file_of_a_mebibyte_with_many_faults_is_read() {
    let mut text = String::from("static:\n");
    for number in 0..20_000 {
        let fault = if number % 10 == 0 { ", mod: x" } else { "" };
        text += &format!("- {{name: n{number}, addresses: [10.0.0.1:22]{fault}}}\n");
    }
    let diagnostics = Diagnostics::default();
    let mut root = tree::read(&text, &diagnostics).unwrap();
    read::<File>(&mut root, &diagnostics);
    let report = diagnostics.finish(None, ()).unwrap_err();
    assert_eq!(report.iter().count(), MAX_ERRORS + 1);
    let last = report.iter().last().unwrap().to_string();
    assert_eq!(last, "10002:44: error: too many errors: the others are not reported");
}

#[test]
fn the_schema_is_that_of_the_type() {
    let count = json!({"type": "integer", "minimum": 1, "maximum": u32::MAX});
    let schema = schema::<File>();
    assert_eq!(schema["type"], "object");
    assert_eq!(schema["additionalProperties"], false);
    let properties = &schema["properties"];
    assert_eq!(properties["limits"]["type"], json!(["object", "null"]));
    assert_eq!(
        properties["limits"]["properties"]["tunnels"],
        json!({"anyOf": [count, {"enum": ["unlimited", null]}]})
    );
    assert_eq!(properties["mode"], json!({"enum": ["open", "report", "enforce", null]}));
    assert_eq!(properties["strict"], json!({"type": ["boolean", "null"]}));
    let target = &properties["static"]["items"];
    assert_eq!(target["required"], json!(["name", "addresses"]));
    assert_eq!(target["properties"]["name"], json!({"type": "string", "minLength": 1}));
    assert_eq!(target["properties"]["addresses"]["type"], "array");
    let listen = &properties["listen"]["anyOf"];
    assert_eq!(listen[0]["type"], json!(["string", "null"]));
    assert_eq!(listen[1]["type"], json!(["object", "null"]));
    assert_eq!(listen[1]["required"], json!(["name", "addresses"]));
}

//! `/openapi.json` describes what the binary answers: each answer is held against its schema, and each route against the router.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{all, two_targets};
use crate::harness::peer::Peer;
use crate::harness::ports::{Ports, Response};
use crate::harness::process::Server;
use crate::harness::target::Target;

/// The document, as it is served.
fn document(server: &Server) -> Value {
    let answer = server.ask_admin("GET", "/openapi.json");
    assert_eq!(answer.status, 200);
    serde_json::from_str(&answer.body).unwrap()
}

/// Holds a value against a schema, with the keywords that the document uses. Another keyword is a fault of the document: it
/// would be checked by nothing.
fn check(value: &Value, schema: &Value, document: &Value, at: &str) -> Result<(), String> {
    for (keyword, said) in schema.as_object().unwrap() {
        let holds = match keyword.as_str() {
            "$ref" => {
                let pointer = said.as_str().unwrap().strip_prefix('#').unwrap();
                let referred = document.pointer(pointer).ok_or(format!("{pointer} is nowhere"))?;
                check(value, referred, document, at)?;
                true
            }
            "type" => said
                .as_array()
                .map_or_else(|| vec![said], |kinds| kinds.iter().collect())
                .iter()
                .any(|kind| is_a(value, kind.as_str().unwrap())),
            "anyOf" => {
                let one_of = said.as_array().unwrap().iter();
                one_of.clone().any(|schema| check(value, schema, document, at).is_ok())
            }
            "enum" => said.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|value| value >= said.as_f64().unwrap()),
            "required" => said
                .as_array()
                .unwrap()
                .iter()
                .all(|name| value.get(name.as_str().unwrap()).is_some()),
            "properties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if let Some(schema) = said.get(name) {
                        check(value, schema, document, &format!("{at}.{name}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                assert_eq!(*said, Value::Bool(false));
                let known = schema["properties"].as_object().unwrap();
                value
                    .as_object()
                    .into_iter()
                    .flatten()
                    .all(|(name, _)| known.contains_key(name))
            }
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(item, said, document, &format!("{at}[{number}]"))?;
                }
                true
            }
            "description" | "format" => true,
            other => return Err(format!("{at}: {other} is checked by nothing")),
        };
        if !holds {
            return Err(format!("{at}: {value} is not of {keyword} {said}"));
        }
    }
    Ok(())
}

fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("{other} is no type"),
    }
}

/// A route and what is asked of it, so that together all statuses but those of other hosts are answered.
const ASKED: [(&str, &str, &str, &str, u16); 57] = [
    ("get", "/tunnels", "?sort=bytes&limit=1", "", 200),
    ("get", "/tunnels", "?sort=size", "", 400),
    ("put", "/tunnels", "", "", 405),
    ("get", "/tunnels/{id}", "", "", 200),
    ("get", "/tunnels/{id}/diagnosis", "?over_ms=100", "", 200),
    ("get", "/tunnels/{id}/diagnosis", "?over_ms=1", "", 400),
    ("patch", "/tunnels/{id}", "", r#"{"upload": "1MiB/s"}"#, 200),
    ("patch", "/tunnels/{id}", "", r#"{"upload": "fast"}"#, 400),
    ("delete", "/tunnels/{id}", "", "{", 400),
    ("delete", "/tunnels/{id}", "", r#"{"reason": "over"}"#, 200),
    ("delete", "/tunnels", "?user=none", "", 200),
    ("delete", "/tunnels", "", "", 400),
    ("get", "/targets", "", "", 200),
    ("get", "/targets", "?cursor=-", "", 400),
    ("get", "/targets/{namespace}/{service}", "", "", 200),
    ("post", "/targets/{namespace}/{service}", "", "", 405),
    ("get", "/targets/{namespace}/{service}/diagnosis", "", "", 200),
    ("post", "/targets/{namespace}/{service}/diagnosis", "", "", 405),
    ("post", "/targets/{namespace}/{service}/cordon", "", "", 200),
    ("get", "/targets/{namespace}/{service}/cordon", "", "", 405),
    ("post", "/targets/{namespace}/{service}/uncordon", "", "", 200),
    ("get", "/activity", "?target=static/one:22", "", 200),
    ("get", "/activity", "", "", 400),
    ("get", "/activity", "?target=static/none", "", 404),
    ("get", "/clients", "", "", 200),
    ("get", "/clients", "?limit=x", "", 400),
    ("get", "/refusals", "", "", 200),
    ("get", "/refusals", "?detail", "", 200),
    ("get", "/refusals", "?cursor", "", 400),
    ("delete", "/refusals", "", "", 405),
    (
        "put",
        "/restrictions",
        "",
        r#"{"user": "none", "upload": "1MiB/s", "for": "10m"}"#,
        200,
    ),
    ("put", "/restrictions", "", "{}", 400),
    ("get", "/restrictions", "", "", 200),
    ("delete", "/restrictions", "", r#"{"user": "none"}"#, 200),
    ("delete", "/restrictions", "", r#"{"user": "none"}"#, 404),
    ("delete", "/restrictions", "", "{", 400),
    ("post", "/restrictions", "", "", 405),
    ("get", "/ended", "?limit=1", "", 200),
    ("get", "/ended", "?client=x", "", 400),
    ("get", "/tunnels", "?node=none", "", 200),
    ("post", "/events", "", "", 405),
    ("get", "/drain", "", "", 200),
    ("get", "/livez", "", "", 200),
    ("get", "/readyz", "", "", 200),
    ("get", "/metrics", "", "", 200),
    ("get", "/openapi.json", "", "", 200),
    ("get", "/tunnels/{gone}", "", "", 404),
    ("delete", "/tunnels/{gone}", "", "", 404),
    ("patch", "/tunnels/{gone}", "", "{}", 404),
    ("get", "/tunnels/{gone}/diagnosis", "", "", 404),
    ("get", "/targets/{none}/{none}", "", "", 404),
    ("get", "/targets/{none}/{none}/diagnosis", "", "", 200),
    ("post", "/targets/{none}/{none}/cordon", "", "", 404),
    ("post", "/targets/{none}/{none}/uncordon", "", "", 404),
    ("get", "/tunnels", "?cursor=x", "", 400),
    ("delete", "/tunnels", "?node=none", "", 200),
    ("post", "/drain", "", "", 202),
];

#[test]
fn every_answer_is_as_its_description_says() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let document = document(&server);
    let _open = [server.tunnel("one:22", &one), server.tunnel("other:22", &other)];
    let id = all(&server, 2)[0].tunnel_id.clone();
    for (method, route, query, body, status) in ASKED {
        let path = path(route, &id);
        let answer = server.tell_admin(&method.to_uppercase(), &(path + query), body);
        assert_eq!(answer.status, status, "{method} {route}{query}: {}", answer.body);
        is_described(&answer, method, &described(route), &document);
    }
}

/// Values at the borders of a query's schema, and whether each fits it.
fn borders(schema: &Value, next: &str) -> Vec<(String, bool)> {
    let fits = |value: &str| (value.to_owned(), true);
    for keyword in schema.as_object().unwrap().keys() {
        let known = ["type", "enum", "minimum", "maximum", "minLength", "pattern", "anyOf"];
        assert!(known.contains(&&**keyword), "{keyword} is checked by nothing");
    }
    match schema["type"].as_str().unwrap() {
        "integer" => ["minimum", "maximum"]
            .map(|border| fits(&schema[border].to_string()))
            .into(),
        "string" => {
            let mut values = vec![(String::new(), schema["minLength"] != 1 && schema["enum"].is_null())];
            let named = schema["enum"].as_array().into_iter().flatten();
            values.extend(named.map(|value| fits(value.as_str().unwrap())));
            for format in schema["anyOf"].as_array().into_iter().flatten() {
                match format["format"].as_str().unwrap() {
                    "ipv4" => values.push(fits("192.0.2.1")),
                    "ipv6" => values.push(fits("2001:db8::1")),
                    other => panic!("{other} is checked by nothing"),
                }
            }
            // Only the proxy's own one is a cursor.
            values.extend(schema["pattern"].is_string().then(|| fits(next)));
            values
        }
        other => panic!("{other} is no type of a query"),
    }
}

/// A generator of clients, or of tests, makes requests from the document alone.
#[test]
fn a_query_that_fits_its_description_is_no_bad_request() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let document = document(&server);
    let _open = [server.tunnel("one:22", &one), server.tunnel("other:22", &other)];
    let id = all(&server, 2)[0].tunnel_id.clone();
    let next_of = |route: &str| -> String {
        let part: Value = serde_json::from_str(&server.ask_admin("GET", &format!("{route}?limit=1")).body).unwrap();
        // Of one client there is no second part, and no tunnel has ended: a place in the order, 7:1.
        part["next"].as_str().unwrap_or("Nzox").to_owned()
    };
    let mut asked = 0;
    for (route, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let queries = operation["parameters"].as_array().into_iter().flatten();
            for query in queries.filter(|parameter| parameter["in"] == "query") {
                let name = query["name"].as_str().unwrap();
                let next = if name == "cursor" {
                    next_of(route)
                } else {
                    String::new()
                };
                for (value, fits) in borders(&query["schema"], &next) {
                    // None of those that are named ends, and which ones are meant has to be said.
                    let more = match (&**method, name) {
                        ("delete", "limit") => "&user=none",
                        ("delete", _) => "&limit=0",
                        _ => "",
                    };
                    let path = format!("{}?{name}={value}{more}", path(route, &id));
                    let answer = server.ask_admin(&method.to_uppercase(), &path);
                    assert_eq!(answer.status != 400, fits, "{method} {path}: {}", answer.body);
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 30, "{asked}");
}

/// The path of a route.
fn path(route: &str, id: &str) -> String {
    route
        .replace("{id}", id)
        .replace("{namespace}", "static")
        .replace("{service}", "one%3A22")
        .replace("{gone}", "00000000-1")
        .replace("{none}", "none")
}

/// The route as the document has it.
fn described(route: &str) -> String {
    let known = route.replace("{gone}", "{id}");
    known.replace("{none}/{none}", "{namespace}/{service}")
}

/// Holds an answer against what the document says of its status.
#[track_caller]
fn is_described(answer: &Response, method: &str, route: &str, document: &Value) {
    let path = &document["paths"][route];
    // The answer to a method that a path lacks is described with each method that it has.
    let operation = path.get(method).or_else(|| path.as_object()?.values().next());
    let response = &operation.unwrap()["responses"][answer.status.to_string()];
    let content = response["content"].as_object();
    let content = content.unwrap_or_else(|| panic!("{method} {route} describes no {}", answer.status));
    if let Some(json) = content.get("application/json") {
        let value = serde_json::from_str(&answer.body).unwrap();
        check(&value, &json["schema"], document, route).unwrap();
    }
}

/// Beside those of [`ASKED`] and of the methods: what is refused to other hosts, too long, or too many.
#[test]
fn every_answer_that_is_described_is_given() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "admin_scrape: loopback\n");
    let document = document(&server);
    let _open = server.tunnel("one:22", &one);
    let id = all(&server, 1)[0].tunnel_id.clone();
    let readers: Vec<_> = (0..16)
        .map(|_| {
            let mut reader = Peer::connect(server.admin());
            reader.send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
            reader.read_past("text/event-stream");
            reader
        })
        .collect();
    let mut missing = BTreeSet::new();
    for (route, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            for status in operation["responses"].as_object().unwrap().keys() {
                let (verb, path) = (method.to_uppercase(), path(route, &id));
                let answer = match (&**status, &**route) {
                    ("403", _) => server.ask_admin_as(&verb, &path, "rebound.example.com"),
                    ("413", _) => server.tell_admin(&verb, &path, &" ".repeat(16_385)),
                    ("503", "/events") => server.ask_admin(&verb, &path),
                    _ => {
                        missing.insert((described(route), method.clone(), status.clone()));
                        continue;
                    }
                };
                assert_eq!(answer.status.to_string(), *status, "{method} {route}: {}", answer.body);
                is_described(&answer, method, route, &document);
            }
        }
    }
    drop(readers);
    for (method, route, _, _, status) in ASKED {
        missing.remove(&(described(route), method.to_owned(), status.to_string()));
    }
    missing.retain(|(route, _, status)| {
        // Of every path in the next test, of a stream in `events_are_told_as_they_happen`, and of a proxy that begins.
        status != "405" && (&**route, &**status) != ("/events", "200") && (&**route, &**status) != ("/readyz", "503")
    });
    assert_eq!(missing, BTreeSet::new());
}

/// A path or a method that is missing here would be described by nothing, and one that is too many is answered by nothing.
#[test]
fn what_is_described_is_served_and_what_is_served_is_described() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let document = document(&server);
    let asked: BTreeSet<_> = ASKED.iter().map(|(_, route, ..)| *route).collect();
    for (path, methods) in document["paths"].as_object().unwrap() {
        assert!(asked.contains(&**path) || path == "/events", "{path} is not asked");
        let answer = server.ask_admin("OPTIONS", path);
        assert_eq!(answer.status, 405, "{path}");
        let allowed = answer.head.to_lowercase();
        let allowed = allowed.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
        let allowed: BTreeSet<_> = allowed.split(", ").filter(|method| *method != "head").collect();
        let described: BTreeSet<_> = methods.as_object().unwrap().keys().map(|key| &**key).collect();
        assert_eq!(allowed, described, "{path}");
    }
    let page = server.ask_admin("GET", "/none").body;
    for path in page.split([' ', ',', ':', '\n']).filter(|word| word.starts_with('/')) {
        assert!(
            document["paths"].get(path).is_some(),
            "{path} of {page:?} is not described"
        );
    }
}

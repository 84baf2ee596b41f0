//! The JSON Schema of the file, against what reads it.

use serde_json::Value;

use super::*;

/// Returns the schemas of the value at a path such as `tls.certificates[0].key`: one, or one for each alternative.
fn at<'a>(schema: &'a Value, path: &str) -> Vec<&'a Value> {
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    let mut found: Vec<_> = alternatives.flat_map(|alternative| at(alternative, path)).collect();
    if path.is_empty() {
        found.push(schema);
    } else if let Some(rest) = path.strip_prefix("[0]") {
        found.extend(schema.get("items").into_iter().flat_map(|items| at(items, rest)));
    } else {
        let path = path.trim_start_matches('.');
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (key, rest) = path.split_at(end);
        let value = schema["properties"].get(key);
        found.extend(value.into_iter().flat_map(|value| at(value, rest)));
    }
    found
}

fn only<'a>(schema: &'a Value, path: &str) -> &'a Value {
    let found = at(schema, path);
    assert_eq!(found.len(), 1, "{path}: {found:?}");
    found[0]
}

#[test]
fn every_map_of_the_schema_has_the_keys_of_its_reader_and_no_others() {
    let schema = Config::schema();
    let asked = "zzz: 1\naccess: {zzz: 1, kubernetes: {zzz: 1, permission: {zzz: 1}}, oidc: [{zzz: 1}], users: {zzz: 1}, ssh_authorities: {zzz: 1}, ssh_keys: {zzz: 1}, tickets: {zzz: 1}}\n\
                 anchors: {zzz: 1}\nallowlist: {zzz: 1, static: [{zzz: 1, dials_in: {zzz: 1}, limits: {zzz: 1}}],\n kubernetes: {zzz: 1, pods: {zzz: 1}, workload_kinds: [{zzz: 1}]}}\n\
                 listen: [{zzz: 1, websocket: {zzz: 1}}]\ntls: {zzz: 1, certificates: [{zzz: 1}]}\ntimeouts: {zzz: 1}\ndrain: {zzz: 1}\n\
                 limits: {zzz: 1, tunnel: {zzz: 1}, target: {zzz: 1}, client: {zzz: 1}, user: {zzz: 1}, process: {zzz: 1}, ceiling: {zzz: 1}}\n";
    let mut maps = 0;
    for fault in Config::parse(asked).unwrap_err().iter() {
        let Some(known) = fault.message.strip_prefix("unknown key; known here: ") else {
            continue;
        };
        maps += 1;
        let path = fault.key.trim_end_matches("zzz").trim_end_matches('.');
        let map = at(&schema, path)
            .into_iter()
            .find(|schema| schema.get("properties").is_some());
        let map = map.unwrap_or_else(|| panic!("no map at {path}"));
        let keys: BTreeSet<&str> = map["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(keys, known.split(", ").collect(), "{path}");
        assert_eq!(map["additionalProperties"], false, "{path}");
    }
    assert_eq!(maps, asked.matches("zzz").count());
    assert_eq!(
        maps,
        Config::schema().to_string().matches("additionalProperties").count() - 2,
        "a port is described twice, with its WebSocket"
    );
}

#[test]
fn the_schema_tells_kinds_of_values_apart() {
    let schema = Config::schema();
    let cap = &only(&schema, "limits.process")["properties"]["max_tunnels"];
    assert_eq!(cap["anyOf"][0]["type"], "integer");
    assert_eq!(cap["anyOf"][1]["enum"][0], "unlimited");
    assert_eq!(only(&schema, "ssh_only")["type"][0], "boolean");
    assert_eq!(only(&schema, "listen[0].tls")["enum"][2], "required");
    assert_eq!(only(&schema, "limits.tunnel.download")["type"][0], "string");
    assert_eq!(only(&schema, "allowlist")["type"][1], "null");
    let permission = &only(&schema, "access.kubernetes")["properties"]["permission"]["anyOf"];
    assert_eq!(permission[0]["enum"][1], "port-forward");
    assert_eq!(permission[1]["required"], serde_json::json!(["verb", "resource"]));
    let target = only(&schema, "allowlist.static[0]");
    assert_eq!(target["required"], serde_json::json!(["name"]));
    assert_eq!(only(target, "name")["type"], "string");
}

#[test]
fn a_port_is_an_address_or_a_map_alone_or_in_a_list() {
    let schema = Config::schema();
    assert_eq!(schema["properties"]["listen"]["anyOf"].as_array().unwrap().len(), 3);
    let list = &schema["properties"]["listen"]["anyOf"][0];
    assert_eq!(list["type"][0], "array");
    assert_eq!(list["items"]["anyOf"][0]["type"], "string");
    assert_eq!(list["items"]["anyOf"][1]["type"], "object");
}

#[test]
fn a_check_finds_the_configuration_among_rendered_objects_and_keeps_its_lines() {
    let said =
        |text: &str, purpose| match LoadedConfig::from_reader("f", text.as_bytes(), &Overrides::default(), purpose) {
            Ok(loaded) => format!("{:?}", loaded.config.admin),
            Err(report) => report.lines().collect::<Vec<_>>().join("\n"),
        };
    let map = |name: &str, config: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n  switchboard.yaml: {config}\n")
    };
    let service = "# Source: service.yaml\napiVersion: v1\nkind: Service\nspec: {ports: [{port: 80}]}\n";
    let sound = map(
        "a",
        "|\n    # the admin port\n\n    admin: 127.0.0.1:1\n    allowlist:\n      static: []",
    );
    for text in [
        sound.clone(),
        format!("---\n{service}---\n{sound}---\n{service}"),
        format!("{sound}---\n{}", sound.replace("{name: a}", "{name: a-check}")),
        map("a", "\"admin: 127.0.0.1:1\\n\""),
        r#"{"apiVersion": "v1", "data": {"switchboard.yaml": "admin: 127.0.0.1:1\n"}}"#.to_owned(),
    ] {
        assert_eq!(said(&text, Purpose::Check), "127.0.0.1:1", "{text}");
        assert!(said(&text, Purpose::Serve).starts_with("f:"), "{text}");
    }
    let faulty = sound.replace("127.0.0.1:1", "here");
    let place = "admin: expected IP:port such as `0.0.0.0:8080` or `[::]:8080` (found `here`)";
    assert_eq!(said(&faulty, Purpose::Check), format!("f:8:12: error: {place}"));
    let second = format!("{service}---\n{faulty}");
    assert_eq!(said(&second, Purpose::Check), format!("f:13:12: error: {place}"));
    assert_eq!(
        said(&map("a", "\"admin: here\""), Purpose::Check),
        format!("f:1:8: error: {place}")
    );
    let other = sound.replace("127.0.0.1:1", "127.0.0.1:2");
    for (text, reason) in [
        (service.to_owned(), "not one ConfigMap"),
        (format!("{sound}---\n{other}"), "not one ConfigMap"),
        (map("a", "\"\""), "empty, like a file"),
    ] {
        assert!(
            said(&text, Purpose::Check).contains(reason),
            "{}",
            said(&text, Purpose::Check)
        );
    }
    assert!(said("admin: 127.0.0.1:1\n---\nadmin: 127.0.0.1:2\n", Purpose::Check).starts_with("f:"));
}

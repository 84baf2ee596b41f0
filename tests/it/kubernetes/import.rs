//! The lines that `import` prints, applied to a Service of the cluster.

use serde_json::{Value, json};

use super::lab;
use super::objects::{service, slice, with};
use super::stage::Stage;
use crate::import::{envoyfilter, import, kubectl_commands};

#[test]
fn a_service_is_reached_once_the_printed_lines_are_applied() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        // No rule finds the port among two, and no label exposes it.
        let ports = json!([
            {"name": "web", "port": 8888, "protocol": "TCP"},
            {"name": "shell", "port": 80, "protocol": "TCP"},
        ]);
        let unlabelled = with(service("team-a", "svc-a"), "/metadata/labels", json!({}));
        let mut object = with(unlabelled, "/spec/ports", ports);
        let slice = with(slice("team-a", "svc-a", &["10.9.1.1"]), "/ports/0/name", json!("shell"));
        stage.api.put(slice);
        stage.api.put(object.clone());
        stage.serve("other", "10.9.1.2").await;
        stage.proxy.refuses("svc-a.team-a:22", 403).await;

        let (status, lines, said) = import(&["envoyfilter", "-"], &envoyfilter("team-a", 80));
        assert_eq!((status, said.as_str()), (Some(0), ""));
        for command in kubectl_commands(&lines) {
            apply(&mut object, &command);
        }
        stage.api.put(object);
        for name in ["svc-a.team-a.svc.cluster.local:80", "svc-a.team-a:22"] {
            stage.proxy.reaches(name, "10.9.1.1:22").await;
        }
    });
}

/// Does to a Service what kubectl would.
fn apply(object: &mut Value, command: &[String]) {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let ["-n", "team-a", verb, "service", "svc-a", pairs @ ..] = words.as_slice() else {
        panic!("{words:?}");
    };
    let field = match *verb {
        "label" => "labels",
        "annotate" => "annotations",
        other => panic!("{other}"),
    };
    for pair in pairs {
        let (key, value) = pair.split_once('=').unwrap();
        object["metadata"][field][key] = json!(value);
    }
}

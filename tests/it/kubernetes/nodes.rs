//! The node of the pod that is dialled, as its EndpointSlice names it.

use serde_json::json;

use super::lab;
use super::objects::{service, slice, with};
use super::proxy::{ADMIN_PORT, eventually};
use super::stage::Stage;

#[test]
fn the_access_lines_of_a_tunnel_name_the_node_of_its_pod() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        for (name, pod) in [("named", "10.9.1.1"), ("nameless", "10.9.1.2")] {
            let mut slice = slice("team-a", name, &[pod]);
            if name == "named" {
                slice["endpoints"][0]["nodeName"] = json!("node-7");
            }
            stage.api.put(slice);
            stage.api.put(service("team-a", name));
            stage
                .proxy
                .reaches(&format!("{name}.team-a:22"), &format!("{pod}:22"))
                .await;
        }
        // Not by its address, which another pod may have next.
        let gone = with(slice("team-a", "named", &["10.9.1.1"]), "/endpoints", json!([]));
        let tunnel = stage.proxy.connect("named.team-a:22").await.unwrap();
        stage.api.put(gone);
        drop(tunnel);
        let nodes = |service: &str, event: &str| -> Vec<_> {
            let lines = stage.proxy.access().into_iter();
            let of_it = lines.filter(|line| line["target.service"] == service && line["event"] == event);
            of_it.map(|line| line["upstream.node"].clone()).collect()
        };
        eventually("the lines of three ends", async || {
            nodes("named", "close").len() == 2 && nodes("nameless", "close").len() == 1
        })
        .await;
        assert_eq!(nodes("named", "close"), ["node-7", "node-7"]);
        assert_eq!(nodes("nameless", "close"), [""]);
    });
}

/// The tunnels of a node, and whether the path to it is slow.
#[test]
fn an_operator_sees_nodes_and_judges_all_tunnels_of_one() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        for (name, pod, node) in [
            ("devbox", "10.9.1.1", "node-7"),
            ("build", "10.9.1.2", "node-7"),
            ("notebook", "10.9.1.3", "node-8"),
        ] {
            let mut slice = slice("team-a", name, &[pod]);
            slice["endpoints"][0]["nodeName"] = json!(node);
            stage.api.put(slice);
            stage.api.put(service("team-a", name));
            stage
                .proxy
                .reaches(&format!("{name}.team-a:22"), &format!("{pod}:22"))
                .await;
        }
        let open = [
            stage.proxy.connect("devbox.team-a:22").await.unwrap(),
            stage.proxy.connect("build.team-a:22").await.unwrap(),
            stage.proxy.connect("notebook.team-a:22").await.unwrap(),
        ];
        let ask = |arguments: &[&str]| -> (Option<i32>, String) {
            let mut command = stage.lab.beside_proxy(env!("CARGO_BIN_EXE_switchboard"));
            let admin = format!("127.0.0.1:{ADMIN_PORT}");
            let said = command.args(arguments).args(["--timeout", "60s", "--admin", &admin]);
            let said = said.output().unwrap();
            let told = String::from_utf8(said.stdout).unwrap() + &String::from_utf8(said.stderr).unwrap();
            println!("figure: $ switchboard {}\n{told}", arguments.join(" "));
            (said.status.code(), told)
        };
        // Those of `reaches` have ended by then.
        let all = async || ask(&["tunnels"]).1.contains("3 tunnels on 1 of 1 replicas");
        eventually("three tunnels are listed", all).await;
        let (status, listed) = ask(&["tunnels", "--node", "node-7", "-o", "wide"]);
        assert_eq!(status, Some(0), "{listed}");
        assert!(listed.lines().next().unwrap().contains("NODE"), "{listed}");
        assert_eq!(listed.matches("node-7").count(), 2, "{listed}");
        assert!(!listed.contains("notebook"), "{listed}");
        let (_, targets) = ask(&["targets", "-o", "wide"]);
        let is_of = |line: &&str| line.contains("team-a/notebook") && line.ends_with("node-8");
        assert!(targets.lines().any(|line| is_of(&line)), "{targets}");
        let (status, why) = ask(&["tunnels", "why", "--node", "node-7"]);
        assert_eq!(status, Some(0), "{why}");
        assert!(why.contains("2 tunnels looked at: "), "{why}");
        assert!(why.contains("the round trip to the target is "), "{why}");
        assert_eq!(ask(&["tunnels", "why", "--node", "node-9"]).0, Some(1));
        let (_, closed) = ask(&[
            "tunnels",
            "close",
            "--node",
            "node-7",
            "--yes",
            "--reason",
            "it is drained",
        ]);
        assert_eq!(closed.matches("closed ").count(), 2, "{closed}");
        drop(open);
    });
}

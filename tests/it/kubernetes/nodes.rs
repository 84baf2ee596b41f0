//! The node of the pod that is dialled, as its EndpointSlice names it.

use serde_json::json;

use super::lab;
use super::objects::{service, slice, with};
use super::proxy::eventually;
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

//! Anchors of Services: the annotation, the right to serve, and the replicas of the proxy's own Service.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::api::Token;
use super::lab::{self, Lab, PROXY};
use super::objects::{role, role_binding, service, slice, with};
use super::proxy::{ADMIN_PORT, PATIENCE, PORT, eventually, settings};
use super::stage::Stage;
use crate::dial_in::DialledIn;

/// The page `/readyz` of an anchor. Not by a blocking call: the API server of this process answers the proxy at the same time.
async fn readyz(anchor: &DialledIn) -> String {
    let mut stream = TcpStream::connect(anchor.admin).await.unwrap();
    let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    page
}

async fn says(anchor: &DialledIn, sentence: &str) {
    eventually(sentence, async || readyz(anchor).await.contains(sentence)).await;
}

/// A tunnel to an anchor, which announces itself.
async fn at_anchor(fields: &str) -> TcpStream {
    let mut stream = TcpStream::connect((PROXY, PORT)).await.unwrap();
    let head = format!("CONNECT devbox.team-a:22 HTTP/1.1\r\nHost: devbox.team-a:22\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = String::new();
    while !said.contains("switchboard-resume-1") {
        let mut bytes = [0; 256];
        let read = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
        assert!(read > 0, "{said}");
        said += &String::from_utf8_lossy(&bytes[..read]);
    }
    stream
}

/// The slice of the proxy's own Service, with these ready pods, and one that is not ready.
fn replicas(pods: &[&str]) -> Value {
    let endpoint = |(at, pod): (usize, &&str)| {
        json!({
            "addresses": [format!("10.8.0.{}", at + 2)], "conditions": {"ready": *pod != "unready"},
            "targetRef": {"kind": "Pod", "name": pod},
        })
    };
    let endpoints: Vec<_> = pods.iter().chain(&["unready"]).enumerate().map(endpoint).collect();
    with(slice("default", "ingress", &[]), "/endpoints", json!(endpoints))
}

/// A proxy with users of the cluster that follows the Service `ingress`, the Service `devbox`, which dials in, and the right of alice to reach it.
async fn stage(lab: Lab) -> Stage {
    let access = json!({"mode": "enforce", "cleartext": "allow", "kubernetes": {"enabled": true}});
    let settings = with(settings(&[]), "/access", access);
    let settings = with(settings, "/anchors", json!({"replicas": "auto", "service": "ingress"}));
    let annotation = json!({"switchboard.dev/dials-in": "true"});
    let served = with(service("team-a", "devbox"), "/metadata/annotations", annotation);
    let mut may_serve = role("team-a", "anchor", &["devbox"]);
    may_serve["rules"][0]["resources"] = json!(["services/anchor"]);
    let stage = Stage::over(lab, settings, async |api| {
        api.put(replicas(&["switchboard-0", "switchboard-1"]));
        api.put(served);
        api.put(slice("team-a", "devbox", &["10.9.1.2"]));
        api.put(role("team-a", "ssh", &["devbox"]));
        api.put(may_serve);
        for user in ["alice", "gpu"] {
            api.know(&format!("of-{user}"), Token::new(user, &["switchboard"]));
        }
        api.put(role_binding("team-a", "alice", "ssh", "alice"));
        api.open();
    });
    stage.await.ready().await
}

#[test]
fn an_anchor_serves_a_service_at_each_ready_replica_while_its_user_has_the_right() {
    lab::run(async |lab| {
        let token = lab.directory().join("token of gpu");
        fs::write(&token, "of-gpu").unwrap();
        let stage = stage(lab).await;
        let (url, token) = (format!("http://{PROXY}:{PORT}"), token.display().to_string());
        let more = ["--token-file", &token, "--allow-cleartext"];
        let mut anchor = DialledIn::start_with(&url, "devbox.team-a:22", "10.9.1.1:22".parse().unwrap(), &more);
        // The API server answers on other threads.
        let said = anchor.process.stderr.find("cannot register");
        assert!(
            said.contains("403") && said.contains("create services/anchor"),
            "{said}"
        );
        let binding = role_binding("team-a", "gpu", "anchor", "gpu");
        stage.api.put(binding.clone());
        // One connection to each of two replicas, of which one runs here.
        says(&anchor, "connected to 1 of 2 replicas").await;
        stage.api.put(replicas(&["switchboard-0"]));
        says(&anchor, "connected to 1 of 1 replicas").await;
        let alice = "Proxy-Authorization: Bearer of-alice\r\n";
        let tunnel = at_anchor(alice).await;
        let ask = |arguments: &[&str]| -> String {
            let mut command = stage.lab.beside_proxy(env!("CARGO_BIN_EXE_switchboard"));
            let admin = format!("127.0.0.1:{ADMIN_PORT}");
            let said = command.args(arguments).args(["--admin", &admin]).output().unwrap();
            String::from_utf8(said.stdout).unwrap()
        };
        let (listed, tunnels) = (ask(&["targets"]), ask(&["tunnels", "-o", "wide"]));
        let row = listed.lines().find(|line| line.contains("team-a/devbox")).unwrap();
        assert!(
            row.contains(" 1/1 ") && row.ends_with("gpu@10.8.0.1 (1 connected)"),
            "{listed}"
        );
        assert!(tunnels.contains("ANCHOR") && tunnels.contains(" gpu"), "{tunnels}");
        // Neither right is the other one.
        let gpu = "Proxy-Authorization: Bearer of-gpu\r\n";
        let refused = stage.proxy.connect_with("devbox.team-a:22", gpu).await.unwrap_err();
        assert_eq!(refused.status, 403, "{refused:?}");
        stage.api.delete(&binding);
        says(&anchor, "connected to 0 of 1 replicas").await;
        eventually("its tunnels end with the right", async || {
            let lines = stage.proxy.access();
            let mut closed = lines.iter().filter(|line| line["event"] == "close");
            closed.any(|line| line["upstream.anchor"] == "gpu" && line["reason"] == "access_revoked")
        })
        .await;
        drop(tunnel);
        let refused = stage.proxy.connect_with("devbox.team-a:22", alice).await.unwrap_err();
        assert_eq!(refused.status, 503, "{refused:?}");
        stage.api.put(binding);
        says(&anchor, "connected to 1 of 1 replicas").await;
        // Without the annotation the Service leads to its endpoints again.
        stage.api.put(service("team-a", "devbox"));
        eventually("the endpoint is dialled", async || {
            let reached = stage.proxy.connect_with("devbox.team-a:22", alice).await;
            reached.is_ok_and(|tunnel| tunnel.pod == "10.9.1.2:22".parse().unwrap())
        })
        .await;
        anchor.process.signal(Signal::KILL);
    });
}

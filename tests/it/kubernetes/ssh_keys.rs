//! Public keys in a Secret, from the cluster to the tunnels of a jump host that they open.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use russh::client::{Handle, Msg};
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg, load_secret_key};
use russh::{Channel, ChannelMsg};
use serde_json::{Value, json};

use super::api::{Cut, Verb};
use super::lab::{self, Lab, PROXY};
use super::objects::{role, role_binding, service, slice, with};
use super::proxy::{PORT, eventually, settings};
use super::stage::Stage;
use crate::jump::door_key;
use crate::jump::hostile::{Anybody, connect};

fn secret(data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "switchboard.dev/ssh-keys",
        "metadata": {"namespace": "switchboard", "name": "switchboard-ssh-keys"}, "data": data,
    })
}

fn of_alice(lines: &str) -> Value {
    secret(&json!({ "alice": STANDARD.encode(lines) }))
}

/// A jump host that reads keys from the Secret, the target `devbox` of `team-a`, and the user `alice` of it.
async fn stage(lab: Lab) -> Stage {
    let door = door_key("ed25519", lab.directory());
    let access = json!({
        "mode": "enforce", "kubernetes": {"enabled": true},
        "ssh_keys": {"enabled": true, "secret": "switchboard/switchboard-ssh-keys"},
    });
    let port = json!([{"address": format!("{PROXY}:{PORT}"), "ssh": "jump", "host_keys": [door]}]);
    let settings = with(with(settings(&[]), "/access", access), "/listen", port);
    let stage = Stage::over(lab, settings, async |api| {
        api.put(slice("team-a", "devbox", &["10.9.1.1"]));
        api.put(service("team-a", "devbox"));
        api.put(role("team-a", "ssh", &[]));
        api.put(role_binding("team-a", "alice", "ssh", "alice"));
        api.open();
    });
    let stage = stage.await.ready().await;
    eventually("everything is watched", async || stage.api.seen(Verb::Watch) >= WATCHES).await;
    stage
}

async fn log_in(key: &Arc<PrivateKey>) -> Option<Handle<Anybody>> {
    let mut client = connect(SocketAddr::new(PROXY, PORT)).await;
    let key = PrivateKeyWithHashAlg::new(Arc::clone(key), None);
    let answer = client.authenticate_publickey("alice", key).await.unwrap();
    answer.success().then_some(client)
}

/// Logs in as soon as the Secret lets, and opens a tunnel.
async fn tunnel(key: &Arc<PrivateKey>) -> (Handle<Anybody>, Channel<Msg>) {
    let mut client = None;
    eventually("the key opens the door", async || {
        client = log_in(key).await;
        client.is_some()
    })
    .await;
    let client = client.unwrap();
    let channel = client.channel_open_direct_tcpip("devbox.team-a", 22, "127.0.0.1", 0);
    let channel = channel.await.unwrap();
    (client, channel)
}

async fn is_refused(key: &Arc<PrivateKey>) {
    eventually("the key opens nothing", async || log_in(key).await.is_none()).await;
}

/// The pod says its name, and then what it is sent after an identification.
async fn echoes(channel: &mut Channel<Msg>, text: &str) {
    channel.data(text.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains(text) {
        match channel.wait().await {
            Some(ChannelMsg::Data { data }) => said.extend_from_slice(&data),
            Some(ChannelMsg::WindowAdjusted { .. }) => {}
            ended => panic!("{ended:?} after {said:?}"),
        }
    }
}

async fn ends(channel: &mut Channel<Msg>) {
    while channel.wait().await.is_some() {}
}

#[test]
fn a_key_of_the_secret_opens_the_door_until_it_is_taken_back() {
    lab::run(async |lab| {
        let user = tempfile::TempDir::new().unwrap();
        let path = door_key("ed25519", user.path());
        let public = std::fs::read_to_string(path.with_added_extension("pub")).unwrap();
        let key = Arc::new(load_secret_key(path, None).unwrap());
        let stage = stage(lab).await;
        assert!(log_in(&key).await.is_none());
        stage
            .api
            .put(of_alice(&format!("# her phone\nno-pty {public}{public}")));
        let (_client, mut channel) = tunnel(&key).await;
        channel.data(&b"SSH-2.0-client\r\n"[..]).await.unwrap();
        echoes(&mut channel, "a line\n").await;
        let fault = "an entry of the Secret of keys is invalid: alice: line 2: ";
        assert!(stage.proxy.messages().contains(fault), "{}", stage.proxy.messages());
        // A Secret of another type changes nothing.
        stage.api.put(with(secret(&json!({})), "/type", json!("Opaque")));
        let other =
            "the Secret of keys cannot be used, its keys stay as they were: its type is not switchboard.dev/ssh-keys";
        eventually(other, async || stage.proxy.messages().contains(other)).await;
        drop(tunnel(&key).await);
        // While the Secret is not followed, its keys open no tunnel and end none.
        stage.api.allow("secrets", false);
        stage.api.cut(Cut::MidLine);
        is_refused(&key).await;
        echoes(&mut channel, "in an outage").await;
        stage.api.allow("secrets", true);
        stage.api.put(of_alice(&public));
        drop(tunnel(&key).await);
        echoes(&mut channel, "after it").await;
        stage.api.put(of_alice("# none\n"));
        ends(&mut channel).await;
        is_refused(&key).await;
        eventually("the access line names method and user", async || {
            let lines = stage.proxy.access();
            lines.iter().any(|line| {
                line["auth.method"] == "public_key"
                    && line["user.name"] == "alice"
                    && line["reason"] == "access_revoked"
            })
        })
        .await;
    });
}

/// Services, slices, what rights are made of, and the Secret.
const WATCHES: usize = 8;

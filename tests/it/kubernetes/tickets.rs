//! Tickets from the program that makes them to the tunnels that they open, through the real binary.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use switchboard::policy::access::tickets::{NewTicket, Ticket};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::api::{Api, Cut, Token, Verb};
use super::lab::{self, API, Lab, PROXY};
use super::objects::{annotated, role, role_binding, service, slice, with};
use super::proxy::{PATIENCE, PORT, Proxy, Refused, Tunnel, eventually, settings};
use super::stage::Stage;
#[cfg(feature = "jump")]
use crate::jump::{door_key, hostile::connect};

/// A proxy with tickets beside tokens, the targets `devbox` and `other` of `team-a`, and the user `alice` of both.
async fn stage(lab: Lab, prepare: impl FnOnce(&Api)) -> Stage {
    stage_with(lab, &[], prepare).await
}

/// The same with other settings at these places.
async fn stage_with(lab: Lab, changes: &[(&str, Value)], prepare: impl FnOnce(&Api)) -> Stage {
    let access = json!({
        "mode": "enforce", "cleartext": "allow", "kubernetes": {"enabled": true},
        "tickets": {"enabled": true, "secret": "switchboard/switchboard-tickets"},
    });
    let mut settings = with(settings(&[]), "/access", access);
    for (place, value) in changes {
        settings = with(settings, place, value.clone());
    }
    let stage = Stage::over(lab, settings, async |api| {
        for (name, pod) in [("devbox", "10.9.1.1"), ("other", "10.9.1.2")] {
            api.put(slice("team-a", name, &[pod]));
            api.put(service("team-a", name));
        }
        api.put(role("team-a", "ssh", &[]));
        api.put(role_binding("team-a", "alice", "ssh", "alice"));
        let ops = json!([{"kind": "Group", "name": "ops", "apiGroup": "rbac.authorization.k8s.io"}]);
        api.put(with(role_binding("team-a", "ops", "ssh", "x"), "/subjects", ops));
        prepare(api);
        api.open();
    });
    let stage = stage.await.ready().await;
    eventually("everything is watched", async || stage.api.seen(Verb::Watch) >= WATCHES).await;
    stage
}

/// The output of the program, and its exit status.
#[derive(Debug)]
struct Said {
    status: i32,
    stdout: String,
    stderr: String,
}

/// Runs `switchboard ticket`.
async fn ticket(arguments: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_switchboard"))
        .arg("ticket")
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output).await.unwrap().unwrap();
    Said {
        status: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Makes a ticket of that user and applies it as its stderr says. Returns its letters, and what stderr has beside them.
async fn made(stage: &Stage, user: &str, arguments: &[&str]) -> (String, String) {
    let arguments = [&["--namespace", "switchboard", "--user", user], arguments].concat();
    let said = ticket(&arguments).await;
    assert_eq!(said.status, 0, "{said:?}");
    let (letters, sentences) = said.stderr.split_once('\n').unwrap();
    assert!(
        letters.len() == 26 && letters.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{said:?}"
    );
    assert!(
        !said.stdout.contains(letters) && !sentences.contains(letters),
        "{said:?}"
    );
    let secret: Value = serde_json::from_str(&said.stdout).unwrap();
    let (_, manager) = sentences
        .split_once("kubectl apply --server-side --field-manager=")
        .unwrap();
    stage.api.apply(manager.split_whitespace().next().unwrap(), &secret);
    (letters.to_owned(), sentences.to_owned())
}

/// Takes a ticket back by the command that stderr has, as kubectl would send it.
fn take_back(stage: &Stage, said: &str) {
    let (command, patch) = said.trim_end().rsplit_once(" -p '").unwrap();
    assert!(
        command.ends_with("kubectl -n switchboard patch secret switchboard-tickets --type=merge"),
        "{said}"
    );
    let patch: Value = serde_json::from_str(patch.trim_end_matches('\'')).unwrap();
    let key = patch["data"].as_object().unwrap().keys().next().unwrap().clone();
    let mut secret = stage.api.object(&secret(&json!({}))).unwrap();
    assert!(secret["data"].as_object_mut().unwrap().remove(&key).is_some());
    stage.api.put(secret);
}

fn basic(user: &str, password: &str) -> String {
    let encoded = STANDARD.encode(format!("{user}:{password}"));
    format!("Proxy-Authorization: Basic {encoded}\r\n")
}

async fn login(proxy: &Proxy, ticket: &str) -> Result<Tunnel, Refused> {
    proxy.connect_with("devbox.team-a:22", &basic("any", ticket)).await
}

/// The replicas hear of a ticket by their watch.
async fn logged_in(proxy: &Proxy, ticket: &str) -> Tunnel {
    let mut tunnel = None;
    eventually("the ticket opens a tunnel", async || {
        tunnel = login(proxy, ticket).await.ok();
        tunnel.is_some()
    })
    .await;
    tunnel.unwrap()
}

async fn refused(proxy: &Proxy, ticket: &str, phrase: &str) {
    let mut last = None;
    eventually(phrase, async || {
        last = login(proxy, ticket).await.err();
        let is_it = |refused: &Refused| refused.status == 407 && refused.phrase == phrase;
        last.as_ref().is_some_and(is_it)
    })
    .await;
}

const UNKNOWN: &str = "the ticket is not known, or was revoked";

/// The user name of an SSH connection is that of the ticket's user, or empty.
#[cfg(feature = "jump")]
#[test]
fn a_ticket_is_the_password_of_its_own_user_at_a_jump_host() {
    lab::run(async |lab| {
        let key = door_key("ed25519", lab.directory());
        let listen = json!([{"address": format!("{PROXY}:{PORT}"), "ssh": "jump", "host_keys": [key]}]);
        let stage = stage_with(lab, &[("/listen", listen)], |_| {}).await;
        let (ticket, said) = made(&stage, "alice", &[]).await;
        drop(logged_in(&stage.proxy, &ticket).await);
        let door = SocketAddr::new(PROXY, PORT);
        let unknown = "0".repeat(26);
        let mut tunnels = Vec::new();
        for (user, ticket, expected) in [
            ("alice", &ticket, true),
            ("alice%devbox", &ticket, true),
            ("", &ticket, true),
            ("bob", &ticket, false),
            ("Alice", &ticket, false),
            ("alice", &unknown, false),
        ] {
            let mut client = connect(door).await;
            let answer = client.authenticate_password(user, ticket).await.unwrap();
            assert_eq!(answer.success(), expected, "{user}");
            let tunnel = client
                .channel_open_direct_tcpip("devbox.team-a", 22, "10.0.0.1", 1)
                .await;
            assert_eq!(tunnel.is_ok(), expected, "{user}");
            tunnels.extend(tunnel);
        }
        take_back(&stage, &said);
        for mut tunnel in tunnels {
            while tunnel.wait().await.is_some() {}
        }
    });
}

#[test]
fn a_ticket_opens_what_its_user_may_and_its_tunnels_end_when_it_is_taken_back() {
    lab::run(async |lab| {
        let stage = stage(lab, |_| {}).await;
        let (own, said) = made(&stage, "alice", &[]).await;
        assert!(said.contains("a ticket of alice, for every target"), "{said}");
        let mut tunnel = logged_in(&stage.proxy, &own).await;
        let mut other = stage
            .proxy
            .connect_with(
                "other.team-a:22",
                &format!("Proxy-Authorization: Bearer {}\r\n", own.to_uppercase()),
            )
            .await
            .unwrap();
        let (narrow, said) = made(&stage, "alice", &["--target", "devbox.team-a", "--ttl", "1h"]).await;
        assert!(said.contains("for the Service devbox.team-a alone"), "{said}");
        let mut narrowed = logged_in(&stage.proxy, &narrow).await;
        let elsewhere = stage
            .proxy
            .connect_with("Other.team-a.svc.cluster.local.:22", &basic("", &narrow))
            .await;
        assert_eq!(elsewhere.unwrap_err().phrase, "this ticket is for devbox.team-a only");
        take_back(&stage, &said);
        narrowed.ended().await;
        refused(&stage.proxy, &narrow, UNKNOWN).await;
        tunnel.echo().await.unwrap();
        other.echo().await.unwrap();
        // A right that is taken back ends the tunnels of a ticket as well.
        stage.api.delete(&role_binding("team-a", "alice", "ssh", "alice"));
        tunnel.ended().await;
        other.ended().await;
        assert_eq!(login(&stage.proxy, &own).await.unwrap_err().status, 403);
        eventually("the access lines name ticket and user", async || {
            let lines = stage.proxy.access();
            let ended = lines.iter().filter(|line| {
                line["auth.method"] == "ticket" && line["user.name"] == "alice" && line["reason"] == "access_revoked"
            });
            ended.count() == 3
        })
        .await;
        let messages = stage.proxy.messages();
        assert!(!messages.contains(&own) && !messages.contains(&narrow), "{messages}");
    });
}

#[test]
fn proxytunnel_and_ncat_carry_a_ticket() {
    lab::run(async |lab| {
        let stage = stage(lab, |_| {}).await;
        let (own, _) = made(&stage, "alice", &[]).await;
        drop(logged_in(&stage.proxy, &own).await);
        let (at, login) = (format!("{PROXY}:{PORT}"), format!("any:{own}"));
        let mut proxytunnel = Command::new("proxytunnel");
        proxytunnel.args(["-q", "-p", &at, "-d", "devbox.team-a:22"]);
        proxytunnel.env("PROXYUSER", "any").env("PROXYPASS", &own);
        let mut ncat = Command::new("ncat");
        ncat.args([
            "--proxy",
            &at,
            "--proxy-type",
            "http",
            "--proxy-auth",
            &login,
            "devbox.team-a",
            "22",
        ]);
        for mut client in [proxytunnel, ncat] {
            let client = client
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn();
            let mut client = client.unwrap();
            client
                .stdin
                .as_mut()
                .unwrap()
                .write_all(b"SSH-2.0-client\r\n")
                .await
                .unwrap();
            let mut line = String::new();
            let mut stdout = BufReader::new(client.stdout.take().unwrap());
            timeout(PATIENCE, stdout.read_line(&mut line)).await.unwrap().unwrap();
            assert!(line.starts_with("SSH-2.0-10.9.1.1:22"), "{client:?}: {line:?}");
            client.kill().await.unwrap();
        }
    });
}

#[test]
fn no_ticket_is_in_the_logs_or_the_metrics_at_any_level() {
    lab::run(async |lab| {
        let mut stage = stage(lab, |_| {}).await;
        let (own, _) = made(&stage, "alice", &[]).await;
        let (other, _) = made(&stage, "alice", &["--target", "other.team-a"]).await;
        let wrong = NewTicket::new().unwrap().ticket.expose().to_owned();
        let filter = "trace,h2=trace,hyper=trace,hyper_util=trace,kube=trace,rustls=trace,tokio_util=trace,tower=trace";
        stage.restart_proxy_logging(filter).await;
        let stage = stage.ready().await;
        drop(logged_in(&stage.proxy, &own).await);
        refused(&stage.proxy, &wrong, UNKNOWN).await;
        assert_eq!(login(&stage.proxy, &other).await.unwrap_err().status, 403);
        eventually("the lines are written", async || stage.proxy.access().len() >= 3).await;
        let mut written = stage.proxy.messages();
        assert!(written.contains("TRACE"));
        for line in stage.proxy.access() {
            written += &line.to_string();
        }
        let (_, page) = stage.proxy.page("/metrics").await.unwrap();
        assert!(page.contains("switchboard_access_tickets{state=\"valid\"} 2"), "{page}");
        written += &page;
        for ticket in [own, other, wrong] {
            for form in [
                STANDARD.encode(&ticket),
                STANDARD.encode(format!("any:{ticket}")),
                ticket,
            ] {
                assert!(!written.contains(&form), "{form}");
            }
        }
    });
}

#[test]
fn each_of_two_tickets_of_one_user_counts_until_it_is_taken_back() {
    lab::run(async |lab| {
        let stage = stage(lab, |_| {}).await;
        let (first, said) = made(&stage, "o'neil", &["--group", "ops"]).await;
        let mut tunnel = logged_in(&stage.proxy, &first).await;
        let (second, _) = made(&stage, "o'neil", &["--group", "ops"]).await;
        let mut others = logged_in(&stage.proxy, &second).await;
        tunnel.echo().await.unwrap();
        take_back(&stage, &said);
        tunnel.ended().await;
        refused(&stage.proxy, &first, UNKNOWN).await;
        others.echo().await.unwrap();
        stage.api.delete(&secret(&json!({})));
        others.ended().await;
    });
}

#[tokio::test]
async fn no_ticket_is_made_for_a_name_of_the_clusters_own_or_by_faulty_arguments() {
    for (arguments, status) in [
        (["--user", "system:admin", "--ttl", "1h"].as_slice(), 1),
        (&["--user", "x", "--group", "system:masters"], 1),
        (&["--user", ""], 1),
        (&["--user", "alice", "--ttl", "9m"], 2),
        (&["--user", "alice", "--ttl", "2d"], 2),
        (&["--user", "alice", "--target", "devbox"], 2),
        (&["--group", "ops"], 2),
    ] {
        let said = ticket(arguments).await;
        assert_eq!(
            (said.status, said.stdout.as_str()),
            (status, ""),
            "{arguments:?}: {said:?}"
        );
    }
}

fn secret(data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "switchboard.dev/tickets",
        "metadata": {"namespace": "switchboard", "name": "switchboard-tickets"}, "data": data,
    })
}

/// The data of a Secret with a ticket of a member of `ops`.
fn entry(minted: &NewTicket) -> Value {
    let ticket = Ticket {
        user: "carol".into(),
        groups: vec!["ops".into()],
        expires: SystemTime::now() + Duration::from_hours(1),
        target: None,
    };
    json!({ minted.key.to_string(): STANDARD.encode(ticket.encode().unwrap()) })
}

#[test]
fn tickets_are_read_from_the_cluster_that_access_names_and_the_log_names_each_cluster() {
    lab::run(async |lab| {
        let directory = lab.directory().join("named");
        std::fs::create_dir(&directory).unwrap();
        let named = Api::new(&directory, SocketAddr::new(API.ip(), 6444));
        let [ticket, of_the_allowlist] = [(); 2].map(|()| NewTicket::new().unwrap());
        named.put(secret(&entry(&ticket)));
        named.open();
        let access = json!({
            "mode": "enforce", "cleartext": "allow", "kubernetes": {"kubeconfig": named.kubeconfig()},
            "tickets": {"enabled": true, "secret": "switchboard/switchboard-tickets"},
        });
        let prepare = async |api: &Api| {
            api.put(secret(&entry(&of_the_allowlist)));
            api.put(slice("team-a", "devbox", &["10.9.1.1"]));
            api.put(annotated(service("team-a", "devbox"), &[("allowed-users", "carol")]));
            api.open();
        };
        let stage = Stage::over(lab, with(settings(&[]), "/access", access), prepare).await;
        let stage = stage.ready().await;
        drop(logged_in(&stage.proxy, ticket.ticket.expose()).await);
        refused(&stage.proxy, of_the_allowlist.ticket.expose(), UNKNOWN).await;
        for (section, api, port) in [("allowlist.kubernetes", &stage.api, 6443), ("access", &named, 6444)] {
            let file = api.kubeconfig().display().to_string();
            let line = format!("`{section}` reads this API server server=\"https://10.8.0.1:{port}\" from=\"{file}\"");
            eventually(&line, async || stage.proxy.messages().contains(&line)).await;
        }
    });
}

#[test]
fn what_the_api_server_fails_to_say_takes_no_ticket_back_and_a_reload_neither() {
    lab::run(async |lab| {
        let minted = NewTicket::new().unwrap();
        let written = secret(&entry(&minted));
        let stage = stage(lab, |api| api.put(written.clone())).await;
        let mut tunnel = logged_in(&stage.proxy, minted.ticket.expose()).await;
        // Another shape as a whole.
        stage.api.put(with(written.clone(), "/data", json!([1])));
        eventually("it is reported", async || {
            stage.proxy.messages().contains("the Secret of tickets cannot be used")
        })
        .await;
        drop(login(&stage.proxy, minted.ticket.expose()).await.unwrap());
        // An outage, and a reload in it.
        stage.api.close().await;
        let settings = with(stage.settings.clone(), "/limits/tunnel", json!({"download": "50MiB/s"}));
        let settings = with(settings, "/access/on_expiry", json!("close"));
        stage.reload(&settings).await;
        tunnel.echo().await.unwrap();
        let denied = login(&stage.proxy, minted.ticket.expose()).await;
        // The right cannot be asked about, and the ticket is none that is unknown.
        assert_ne!(denied.err().map(|refused| refused.status), Some(407));
        stage.api.open();
        stage.api.delete(&written);
        tunnel.ended().await;
    });
}

#[test]
fn while_tickets_are_not_followed_they_open_no_tunnel_and_end_none() {
    lab::run(async |lab| {
        let minted = NewTicket::new().unwrap();
        let written = secret(&entry(&minted));
        let stage = stage(lab, |api| {
            api.know("alices", Token::new("alice", &["switchboard"]));
            api.put(written.clone());
        })
        .await;
        let ticket = minted.ticket.expose();
        let mut tunnel = logged_in(&stage.proxy, ticket).await;
        let forbid = |plural| {
            stage.api.allow(plural, false);
            stage.api.cut(Cut::MidLine);
        };
        forbid("secrets");
        eventually("it opens no tunnel", async || {
            let answer = login(&stage.proxy, ticket).await;
            answer.is_err_and(|refused| refused.status == 503)
        })
        .await;
        // One that was never there is not known to be wrong either, and other users get in.
        let unknown = NewTicket::new().unwrap();
        let refused = login(&stage.proxy, unknown.ticket.expose()).await.unwrap_err();
        assert_eq!(refused.status, 503, "{refused:?}");
        let alice = "Proxy-Authorization: Bearer alices\r\n";
        drop(stage.proxy.connect_with("devbox.team-a:22", alice).await.unwrap());
        tunnel.echo().await.unwrap();
        stage.api.allow("secrets", true);
        drop(logged_in(&stage.proxy, ticket).await);
        // Without the right to follow bindings, rights are asked about at `recheck`.
        forbid("rolebindings");
        eventually("the log names the right", async || {
            stage.proxy.messages().contains("lacks the rule {apiGroups: [\"rbac")
        })
        .await;
        drop(logged_in(&stage.proxy, ticket).await);
        stage.api.delete(&written);
        tunnel.ended().await;
    });
}

/// Services, slices, what rights are made of, and the Secret.
const WATCHES: usize = 8;

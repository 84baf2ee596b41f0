//! Names and changes of well-formed Services: with a real API server or the fake one.

use std::time::Instant;

use serde_json::json;

use super::cluster;
use super::objects::{endpoint, service, slice, with};
use super::proxy::eventually;

#[test]
fn a_service_answers_to_its_names_and_no_others() {
    let suffixes = [
        ("public_suffixes", json!(["ssh.example.com"])),
        ("alias_port", json!(2200)),
    ];
    cluster::run(&suffixes, async |ground| {
        ground.apply(&slice(&ground.here, "svc", &["10.9.1.1"])).await;
        ground.apply(&service(&ground.here, "svc")).await;
        let (proxy, name) = (&ground.proxy, format!("svc.{}", ground.here));
        proxy.reaches(&format!("{name}:22"), "10.9.1.1:22").await;
        for suffix in [
            "",
            ".svc",
            ".svc.cluster.local",
            ".ssh.example.com",
            ".",
            ".SVC.",
            ".Ssh.Example.Com.",
        ] {
            for port in [22, 2200] {
                let authority = format!("{name}{suffix}:{port}");
                let refused = proxy.connect(&authority).await.err();
                assert_eq!(refused, None, "{authority}");
            }
        }
        let others = [
            "svc:22".to_owned(),
            format!("x.{name}:22"),
            format!("{name}.example.com:22"),
            format!("{name}.svc.cluster:22"),
            format!("{name}.pod.cluster.local:22"),
            format!("svc.{}:22", ground.there),
            format!("{name}:2222"),
        ];
        for authority in others {
            let refused = proxy.connect(&authority).await.unwrap_err();
            assert_eq!(refused.status, 403, "{authority}");
        }
    });
}

#[test]
fn each_pod_of_a_headless_service_answers_to_its_own_name() {
    cluster::run(&[], async |ground| {
        let (proxy, here) = (&ground.proxy, ground.here.as_str());
        let pods = |pods: &[(&str, &str)]| {
            let named = |(address, name): &(&str, &str)| with(endpoint(address, "ready"), "/hostname", json!(name));
            with(
                slice(here, "web", &["10.9.1.1"]),
                "/endpoints",
                pods.iter().map(named).collect(),
            )
        };
        ground
            .apply(&with(service(here, "web"), "/spec/clusterIP", json!("None")))
            .await;
        ground
            .apply(&pods(&[("10.9.1.1", "web-0"), ("10.9.1.2", "web-1")]))
            .await;
        proxy.reaches(&format!("web-0.web.{here}:22"), "10.9.1.1:22").await;
        proxy
            .reaches(&format!("web-1.web.{here}.svc.cluster.local:22"), "10.9.1.2:22")
            .await;
        proxy.refuses(&format!("web-2.web.{here}:22"), 403).await;
        // The pod of a StatefulSet has another address when it is back.
        ground.apply(&pods(&[("10.9.1.2", "web-0")])).await;
        proxy.reaches(&format!("web-0.web.{here}:22"), "10.9.1.2:22").await;
        proxy.refuses(&format!("web-1.web.{here}:22"), 403).await;
    });
}

#[test]
fn changes_are_followed_and_a_removed_service_ends_its_tunnels() {
    cluster::run(&[], async |ground| {
        let (proxy, here) = (&ground.proxy, ground.here.as_str());
        let authority = format!("svc.{here}:22");
        ground.apply(&slice(here, "svc", &["10.9.1.1"])).await;
        let started = Instant::now();
        ground.apply(&service(here, "svc")).await;
        proxy.reaches(&authority, "10.9.1.1:22").await;
        eprintln!("figure: routable {:?} after it was written", started.elapsed());
        let mut tunnel = proxy.connect(&authority).await.unwrap();
        // The port gets another name, in the Service first and in the slice then.
        let renamed = json!([{"name": "shell", "port": 22, "targetPort": 22, "protocol": "TCP"}]);
        ground
            .apply(&with(service(here, "svc"), "/spec/ports", renamed.clone()))
            .await;
        let moved = with(slice(here, "svc", &["10.9.1.2"]), "/ports/0/name", json!("shell"));
        ground.apply(&moved).await;
        proxy.reaches(&authority, "10.9.1.2:22").await;
        tunnel.echo().await.unwrap();
        // The same name elsewhere is another Service.
        ground.apply(&slice(&ground.there, "svc", &["10.9.1.3"])).await;
        ground.apply(&service(&ground.there, "svc")).await;
        proxy.reaches(&format!("svc.{}:22", ground.there), "10.9.1.3:22").await;
        proxy.reaches(&authority, "10.9.1.2:22").await;
        let unlabelled = with(
            with(service(here, "svc"), "/spec/ports", renamed),
            "/metadata/labels",
            json!({}),
        );
        ground.apply(&unlabelled).await;
        proxy.refuses(&authority, 403).await;
        tunnel.ended().await;
        proxy.reaches(&format!("svc.{}:22", ground.there), "10.9.1.3:22").await;
        ground.delete(&service(&ground.there, "svc")).await;
        proxy.refuses(&format!("svc.{}:22", ground.there), 403).await;
    });
}

#[test]
fn a_client_waits_for_a_pod_that_is_about_to_be_ready() {
    cluster::run(&[("wait_for_ready", json!("1m"))], async |ground| {
        let here = ground.here.as_str();
        let waiting = with(
            slice(here, "svc", &["10.9.1.1"]),
            "/endpoints",
            json!([endpoint("10.9.1.1", "unready")]),
        );
        ground.apply(&waiting).await;
        ground.apply(&service(here, "svc")).await;
        // Told after it, so known after it.
        ground.apply(&slice(here, "last", &["10.9.1.9"])).await;
        ground.apply(&service(here, "last")).await;
        ground.proxy.reaches(&format!("last.{here}:22"), "10.9.1.9:22").await;
        let clients = async || ground.proxy.metric("switchboard_connections_active", "").await;
        eventually("no client is connected", async || clients().await == Some(0.0)).await;
        let authority = format!("svc.{here}:22");
        let asked = ground.proxy.connect(&authority);
        let made_ready = async {
            eventually("the client waits", async || clients().await == Some(1.0)).await;
            ground.apply(&slice(here, "svc", &["10.9.1.1"])).await;
        };
        let (answer, ()) = tokio::join!(asked, made_ready);
        assert_eq!(answer.map(|tunnel| tunnel.pod), Ok("10.9.1.1:22".parse().unwrap()));
    });
}

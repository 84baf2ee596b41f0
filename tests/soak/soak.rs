//! Everything at once for minutes or hours, and every number held to what the harness knows: `make soak MINUTES=20`.
//!
//! The proxy follows a fake API server that goes away, in a network of its own, while clients type, copy, come and go,
//! are refused, and lose their targets. Every few seconds all of them pause at once, so that counts can be compared
//! exactly. Any violation makes the exit status 1.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "a load tool: a fault ends it"
)]

#[path = "../it/kubernetes/api.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod api;
mod audit;
mod connections;
#[path = "../it/kubernetes/lab.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod lab;
#[path = "../it/kubernetes/objects.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod objects;
#[path = "../it/harness/page.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod page;
#[path = "../it/kubernetes/pods.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod pods;
mod processes;
#[path = "../it/kubernetes/proxy.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod proxy;
mod report;
#[path = "../it/harness/stream.rs"]
mod stream;
mod targets;
mod traffic;
#[path = "../it/kubernetes/uplink.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod uplink;

use std::env;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::api::{Api, Cut};
use crate::audit::Audit;
use crate::connections::Connections;
use crate::lab::{API, Lab, PROXY, Program};
use crate::objects::{service, slice, with};
use crate::proxy::{Proxy, eventually, settings};
use crate::targets::{Service, Targets};
use crate::traffic::Traffic;

fn main() -> ExitCode {
    let minutes = env::args().skip(1).find_map(|argument| argument.parse::<f64>().ok());
    let Some(minutes) = minutes.filter(|minutes| (0.5..=100_000.0).contains(minutes)) else {
        eprintln!("usage: soak MINUTES, at least half a minute");
        return ExitCode::from(2);
    };
    let timeout = Duration::from_secs_f64(minutes * 60.0);
    let program = Program {
        arguments: &[&minutes.to_string()],
        timeout: timeout + Duration::from_secs(120),
        namespaces: &lab::NAMESPACES,
    };
    lab::run_program(program, async |lab| Box::pin(soak(&lab, timeout)).await);
    ExitCode::SUCCESS
}

async fn soak(lab: &Lab, timeout: Duration) {
    let api = Api::new(lab.directory(), API);
    for service in Service::ALL {
        expose(&api, service.name(), service.pod());
    }
    api.open();
    let settings = with(
        settings(&[]),
        "/allowlist/kubernetes/kubeconfig",
        api.kubeconfig().to_str().into(),
    );
    let (connections, tls) = Connections::new(lab.directory());
    let settings = with(settings, "/ssh_only", json!(true));
    let settings = with(settings, "/tls", tls);
    let listen = json!([{"address": format!("{PROXY}:8080"), "tls": "optional"}]);
    let settings = with(settings, "/listen", listen);
    let targets = Arc::new(Targets::start());
    let proxy = Arc::new(Proxy::start(lab, &settings).await);
    eventually("the proxy is ready", async || proxy.is_ready().await).await;
    let traffic = Arc::new(Traffic::new(connections));
    traffic.knows_all().await;
    let mut audit = Audit::new((&proxy, &targets), &traffic, timeout);
    let clients = traffic.start();
    let failing = async { tokio::join!(outages(&api, &traffic), restarts(&proxy, &targets, &traffic)) };
    tokio::select! {
        _ = failing => unreachable!("they go on"),
        () = watch(&mut audit, timeout) => {}
    }
    // Each client finishes what it does, and then all leave.
    traffic.end(clients).await;
    let report = audit.finish().await;
    println!("{report}");
    fs::write(lab.directory().join("report"), report.to_string()).unwrap();
    assert!(report.holds(), "what does not hold is marked");
}

/// Compares every few seconds, until the time is over.
async fn watch(audit: &mut Audit<'_>, timeout: Duration) {
    let started = Instant::now();
    let mut ticks = interval(BETWEEN_CHECKS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while started.elapsed() < timeout {
        ticks.tick().await;
        audit.check().await;
    }
}

/// The API server goes away, comes back with news, and cuts watches.
async fn outages(api: &Api, traffic: &Traffic) -> ! {
    for number in 1_u64.. {
        sleep(BETWEEN_OUTAGES).await;
        let news = format!("news-{number}");
        api.close().await;
        expose(api, &news, Service::News.pod());
        sleep(OUTAGE).await;
        api.open();
        let back = Instant::now();
        traffic.reaches(&news).await;
        traffic.outage_over(back.elapsed());
        api.delete(&service("soak", &news));
        api.cut(if number.is_multiple_of(2) {
            Cut::MidLine
        } else {
            Cut::Garbage
        });
    }
    unreachable!("there is always another number")
}

/// A pod dies with all its connections, and another one replaces it a moment later.
async fn restarts(proxy: &Proxy, targets: &Targets, traffic: &Traffic) -> ! {
    loop {
        sleep(BETWEEN_RESTARTS).await;
        // The number of bytes lost in flight would be unknown.
        let quiet = traffic.quiet().await;
        targets.kill(Service::Restarting).await;
        eventually("its tunnels end", async || {
            proxy.metric("switchboard_tunnels_active", "\"restarting\"").await == Some(0.0)
        })
        .await;
        // Over HTTP/2 a client can write until it learns of the end, and those bytes would be lost.
        eventually("its clients know", async || traffic.open_to(Service::Restarting) == 0).await;
        drop(quiet);
        sleep(AWAY).await;
        targets.revive(Service::Restarting);
    }
}

fn expose(api: &Api, name: &str, pod: &str) {
    api.put(slice("soak", name, &[pod]));
    api.put(service("soak", name));
}

const BETWEEN_CHECKS: Duration = Duration::from_secs(5);
const BETWEEN_OUTAGES: Duration = Duration::from_secs(20);
const OUTAGE: Duration = Duration::from_secs(4);
const BETWEEN_RESTARTS: Duration = Duration::from_secs(13);
const AWAY: Duration = Duration::from_secs(1);

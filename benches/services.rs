//! Figures of a cluster of 10,000 Services: the time of the first list, the time from an event to a routable name, the memory
//! of a target and of the slices of Services without the label, and the tunnels that other Services lose in a churn of
//! 2,000.
//!
//! `cargo bench --bench services [-- SERVICES]`. It runs the real binary against an API server with nothing but lists in
//! pages and watches. It prints one line for each figure, and exits with 1 if one exceeds its bound.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a bench that cannot run has failed, and prints what it found"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::bounds::bound;
use self::http::{answer_watch, free_address, get, number};

#[path = "support/bounds.rs"]
mod bounds;
#[path = "support/http.rs"]
mod http;

fn main() -> ExitCode {
    let count = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(10_000);
    let cluster = |count, unlabelled| Cluster {
        count,
        unlabelled,
        pod: None,
    };
    let memory_of = |cluster| {
        let run = Run::new(cluster);
        thread::sleep(SETTLE);
        run.resident()
    };
    let bytes_each =
        |memory: u64, less: u64, each: u64| 1024.0 * memory.saturating_sub(less) as f64 / each.max(1) as f64;
    let idle_memory = memory_of(cluster(0, 0));
    let unlabelled = memory_of(cluster(0, UNLABELLED));
    println!(
        "memory of a Service without the label: {:.0} B",
        bytes_each(unlabelled, idle_memory, UNLABELLED)
    );
    let both = memory_of(cluster(count, UNLABELLED));
    let run = Run::new(cluster(count, 0));
    println!("first list of {count} Services and their slices: {:.2?}", run.synced);
    bound("first list: 2 s", run.synced <= Duration::from_secs(2));
    thread::sleep(SETTLE);
    let of_target = bytes_each(run.resident(), idle_memory, count);
    println!(
        "memory of a target: {of_target:.0} B ({idle_memory} KiB with none), beside {UNLABELLED} Services without the label: {:.0} B",
        bytes_each(both, unlabelled, count),
    );
    bound("memory of a target: 1,500 B", of_target <= 1500.0);
    let mut waits: Vec<Duration> = (0..EVENTS).map(|index| run.event_to_routable(index)).collect();
    waits.sort();
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let index = ((waits.len() - 1) as f64 * share) as usize;
        println!("event to routable {name}: {:.2?}", waits[index]);
        if name == "p99" {
            bound(
                "event to routable p99: 20 ms",
                waits[index] <= Duration::from_millis(20),
            );
        }
    }
    drop(run);
    churn();
    bounds::status()
}

/// 200 tunnels over 4 Services, while 2,000 others come, change and go.
fn churn() {
    let pod = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = pod.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in pod.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = stream.try_clone().unwrap();
            // An error ends the connection, as the tunnel's end does.
            thread::spawn(move || std::io::copy(&mut reader, &mut stream).ok());
        }
    });
    let run = Run::new(Cluster {
        count: 4,
        unlabelled: 0,
        pod: Some(port),
    });
    let mut tunnels: Vec<TcpStream> = (0..200).map(|index| run.tunnel(index % 4)).collect();
    let name = |index| format!("churn-{index}");
    let began = Instant::now();
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        for index in 0..CHURN {
            let object = service(&name(index), "bench", 2_000_000 + index);
            run.server.send(&json!({"type": kind, "object": object}));
        }
        let expected = if kind == "DELETED" { 403 } else { 503 };
        let last = format!("{}.bench.ssh.example.com:22", name(CHURN - 1));
        while status_of(run.public, &last) != expected {
            assert!(began.elapsed() < Duration::from_secs(60), "{last} is not {kind}");
        }
    }
    let took = began.elapsed();
    let lost = tunnels
        .iter_mut()
        .filter_map(|tunnel| echo(tunnel).is_none().then_some(()))
        .count();
    println!("churn of {CHURN} Services in {took:.2?}: tunnels of others lost: {lost} of 200");
    bound("lost tunnels of others: 0", lost == 0);
}

/// The Services of the server.
#[derive(Clone, Copy)]
struct Cluster {
    count: u64,
    /// The number of further Services, of which only the slices are listed.
    unlabelled: u64,
    /// The port of all pods on the loopback address; `None` for pods that cannot be reached.
    pod: Option<u16>,
}

/// A proxy and the API server that it follows.
struct Run {
    proxy: Child,
    server: Server,
    public: SocketAddr,
    synced: Duration,
    _directory: tempfile::TempDir,
}

impl Run {
    fn new(cluster: Cluster) -> Self {
        let server = Server::start(cluster);
        let directory = tempfile::tempdir().unwrap();
        let path = |name| directory.path().join(name).display().to_string();
        let (public, admin) = (free_address(), free_address());
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": format!("http://{}", server.address)}}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        });
        fs::write(path("kubeconfig"), kubeconfig.to_string()).unwrap();
        let config = json!({
            "listen": [public.to_string()], "admin": admin.to_string(),
            "allowlist": {"kubernetes": {
                "enabled": true, "kubeconfig": path("kubeconfig"), "wait_for_ready": "0s",
                "public_suffixes": ["ssh.example.com"],
                "allowed_cidrs": cluster.pod.map_or(json!([]), |_| json!(["127.0.0.0/8"])),
            }},
        });
        fs::write(path("config"), config.to_string()).unwrap();
        let began = Instant::now();
        let proxy = Command::new(env!("CARGO_BIN_EXE_switchboard"))
            .args(["serve", "--log", "warn", "--config", &path("config")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut run = Self {
            proxy,
            server,
            public,
            synced: Duration::ZERO,
            _directory: directory,
        };
        while !get(admin, "/readyz").is_some_and(|page| page.starts_with("HTTP/1.1 200")) {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the proxy does not get ready"
            );
            thread::sleep(Duration::from_millis(2));
        }
        run.synced = run.server.asked().elapsed();
        run
    }

    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.proxy.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Opens a tunnel, and sends a line through it and back.
    fn tunnel(&self, index: u64) -> TcpStream {
        let mut stream = TcpStream::connect(self.public).unwrap();
        let authority = format!("svc-{index}.team-{index}.ssh.example.com:22");
        write!(stream, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        echo(&mut stream).unwrap();
        stream
    }

    /// The time from the event of a new Service to its route. The Service has no endpoints, so the status is 503 once it is
    /// known, and 403 before.
    fn event_to_routable(&self, index: u64) -> Duration {
        let name = format!("new-{index}");
        let event = json!({"type": "ADDED", "object": service(&name, "bench", 1_000_000 + index)});
        let began = Instant::now();
        self.server.send(&event);
        let authority = format!("{name}.bench.ssh.example.com:22");
        while status_of(self.public, &authority) == 403 {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "{authority} does not become routable"
            );
        }
        began.elapsed()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.proxy.kill().unwrap();
        self.proxy.wait().unwrap();
    }
}

/// Serves pages that are made beforehand, and sends events to the watches of Services.
struct Server {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    services: Vec<String>,
    slices: Vec<String>,
    watchers: Mutex<Vec<Sender<String>>>,
    asked: Mutex<Option<Instant>>,
}

impl Server {
    fn start(cluster: Cluster) -> Self {
        let Cluster { count, unlabelled, pod } = cluster;
        let name = |index: u64| (format!("svc-{index}"), format!("team-{}", index % 100));
        let state = Arc::new(State {
            services: (0..count)
                .map(|index| service(&name(index).0, &name(index).1, index).to_string())
                .collect(),
            slices: (0..count + unlabelled)
                .map(|index| slice(&name(index).0, &name(index).1, index, pod).to_string())
                .collect(),
            watchers: Mutex::default(),
            asked: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&shared);
                thread::spawn(move || state.serve(stream.unwrap()));
            }
        });
        Self { address, state }
    }

    fn asked(&self) -> Instant {
        self.state.asked.lock().unwrap().unwrap()
    }

    fn send(&self, event: &Value) {
        let mut watchers = self.state.watchers.lock().unwrap();
        watchers.retain(|watcher| watcher.send(event.to_string()).is_ok());
        assert!(!watchers.is_empty(), "there is no watch");
    }
}

impl State {
    /// Serves one connection; `None` at its end.
    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut head = Vec::new();
        let mut byte = [0];
        loop {
            head.clear();
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).ok()?;
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let target = head.split(' ').nth(1)?;
            if target.contains("watch=true") {
                let (sender, events) = channel();
                if target.contains("/services") {
                    self.watchers.lock().unwrap().push(sender);
                }
                return answer_watch(&mut stream, &events, number(target, "timeoutSeconds")?);
            }
            self.asked.lock().unwrap().get_or_insert_with(Instant::now);
            let all = if target.contains("/services") {
                &self.services
            } else {
                &self.slices
            };
            let from = number(target, "continue").unwrap_or_default();
            let page = number(target, "limit").unwrap_or(u64::MAX).min(all.len() as u64 - from);
            let next = from + page;
            let more = if next < all.len() as u64 {
                next.to_string()
            } else {
                String::new()
            };
            let items = all[from as usize..next as usize].join(",");
            let body = format!(r#"{{"metadata":{{"resourceVersion":"1","continue":"{more}"}},"items":[{items}]}}"#);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).ok()?;
            stream.write_all(body.as_bytes()).ok()?;
        }
    }
}

/// A Service of the size of one made by `kubectl apply`.
fn service(name: &str, namespace: &str, index: u64) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "resourceVersion": index.to_string(),
            "uid": format!("00000000-0000-0000-0000-{index:012}"), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": name, "switchboard.dev/expose": "true"},
            "annotations": {"switchboard.dev/download": "10MiB/s", "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(400)},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:ports": "x".repeat(400)}}}],
        },
        "spec": {
            "clusterIP": "10.96.0.1", "type": "ClusterIP", "selector": {"app": name},
            "ports": [{"name": "ssh", "port": 22, "targetPort": "ssh", "protocol": "TCP"}],
        },
    })
}

fn slice(name: &str, namespace: &str, index: u64, pod: Option<u16>) -> Value {
    let remote = format!("10.{}.{}.{}", index >> 16 & 255, index >> 8 & 255, index & 255);
    let address = pod.map_or(remote, |_| "127.0.0.1".to_owned());
    json!({
        "metadata": {
            "name": format!("{name}-abcde"), "namespace": namespace, "resourceVersion": index.to_string(),
            "labels": {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "controller"},
            "managedFields": [{"manager": "controller", "fieldsV1": {"f:endpoints": "x".repeat(400)}}],
        },
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "name": format!("{name}-0"), "namespace": namespace}, "nodeName": "node",
        }],
        "ports": [{"name": "ssh", "port": pod.unwrap_or(2222), "protocol": "TCP"}],
    })
}

fn echo(tunnel: &mut TcpStream) -> Option<()> {
    let line = b"SSH-2.0-bench\r\n";
    tunnel.write_all(line).ok()?;
    let mut came = [0; 15];
    tunnel.read_exact(&mut came).ok()?;
    (came == *line).then_some(())
}

fn status_of(proxy: SocketAddr, authority: &str) -> u16 {
    let mut stream = TcpStream::connect(proxy).unwrap();
    write!(stream, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

const UNLABELLED: u64 = 10_000;
const EVENTS: u64 = 1000;
const CHURN: u64 = 2000;
/// Time for the proxy to return the memory that it needed to read the lists.
const SETTLE: Duration = Duration::from_secs(3);

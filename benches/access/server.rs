//! An API server with 2,000 Services, the two reviews, and watches of roles and bindings.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{answer_watch, number};

/// The server, and what the bench changes of it.
pub struct Server {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    /// The port of every Service's one endpoint.
    pod: u16,
    bindings: Mutex<Vec<Sender<String>>>,
    /// Pairs of user and namespace that are denied.
    denied: Mutex<HashSet<(String, String)>>,
    reviews: AtomicU64,
    /// Nanoseconds from the end of a review's request to its answer, of all reviews together.
    answering: AtomicU64,
    at_once: AtomicU64,
    most_at_once: AtomicU64,
}

impl Server {
    pub fn start(pod: u16) -> Self {
        let state = Arc::new(State {
            pod,
            bindings: Mutex::default(),
            denied: Mutex::default(),
            reviews: AtomicU64::new(0),
            answering: AtomicU64::new(0),
            at_once: AtomicU64::new(0),
            most_at_once: AtomicU64::new(0),
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

    /// The number of reviews, and the time that their answers took, since the start.
    pub fn reviews(&self) -> (u64, Duration) {
        let nanoseconds = self.state.answering.load(Ordering::SeqCst);
        (
            self.state.reviews.load(Ordering::SeqCst),
            Duration::from_nanos(nanoseconds),
        )
    }

    /// The most reviews at once since this was asked last.
    pub fn most_at_once(&self) -> u64 {
        self.state.most_at_once.swap(0, Ordering::SeqCst)
    }

    /// Denies the user everything in the namespace, and tells the watches of RoleBindings that one is gone.
    pub fn deny(&self, user: &str, namespace: &str) {
        let pair = (user.to_owned(), namespace.to_owned());
        self.state.denied.lock().unwrap().insert(pair);
        let event = json!({"type": "DELETED", "object": {
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"name": user, "namespace": namespace, "uid": "b", "resourceVersion": "2"},
        }});
        let mut watchers = self.state.bindings.lock().unwrap();
        watchers.retain(|watcher| watcher.send(event.to_string()).is_ok());
        assert!(!watchers.is_empty(), "there is no watch of RoleBindings");
    }
}

impl State {
    /// Serves one connection; `None` at its end.
    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut buffer = Vec::new();
        loop {
            let head = head(&mut stream, &mut buffer)?;
            let target = head.split(' ').nth(1)?.to_owned();
            if target.contains("watch=true") {
                let (sender, events) = channel();
                if target.contains("/rolebindings") {
                    self.bindings.lock().unwrap().push(sender);
                }
                answer_watch(&mut stream, &events, number(&target, "timeoutSeconds")?)?;
                continue;
            }
            let lower = head.to_ascii_lowercase();
            let length = lower.split("content-length: ").nth(1);
            let length = length
                .and_then(|rest| rest.split("\r\n").next()?.parse().ok())
                .unwrap_or(0);
            while buffer.len() < length {
                more(&mut stream, &mut buffer)?;
            }
            let body: Vec<u8> = buffer.drain(..length).collect();
            let answer = match target.split('?').next()? {
                path if path.ends_with("reviews") => self.review(&body),
                path if path.ends_with("/services") => list((0..SERVICES).map(service)),
                path if path.ends_with("/endpointslices") => list((0..SERVICES).map(|index| slice(index, self.pod))),
                _ => list(std::iter::empty()),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            stream.write_all((head + &answer).as_bytes()).ok()?;
        }
    }

    /// A token `user-7.anything` is that of `user-7`; every other one is that of no user.
    fn review(&self, body: &[u8]) -> String {
        let began = Instant::now();
        let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(at_once, Ordering::SeqCst);
        self.reviews.fetch_add(1, Ordering::SeqCst);
        // The time that a real one takes.
        thread::sleep(Duration::from_millis(1));
        let mut review: Value = serde_json::from_slice(body).unwrap();
        let spec = &review["spec"];
        review["status"] = if let Some(token) = spec["token"].as_str() {
            match token.strip_prefix("user-").and_then(|rest| rest.split('.').next()) {
                Some(number) => json!({
                    "authenticated": true, "audiences": ["switchboard"],
                    "user": {"username": format!("user-{number}"), "groups": ["system:authenticated"]},
                }),
                None => json!({"authenticated": false, "error": "invalid bearer token"}),
            }
        } else {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let pair = (text(&spec["user"]), text(&spec["resourceAttributes"]["namespace"]));
            let is_denied = self.denied.lock().unwrap().contains(&pair);
            json!({"allowed": !is_denied, "reason": "RBAC: allowed by RoleBinding \"ssh/team\""})
        };
        let answer = review.to_string();
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap();
        self.answering.fetch_add(took, Ordering::SeqCst);
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

/// The name that clients ask for.
pub fn authority(index: u64) -> String {
    format!("svc-{index}.team-{index}:22")
}

fn list(items: impl Iterator<Item = Value>) -> String {
    json!({"metadata": {"resourceVersion": "1"}, "items": items.collect::<Vec<_>>()}).to_string()
}

fn service(index: u64) -> Value {
    json!({
        "metadata": {
            "name": format!("svc-{index}"), "namespace": format!("team-{index}"), "resourceVersion": "1",
            "uid": format!("00000000-0000-0000-0000-{index:012}"), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"switchboard.dev/expose": "true"},
        },
        "spec": {"clusterIP": "10.96.0.1", "type": "ClusterIP", "ports": [{"name": "ssh", "port": 22, "protocol": "TCP"}]},
    })
}

fn slice(index: u64, pod: u16) -> Value {
    let name = format!("svc-{index}");
    json!({
        "metadata": {
            "name": format!("{name}-abcde"), "namespace": format!("team-{index}"), "resourceVersion": "1",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}],
        "ports": [{"name": "ssh", "port": pod, "protocol": "TCP"}],
    })
}

/// Reads a request head; what came behind it stays in the buffer.
fn head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = buffer.drain(..end + 4).collect();
            return String::from_utf8(head).ok();
        }
        more(stream, buffer)?;
    }
}

fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0; 4096];
    let read = stream.read(&mut chunk).ok()?;
    buffer.extend(&chunk[..read]);
    (read > 0).then_some(())
}

/// Services, each in a namespace of its own.
pub const SERVICES: u64 = 400;

//! `switchboard desk`, and a page of it in a browser; a replica with made-up tunnels, where thousands are needed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::browser::Browser;
use crate::harness::process::{Process, switchboard};

/// The program, and the address that it has printed.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) process: Process,
    pub(super) url: String,
}

impl Desk {
    /// A desk for those replicas.
    pub(super) fn of(replicas: &[SocketAddr]) -> Self {
        // A replica that answers within the usual deadline on a machine at rest takes longer on a busy one.
        let mut arguments = ["desk", "--timeout", "60s"].map(ToOwned::to_owned).to_vec();
        for replica in replicas {
            arguments.extend(["--admin".to_owned(), replica.to_string()]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut process = Process::spawn(switchboard(&arguments));
        let url = process.stdout.next().unwrap();
        Self { process, url }
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.parts().0.parse().unwrap()
    }

    /// Its secret.
    pub(super) fn secret(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        self.url.strip_prefix("http://").unwrap().split_once("/#").unwrap()
    }

    /// Its page in a new browser, once it shows an answer.
    pub(super) fn page(&self) -> Browser {
        let browser = Browser::start(1280, 720);
        browser.open(&self.url);
        browser.waits("document.body.dataset.answers > 0");
        browser
    }
}

/// An admin port with these answers, for as long as the test process runs.
#[derive(Clone, Debug)]
pub(super) struct Pretender {
    pub(super) address: SocketAddr,
    tunnels: Arc<Mutex<List>>,
    targets: Arc<Mutex<List>>,
}

/// The items of a list, and the JSON of each: thousands are not written again for each answer.
#[derive(Debug, Default)]
struct List {
    values: Vec<Value>,
    texts: Vec<String>,
}

impl From<Vec<Value>> for List {
    fn from(values: Vec<Value>) -> Self {
        let texts = values.iter().map(Value::to_string).collect();
        Self { values, texts }
    }
}

impl Pretender {
    /// A replica with these tunnels and targets.
    pub(super) fn start(tunnels: Vec<Value>, targets: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pretender = Self {
            address: listener.local_addr().unwrap(),
            tunnels: Arc::new(Mutex::new(tunnels.into())),
            targets: Arc::new(Mutex::new(targets.into())),
        };
        let serving = pretender.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A desk that has ended reads no answer.
                serving.answer(stream).unwrap_or_default();
            }
        });
        pretender
    }

    /// Changes its tunnels.
    pub(super) fn change(&self, change: impl FnOnce(&mut Vec<Value>)) {
        let mut tunnels = self.tunnels.lock().unwrap();
        change(&mut tunnels.values);
        *tunnels = std::mem::take(&mut tunnels.values).into();
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines().map_while(Result::ok);
        let request = lines.next().unwrap_or_default();
        while lines.next().is_some_and(|line| !line.is_empty()) {}
        let path = request.split(' ').nth(1).unwrap_or_default();
        let query = |name: &str| {
            let mut pairs = path.split(['?', '&']).filter_map(|pair| pair.split_once('='));
            pairs
                .find(|(own, _)| *own == name)
                .map(|(_, value)| value.parse::<usize>().unwrap())
        };
        let part = |list: &List, name: &str| {
            let texts = &list.texts;
            // Fewer since the part before.
            let from = query("cursor").unwrap_or(0).min(texts.len());
            let to = (from + query("limit").unwrap_or(100)).min(texts.len());
            let next = json!((to < texts.len()).then(|| to.to_string()));
            let (items, total) = (texts[from..to].join(","), texts.len());
            format!(r#"{{"{name}":[{items}],"total":{total},"next":{next}}}"#)
        };
        let body = match path.split('?').next().unwrap() {
            "/tunnels" => Some(part(&self.tunnels.lock().unwrap(), "tunnels")),
            "/targets" => Some(part(&self.targets.lock().unwrap(), "targets")),
            "/drain" => Some(json!({"phase": "serving", "tunnels": 1, "resumable": 0, "connections": 1}).to_string()),
            _ => None,
        };
        let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
        let body = body.unwrap_or_else(|| json!({"error": "none"}).to_string());
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    }
}

/// A tunnel of a pretender.
pub(super) fn tunnel(number: usize) -> Value {
    let users = ["alice", "bob", "carol", "dave", "erin", "frank", ""];
    let services = ["devbox", "gpu-box", "notebook", "build", "jump"];
    let namespaces = ["team-a", "team-b", "research"];
    let is_busy = number.is_multiple_of(3);
    let age = 60_000 + (number as u64 * 7_919_000) % 90_000_000;
    let software = "OpenSSH_9.6p1 Ubuntu-3ubuntu13";
    let of = |names: &[&str], step: usize| names[number / step % names.len()].to_owned();
    json!({
        "tunnel_id": format!("0005a1c2-{number:x}"),
        "since": time_before(age), "age_ms": age, "idle_ms": if is_busy { 20 } else { age / 9 },
        "is_active": is_busy, "last_active": time_before(if is_busy { 20 } else { age / 9 }), "upstream.anchor": "",
        "client.address": format!("198.51.{}.{}", 100 + number / 200 % 50, 1 + number % 200), "client.port": 30_000 + number % 30_000,
        "network.peer.address": "192.0.2.7", "client.software": software, "user.name": of(&users, 1),
        "http.version": "1", "tls.version": "1.3",
        "server.address": of(&services, 1), "server.port": 22, "target.namespace": of(&namespaces, 5), "target.service": of(&services, 1),
        "upstream.address": format!("10.42.{}.{}:22", number % 9, 1 + number % 250), "upstream.node": format!("node-{}", number % 9),
        "upstream.software": "OpenSSH_9.2p1", "tunnel.resumable": number.is_multiple_of(4),
        "bytes_sent": number * 917_503 % 9_000_000_000, "bytes_received": number * 17_503 % 90_000_000,
        "sent_per_second": if is_busy { (number * 31_337) % 4_000_000 } else { 0 },
        "received_per_second": if is_busy { (number * 3_137) % 90_000 } else { 0 },
        "download": {"rate": "20MiB/s", "is_own": false, "waited_ms": 1200},
        "upload": {"rate": "unlimited", "is_own": false, "waited_ms": 0},
    })
}

/// A target of a pretender.
pub(super) fn target(namespace: &str, service: &str, ready: u32, is_cordoned: bool) -> Value {
    json!({
        "target.namespace": namespace, "target.service": service, "endpoints_ready": ready, "endpoints": 2,
        "addresses": ["10.42.1.7:22", "10.42.3.9:22"], "nodes": [], "is_cordoned": is_cordoned, "tunnels": 12,
    })
}

/// The time so many milliseconds ago.
fn time_before(ago: u64) -> String {
    humantime::format_rfc3339_millis(SystemTime::now() - Duration::from_millis(ago)).to_string()
}

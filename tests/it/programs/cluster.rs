//! The replicas of a cluster: pods that a scripted API server lists, and whose ports it forwards as a kubelet does.
//!
//! The protocol is that of `handleWebSocketStreams` in pkg/kubelet/cri/streaming/portforward/websocket.go of Kubernetes 1.20:
//! subprotocol v4.channel.k8s.io, two channels for each port (data, error), of which each begins with the port as two bytes,
//! little endian; an error is a text on the second one.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Pair, Said, run};
use crate::harness::ports::Ports as _;

/// The result of forwarding a pod's port.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It leads to an admin port.
    To(SocketAddr),
    /// The kubelet finds nothing that listens.
    Refused,
    /// The operator may not.
    Forbidden,
    /// The pod is Pending.
    Pending,
}

/// The API server, and the kubeconfig that leads to it.
struct Api {
    folder: TempDir,
}

impl Api {
    fn start(pods: &[(&'static str, Way)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let folder = TempDir::new().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "wrong",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", listener.local_addr().unwrap())}}],
            // In clear no token is sent.
            "users": [{"name": "u", "user": {"as": OPERATOR}}, {"name": "w", "user": {"as": "wrong"}}],
            "contexts": [
                {"name": "right", "context": {"cluster": "c", "user": "u", "namespace": "gateway"}},
                {"name": "wrong", "context": {"cluster": "c", "user": "w", "namespace": "gateway"}},
            ],
        });
        fs::write(folder.path().join("config"), kubeconfig.to_string()).unwrap();
        let pods: Arc<Vec<_>> = Arc::new(pods.to_vec());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), pods) = (stream, Arc::clone(&pods)) else {
                    return;
                };
                thread::spawn(move || serve(stream, &pods));
            }
        });
        Self { folder }
    }

    fn ask(&self, program: &[&str], context: &str) -> Said {
        let kubeconfig = self.folder.path().join("config");
        let reach = [
            "--timeout",
            "60s",
            "--context",
            context,
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
        ];
        run(&[program, &reach].concat())
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream, pods: &[(&'static str, Way)]) {
    let head = read_head(&mut stream);
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    if !head.contains(&format!("impersonate-user: {OPERATOR}\r\n")) {
        return answer(&mut stream, "401 Unauthorized", &status(401, "Unauthorized"));
    }
    if let Some(query) = target.strip_prefix("/api/v1/namespaces/gateway/pods?") {
        // It begins with the separator.
        assert_eq!(query, "&labelSelector=app.kubernetes.io%2Fname%3Dswitchboard");
        let items: Vec<_> = pods.iter().map(|(name, way)| pod(name, *way)).collect();
        return answer(&mut stream, "200 OK", &json!({"kind": "PodList", "items": items}));
    }
    let forwarded = pods.iter().find(|(name, _)| {
        let path = format!("/api/v1/namespaces/gateway/pods/{name}/portforward?");
        target.starts_with(&path) && target.ends_with("ports=9091")
    });
    match forwarded {
        Some((name, Way::Forbidden)) => {
            let said = format!("pods \"{name}\" is forbidden: User \"u\" cannot get resource \"pods/portforward\"");
            answer(&mut stream, "403 Forbidden", &status(403, &said));
        }
        Some((_, Way::To(admin))) => forward(stream, &head, Some(*admin)),
        Some((_, Way::Refused)) => forward(stream, &head, None),
        Some((_, Way::Pending)) | None => answer(&mut stream, "404 Not Found", &status(404, "not found")),
    }
}

fn pod(name: &str, way: Way) -> Value {
    let phase = if matches!(way, Way::Pending) {
        "Pending"
    } else {
        "Running"
    };
    let ports = json!([{"name": "web", "containerPort": 8080}, {"name": "metrics", "containerPort": 9091}]);
    json!({
        "metadata": {"name": name, "namespace": "gateway"},
        "spec": {"containers": [{"name": "switchboard", "ports": ports}]},
        "status": {"phase": phase},
    })
}

fn status(code: u16, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": "x",
        "code": code,
    })
}

fn answer(stream: &mut TcpStream, status: &str, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Switches to a WebSocket (RFC 6455 section 4.2.2), and carries one connection.
fn forward(mut stream: TcpStream, head: &str, admin: Option<SocketAddr>) {
    let field = |name: &str| {
        let line = head.lines().find(|line| line.to_lowercase().starts_with(name)).unwrap();
        line.split_once(": ").unwrap().1
    };
    assert!(head.starts_with("GET "), "{head}");
    assert!(field("sec-websocket-protocol").contains("v4.channel.k8s.io"), "{head}");
    let key = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", field("sec-websocket-key"));
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes()));
    let switch = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(switch.as_bytes()).unwrap();
    for channel in [DATA, ERROR] {
        send(&mut stream, channel, &9091_u16.to_le_bytes());
    }
    let Some(mut to_proxy) = admin.and_then(|admin| TcpStream::connect(admin).ok()) else {
        send(
            &mut stream,
            ERROR,
            b"error forwarding port 9091 to pod x, uid : connection \x1b[31mrefused",
        );
        // As a kubelet that does not notice: the other side must not wait for the end.
        while read_frame(&mut stream).is_some() {}
        return;
    };
    let mut from_proxy = to_proxy.try_clone().unwrap();
    let mut to_client = stream.try_clone().unwrap();
    let download = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = from_proxy.read(&mut bytes) {
            send(&mut to_client, DATA, &bytes[..length]);
        }
        to_client.write_all(&[0x80 | CLOSE, 0]).ok();
    });
    while let Some(frame) = read_frame(&mut stream) {
        if let Some((&DATA, bytes)) = frame.split_first() {
            to_proxy.write_all(bytes).ok();
        }
    }
    to_proxy.shutdown(Shutdown::Write).ok();
    download.join().unwrap();
}

/// Sends one unmasked binary frame (RFC 6455 section 5.2). The client may have left.
fn send(stream: &mut TcpStream, channel: u8, bytes: &[u8]) {
    let length = u16::try_from(bytes.len() + 1).unwrap().to_be_bytes();
    let frame = [&[0x80 | BINARY, 126][..], &length, &[channel], bytes].concat();
    stream.write_all(&frame).ok();
}

/// The payload of the next binary frame; `None` at the end.
fn read_frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    loop {
        let mut head = [0; 2];
        stream.read_exact(&mut head).ok()?;
        assert_eq!(head[1] & 0x80, 0x80, "a client masks its frames");
        let length = match head[1] & 0x7f {
            126 => {
                let mut length = [0; 2];
                stream.read_exact(&mut length).ok()?;
                usize::from(u16::from_be_bytes(length))
            }
            127 => panic!("a request is not that long"),
            length => usize::from(length),
        };
        let (mut mask, mut payload) = ([0; 4], vec![0; length]);
        stream.read_exact(&mut mask).ok()?;
        stream.read_exact(&mut payload).ok()?;
        payload
            .iter_mut()
            .zip(mask.iter().cycle())
            .for_each(|(byte, mask)| *byte ^= mask);
        match head[0] & 0xf {
            BINARY => return Some(payload),
            CLOSE => return None,
            _ => {}
        }
    }
}

#[test]
fn the_pods_of_a_cluster_are_asked_by_forwarded_ports() {
    let pair = Pair::start();
    let [first, second] = pair.all();
    let (mut ended, _service) = second.tunnel("one:22", &pair.one);
    let _kept = first.tunnel("one:22", &pair.one);
    pair.lists(2);
    let api = Api::start(&[("sb-0", Way::To(first.admin())), ("sb-1", Way::To(second.admin()))]);
    let said = api.ask(&["tunnels", "-o", "wide"], "right");
    assert_eq!((said.status, &said.stderr), (0, &Vec::new()), "{said:#?}");
    said.line("2 tunnels on 2 of 2 replicas");
    let line = said.line("sb-1").to_owned();
    let id = line.split(' ').next().unwrap();
    let closed = api.ask(&["tunnels", "close", id, "--yes"], "right");
    assert_eq!(
        closed.stdout,
        [format!("closed {id} of 127.0.0.1 to static/one:22 on sb-1")]
    );
    ended.expect_reset();
    let cordoned = api.ask(&["targets", "cordon", "static/one:22"], "right");
    assert_eq!((cordoned.status, cordoned.stdout.len()), (0, 2), "{cordoned:#?}");
}

#[test]
fn a_pod_that_cannot_be_reached_is_named() {
    let pair = Pair::start();
    let [first, _] = pair.all();
    let _open = first.tunnel("one:22", &pair.one);
    pair.lists(1);
    let api = Api::start(&[
        ("sb-0", Way::To(first.admin())),
        ("sb-1", Way::Refused),
        ("sb-2", Way::Forbidden),
        ("sb-3", Way::Pending),
    ]);
    let said = api.ask(&["tunnels"], "right");
    assert_eq!(said.status, 3, "{said:#?}");
    said.line("static/one:22");
    for words in [
        "sb-1: cannot be reached: error forwarding port 9091 to pod x, uid : connection \\u{1b}[31mrefused",
        "sb-2: cannot be reached: 403: pods \"sb-2\" is forbidden: User \"u\" cannot get resource \"pods/portforward\"",
        "sb-3: cannot be reached: the pod is Pending",
    ] {
        assert!(
            said.stderr.iter().any(|line| line.contains(words)),
            "{words}: {said:#?}"
        );
    }
    let unknown = api.ask(&["tunnels"], "wrong");
    assert_eq!(unknown.status, 1, "{unknown:#?}");
    assert!(
        unknown.stderr.join("").contains("cannot find the replicas: 401"),
        "{unknown:#?}"
    );
}

const OPERATOR: &str = "the-operator";
const DATA: u8 = 0;
const ERROR: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;

//! An API server with two Services of which one has no endpoint, and the other one takes no tunnels. It lists, and lets
//! watches wait.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::{fs, thread};

use serde_json::{Value, json};
use socket2::SockRef;

/// The server, whose threads end with it.
pub(super) struct Cluster {
    listener: TcpListener,
}

impl Cluster {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = listener.try_clone().unwrap();
        thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                thread::spawn(move || serve(&stream));
            }
        });
        Self { listener }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Wakes the accept that is under way.
        SockRef::from(&self.listener).shutdown(Shutdown::Both).unwrap();
    }
}

/// A kubeconfig for an API server at that address.
pub(super) fn kubeconfig(directory: &Path, server: SocketAddr) -> String {
    let file = directory.join(format!("kubeconfig-{}", server.port()));
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": format!("http://{server}")}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    });
    fs::write(&file, text.to_string()).unwrap();
    file.display().to_string()
}

fn serve(mut stream: &TcpStream) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while let Some(request) = lines.next() {
        lines.by_ref().find(String::is_empty);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        if request.contains("watch=true") {
            write!(stream, "{head}Transfer-Encoding: chunked\r\n\r\n").unwrap_or_default();
            continue;
        }
        let list = list(&request).to_string();
        write!(stream, "{head}Content-Length: {}\r\n\r\n{list}", list.len()).unwrap_or_default();
    }
}

fn list(request: &str) -> Value {
    let service = |name: &str, annotations: Value| {
        json!({
            "metadata": {
                "name": name, "namespace": "team-a", "uid": name, "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"switchboard.dev/expose": "true"}, "annotations": annotations,
            },
            "spec": {"ports": [{"port": 22, "protocol": "TCP"}], "type": "ClusterIP", "clusterIP": "10.0.0.1"},
        })
    };
    let (kind, version, items) = if request.contains("endpointslices") {
        ("EndpointSliceList", "discovery.k8s.io/v1", json!([]))
    } else {
        let items = [
            service("empty", json!({})),
            service("closed", json!({"switchboard.dev/max-tunnels": "0"})),
        ];
        ("ServiceList", "v1", json!(items))
    };
    json!({"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items})
}

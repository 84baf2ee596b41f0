//! The real binary, and a client of it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use socket2::{Domain, Socket, Type};

use super::http::{free_address, get};

pub struct Proxy {
    child: Child,
    public: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Proxy {
    /// A proxy that follows the server, and is ready. `mode` is that of `access`.
    pub fn start(server: SocketAddr, mode: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name| directory.path().join(name).display().to_string();
        let (public, admin) = (free_address(), free_address());
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": format!("http://{server}")}}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        });
        fs::write(path("kubeconfig"), kubeconfig.to_string()).unwrap();
        fs::write(path("users"), USERS).unwrap();
        let unlimited = json!({"max_tunnels": "unlimited"});
        let config = json!({
            "listen": [public.to_string()], "admin": admin.to_string(), "ssh_only": false,
            "limits": {
                "client": {"max_tunnels": "unlimited", "connects_per_second": "unlimited", "max_unfinished": "unlimited"},
                "user": unlimited,
            },
            "allowlist": {"kubernetes": {
                "enabled": true, "kubeconfig": path("kubeconfig"), "allowed_cidrs": ["127.0.0.0/8"],
            }},
            "access": {"mode": mode, "kubernetes": {"enabled": true}, "users": {"file": path("users")}},
        });
        fs::write(path("config"), config.to_string()).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_switchboard"))
            .args(["serve", "--log", "warn", "--config", &path("config")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let proxy = Self {
            child,
            public,
            _directory: directory,
        };
        let began = Instant::now();
        while !get(admin, "/readyz").is_some_and(|page| page.starts_with("HTTP/1.1 200")) {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the proxy does not get ready"
            );
            thread::sleep(Duration::from_millis(2));
        }
        proxy
    }

    /// Opens a tunnel from 127.0.0.1.
    pub fn tunnel(&self, authority: &str, token: Option<&str>) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.public)?;
        let (stream, status) = ask(stream, authority, &bearer(token))?;
        assert_eq!(status, 200, "{authority}");
        Ok(stream)
    }

    /// The status of a request with a token from that host of 127.0.0.0/8; `None` when there is no answer.
    pub fn status(&self, host: u64, authority: &str, token: Option<&str>) -> Option<u16> {
        self.answer(host, authority, &bearer(token))
    }

    /// The same with a user and a password.
    pub fn login(&self, host: u64, authority: &str, user: &str, password: &str) -> Option<u16> {
        let credential = STANDARD.encode(format!("{user}:{password}"));
        self.answer(host, authority, &format!("Proxy-Authorization: Basic {credential}\r\n"))
    }

    fn answer(&self, host: u64, authority: &str, credential: &str) -> Option<u16> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let source = Ipv4Addr::from_bits(0x7f00_0000 + u32::try_from(host).unwrap());
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        socket.connect(&self.public.into()).ok()?;
        ask(socket.into(), authority, credential).ok().map(|(_, status)| status)
    }

    /// The processor time that the process has used.
    pub fn processor_time(&self) -> Duration {
        let mut nanoseconds = 0;
        // Of each thread: the process's own file counts in hundredths of a second.
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap() {
            let text = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
            nanoseconds += text.split(' ').next().unwrap().parse::<u64>().unwrap();
        }
        Duration::from_nanos(nanoseconds)
    }

    /// Resident memory in KiB.
    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The field of a token.
fn bearer(token: Option<&str>) -> String {
    token.map_or(String::new(), |token| {
        format!("Proxy-Authorization: Bearer {token}\r\n")
    })
}

fn ask(mut stream: TcpStream, authority: &str, credential: &str) -> io::Result<(TcpStream, u16)> {
    let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{credential}\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    let mut chunk = [0; 1024];
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        let read = stream.read(&mut chunk)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend(&chunk[..read]);
    }
    let status = String::from_utf8_lossy(&answer)
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    status
        .map(|status| (stream, status))
        .ok_or(io::ErrorKind::InvalidData.into())
}

/// The password is `correct`: made by htpasswd(1) with a cost of 10.
const USERS: &str = "alice:$2y$10$lPR00T8PO0e0CsucVF5uE.tKCDBkVUVMSAMixGUZ9VmBf5Wexoj9W\n";

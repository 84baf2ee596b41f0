//! The real binary in its namespace: its log, its metrics, and clients that ask it for tunnels.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use super::lab::{Lab, PROXY};
use super::pods::FLOOD;

/// A running proxy. Its log is printed when the test fails.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: Mutex<Child>,
    messages: Arc<Mutex<String>>,
    access: Arc<Mutex<String>>,
}

/// The refusal of a CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) phrase: String,
}

/// A tunnel to a pod.
#[derive(Debug)]
pub(crate) struct Tunnel {
    stream: BufStream<TcpStream>,
    /// The address at which the pod says that it was reached.
    pub(crate) pod: SocketAddr,
    /// The lines of the answer after the status.
    pub(crate) fields: Vec<String>,
}

impl Proxy {
    /// Starts it with that `allowlist.kubernetes` over the usual settings, and waits for its ports.
    pub(crate) async fn start(lab: &Lab, settings: &Value) -> Self {
        Self::start_logging(lab, settings, "info,switchboard=debug").await
    }

    /// The same with that filter of its messages.
    pub(crate) async fn start_logging(lab: &Lab, settings: &Value, filter: &str) -> Self {
        let config = lab.directory().join("switchboard.yaml");
        // JSON is YAML too.
        fs::write(&config, settings.to_string()).unwrap();
        let mut child = lab
            .beside_proxy(env!("CARGO_BIN_EXE_switchboard"))
            .args(["serve", "--log", filter, "--config"])
            .arg(&config)
            .env("POD_NAME", "switchboard-0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let proxy = Self {
            messages: collected(child.stderr.take().unwrap()),
            access: collected(child.stdout.take().unwrap()),
            child: Mutex::new(child),
        };
        eventually("the proxy serves", async || {
            proxy.page("/livez").await.is_some_and(|(status, _)| status == 200)
        })
        .await;
        proxy
    }

    /// Ends it, as a machine that fails does.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.lock().unwrap().id()
    }

    /// Its messages so far.
    pub(crate) fn messages(&self) -> String {
        self.messages.lock().unwrap().clone()
    }

    /// The lines of the tunnels that have ended.
    pub(crate) fn access(&self) -> Vec<Value> {
        let access = self.access.lock().unwrap();
        access.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns whether `/readyz` says so.
    pub(crate) async fn is_ready(&self) -> bool {
        self.page("/readyz").await.is_some_and(|(status, _)| status == 200)
    }

    /// The sum of a metric over all label sets that contain this text, such as `kind="expired"`.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> Option<f64> {
        let (_, page) = self.page("/metrics").await?;
        let series = page.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let rest = series.strip_prefix(name)?;
            let is_meant = (rest.is_empty() || rest.starts_with('{')) && rest.contains(labels);
            is_meant.then(|| value.parse::<f64>().unwrap())
        });
        series.reduce(|sum, value| sum + value)
    }

    /// One page of the admin port, with its head.
    pub(crate) async fn page(&self, path: &str) -> Option<(u16, String)> {
        self.ask_admin("GET", path).await
    }

    /// The answer of the admin port, with its head.
    pub(crate) async fn ask_admin(&self, method: &str, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect((PROXY, ADMIN_PORT)).await.ok()?;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut text = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut text))
            .await
            .unwrap()
            .ok()?;
        let status = text.split(' ').nth(1)?.parse().ok()?;
        Some((status, text))
    }

    /// One CONNECT.
    pub(crate) async fn connect(&self, authority: &str) -> Result<Tunnel, Refused> {
        self.connect_with(authority, "").await
    }

    /// One CONNECT with further fields, each with its line end.
    pub(crate) async fn connect_with(&self, authority: &str, fields: &str) -> Result<Tunnel, Refused> {
        self.connect_from(None, authority, fields).await
    }

    /// The same from that address of ours.
    pub(crate) async fn connect_from(
        &self,
        from: Option<IpAddr>,
        authority: &str,
        fields: &str,
    ) -> Result<Tunnel, Refused> {
        let answered = timeout(PATIENCE, connect(from, authority, fields)).await;
        answered.unwrap_or_else(|_| panic!("no answer to CONNECT {authority}"))
    }

    /// Waits until that name leads there.
    pub(crate) async fn reaches(&self, authority: &str, pod: &str) {
        let pod: SocketAddr = pod.parse().unwrap();
        eventually(&format!("{authority} leads to {pod}"), async || {
            self.connect(authority).await.is_ok_and(|tunnel| tunnel.pod == pod)
        })
        .await;
    }

    /// Waits until that name is answered so.
    pub(crate) async fn refuses(&self, authority: &str, status: u16) -> Refused {
        let mut last = None;
        eventually(&format!("{authority} is refused with {status}"), async || {
            last = self.connect(authority).await.err();
            last.as_ref().is_some_and(|refused| refused.status == status)
        })
        .await;
        last.unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("--- the proxy, process {}, said:\n{}\n---", self.id(), self.messages());
        }
    }
}

impl Tunnel {
    /// The client's end of it.
    pub(crate) fn client(&self) -> SocketAddr {
        self.stream.get_ref().local_addr().unwrap()
    }

    /// Sends a line and waits for it to come back; answers with how long that took.
    pub(crate) async fn echo(&mut self) -> std::io::Result<Duration> {
        let started = Instant::now();
        self.stream.write_all(b"keystroke\n").await?;
        self.stream.flush().await?;
        let mut line = String::new();
        timeout(PATIENCE, self.stream.read_line(&mut line)).await.unwrap()?;
        match line.as_str() {
            "keystroke\n" => Ok(started.elapsed()),
            _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) {
        let mut rest = Vec::new();
        // A reset is an end too.
        timeout(PATIENCE, self.stream.read_to_end(&mut rest))
            .await
            .unwrap()
            .ok();
    }

    /// Asks the pod to send without an end.
    pub(crate) async fn flood(&mut self) {
        self.stream.write_all(FLOOD.as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The bytes received a second, measured over that time.
    pub(crate) async fn rate(&mut self, window: Duration) -> f64 {
        let started = Instant::now();
        let mut buffer = vec![0; 64 * 1024];
        let mut received = 0_u32;
        let read = async {
            loop {
                received += u32::try_from(self.stream.read(&mut buffer).await.unwrap()).unwrap();
            }
        };
        // It never completes: the window does.
        timeout(window, read).await.unwrap_err();
        f64::from(received) / started.elapsed().as_secs_f64()
    }
}

/// Waits for a condition by asking again and again.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    within(PATIENCE, what, async || is_so().await).await;
}

/// The same with a bound of its own; answers with how long it took.
pub(crate) async fn within(bound: Duration, what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < bound, "not within {bound:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}

/// The settings of every test, with these keys of `allowlist.kubernetes`.
pub(crate) fn settings(kubernetes: &[(&str, Value)]) -> Value {
    let mut settings = json!({
        "listen": [format!("{PROXY}:{PORT}")],
        "admin": format!("0.0.0.0:{ADMIN_PORT}"),
        "allowlist": {"kubernetes": {"enabled": true, "wait_for_ready": "300ms"}},
        "limits": {"client": {
            "max_tunnels": "unlimited", "connects_per_second": "unlimited", "max_unfinished": "unlimited",
        }},
        "ssh_only": false,
    });
    for (key, value) in kubernetes {
        settings["allowlist"]["kubernetes"][*key] = value.clone();
    }
    settings
}

async fn connect(from: Option<IpAddr>, authority: &str, fields: &str) -> Result<Tunnel, Refused> {
    let socket = TcpSocket::new_v4().unwrap();
    if let Some(from) = from {
        socket.bind(SocketAddr::new(from, 0)).unwrap();
    }
    let stream = socket.connect(SocketAddr::new(PROXY, PORT)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut stream = BufStream::new(stream);
    let head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{fields}\r\nSSH-2.0-client\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    let mut words = line.trim_end().splitn(3, ' ').skip(1);
    let status = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
    if status != 200 {
        let phrase = words.next().unwrap_or_default().to_owned();
        return Err(Refused { status, phrase });
    }
    let mut fields = Vec::new();
    while line != "\r\n" {
        line.clear();
        assert_ne!(stream.read_line(&mut line).await.unwrap(), 0, "the head has no end");
        fields.extend(Some(line.trim_end().to_owned()).filter(|field| !field.is_empty()));
    }
    line.clear();
    // A pod that hangs up at once has no name.
    stream.read_line(&mut line).await.ok();
    let pod = line
        .trim_end()
        .strip_prefix("SSH-2.0-")
        .and_then(|pod| pod.parse().ok());
    pod.map(|pod| Tunnel { stream, pod, fields }).ok_or(Refused {
        status,
        phrase: format!("a tunnel to no pod of ours, which said {line:?}"),
    })
}

/// The text from a pipe, as it comes.
fn collected(pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let shared = Arc::clone(&text);
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let mut text = shared.lock().unwrap();
            text.push_str(&line.unwrap());
            text.push('\n');
        }
    });
    text
}

/// The deadline of every wait. It never decides a test that passes: it only ends one that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The admin port, on every address of the proxy's host: what a guard must keep tenants from.
pub(crate) const ADMIN_PORT: u16 = 9090;
/// The public port.
pub(crate) const PORT: u16 = 8080;

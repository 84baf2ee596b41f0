//! An independent HTTP/2 client that a test drives: `peer.py`, with hyper-h2.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

use crate::harness::DEADLINE;
use crate::harness::authority::Issued;

/// A client with one connection.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Child,
    orders: ChildStdin,
    events: Receiver<Value>,
    seen: Vec<Value>,
}

impl Peer {
    /// Connects with prior knowledge.
    pub(crate) fn connect(proxy: SocketAddr) -> Self {
        Self::start(proxy, &[])
    }

    /// Connects over TLS to `localhost`, trusting that authority, and agrees on HTTP/2.
    pub(crate) fn connect_over_tls(proxy: SocketAddr, ca: &Path) -> Self {
        Self::start(proxy, &[ca]).agreed()
    }

    /// The same, and shows a certificate.
    pub(crate) fn connect_over_tls_as(issued: &Issued, proxy: SocketAddr, ca: &Path) -> Self {
        Self::start(proxy, &[ca, &issued.cert, &issued.key]).agreed()
    }

    #[track_caller]
    fn agreed(mut self) -> Self {
        assert_eq!(self.event("alpn", 0)["protocol"], "h2");
        self
    }

    fn start(proxy: SocketAddr, files: &[&Path]) -> Self {
        let mut command = Command::new(python());
        command.arg(script("peer.py"));
        command
            .args([proxy.ip().to_string(), proxy.port().to_string()])
            .args(files);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, events) = channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    break;
                }
            }
        });
        Self {
            orders: process.stdin.take().unwrap(),
            process,
            events,
            seen: Vec::new(),
        }
    }

    /// Tells it to do something.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// Sends these fields as a request, in this order.
    pub(crate) fn ask_with(&mut self, stream: u32, fields: &[(&str, &str)]) {
        let fields = serde_json::to_string(fields).unwrap();
        self.tell(&format!("ask {stream} {fields}"));
    }

    /// Asks for a tunnel.
    pub(crate) fn ask(&mut self, stream: u32, target: &str) {
        self.ask_with(stream, &[(":method", "CONNECT"), (":authority", target)]);
    }

    /// Asks for a tunnel, and gets it.
    #[track_caller]
    pub(crate) fn open(&mut self, stream: u32, target: &str) {
        self.ask(stream, target);
        self.expect_status(stream, "200");
    }

    /// Sends bytes, as far as the windows let it.
    pub(crate) fn send(&mut self, stream: u32, bytes: impl AsRef<[u8]>) {
        self.tell(&format!("send {stream} {}", hex(bytes.as_ref())));
    }

    /// The answer's status is that. The answer's fields come back.
    #[track_caller]
    pub(crate) fn expect_status(&mut self, stream: u32, status: &str) -> Value {
        let response = self.event("response", stream);
        let fields = response["headers"].clone();
        assert_eq!(fields[":status"], status, "{fields}");
        fields
    }

    /// The next bytes are those, in however many frames.
    #[track_caller]
    pub(crate) fn expect(&mut self, stream: u32, expected: impl AsRef<[u8]>) {
        let expected = hex(expected.as_ref());
        let mut came = String::new();
        while came.len() < expected.len() {
            came += self.event("data", stream)["hex"].as_str().unwrap();
        }
        assert_eq!(came, expected);
    }

    /// The stream ends in order, without further bytes.
    #[track_caller]
    pub(crate) fn expect_end(&mut self, stream: u32) {
        self.event("ended", stream);
    }

    /// The stream is reset with that code.
    #[track_caller]
    pub(crate) fn expect_reset(&mut self, stream: u32, code: u64) {
        let event = self.event("reset", stream);
        assert_eq!(event["code"], code, "{event}");
    }

    /// A tunnel that echoes still does.
    #[track_caller]
    pub(crate) fn expect_echo(&mut self, stream: u32) {
        self.send(stream, "still here");
        self.expect(stream, "still here");
    }

    /// The next event on a stream, whatever it is.
    #[track_caller]
    pub(crate) fn any(&mut self, stream: u32) -> Value {
        loop {
            if let Some(at) = self.seen.iter().position(|event| event["stream"] == stream) {
                return self.seen.remove(at);
            }
            match self.events.recv_timeout(DEADLINE) {
                Ok(event) => self.seen.push(event),
                Err(_) => panic!("nothing more on {stream}, but {:#?}", self.seen),
            }
        }
    }

    /// The next event of that kind; stream 0 is the connection. What else happened on the same stream is a failure.
    #[track_caller]
    pub(crate) fn event(&mut self, kind: &str, stream: u32) -> Value {
        let wanted = |event: &Value| {
            let on = event["stream"].as_u64().unwrap_or(0);
            on == u64::from(stream) && (event["event"] != "sent" || kind == "sent")
        };
        loop {
            if let Some(at) = self
                .seen
                .iter()
                .position(|event| wanted(event) && (stream != 0 || event["event"] == kind))
            {
                let event = self.seen.remove(at);
                assert_eq!(event["event"], kind, "{event}, and then {:?}", self.seen);
                return event;
            }
            match self.events.recv_timeout(DEADLINE) {
                Ok(event) => self.seen.push(event),
                Err(_) => panic!("no {kind} on {stream}, but {:#?}", self.seen),
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.process.kill().ok();
        self.process.wait().unwrap();
    }
}

/// The Python that has hyper-h2: `tests/install-clients` makes it.
pub(crate) fn python() -> PathBuf {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python/bin/python");
    assert!(python.exists(), "no {}: run tests/install-clients", python.display());
    python
}

/// A script beside this file.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/http2").join(name)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Error codes of RFC 9113 section 7.
pub(crate) mod code {
    pub(crate) const NO_ERROR: u64 = 0;
    pub(crate) const PROTOCOL_ERROR: u64 = 1;
    pub(crate) const REFUSED_STREAM: u64 = 7;
    pub(crate) const CANCEL: u64 = 8;
    pub(crate) const CONNECT_ERROR: u64 = 10;
    pub(crate) const ENHANCE_YOUR_CALM: u64 = 11;
}

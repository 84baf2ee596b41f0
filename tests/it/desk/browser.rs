//! A real Chromium, driven by WebDriver (<https://www.w3.org/TR/webdriver2/>) and, for what that has no words for, by the
//! DevTools protocol. It ends with its test and leaves nothing behind.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::process::Process;
use crate::harness::target::Closed;
use crate::harness::{DEADLINE, eventually};

/// A browser with one page.
#[derive(Debug)]
pub(super) struct Browser {
    driver: Process,
    address: SocketAddr,
    _port: Closed,
    session: String,
    /// Its profile, and all that it writes.
    folder: TempDir,
}

/// The fault of a command: its code, such as `stale element reference`.
type Fault = String;

/// A chromedriver at a port that is kept for it.
fn driver(folder: &TempDir, port: &Closed) -> Process {
    let mut command = Command::new("chromedriver");
    command.arg(format!("--port={}", port.address().port()));
    for name in ["HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
        command.env(name, folder.path());
    }
    let mut driver = Process::spawn(command);
    driver.stdout.find("started successfully on port ");
    driver
}

/// True if the programs are installed.
static IS_INSTALLED: LazyLock<bool> = LazyLock::new(|| {
    let folder = TempDir::new().unwrap();
    ["chromedriver", "chromium"].iter().all(|program| {
        let mut command = Command::new(program);
        let found = command.arg("--version").env("HOME", folder.path()).output();
        found.is_ok_and(|output| output.status.success())
    })
});

impl Browser {
    /// Starts one, with a window of that size, in which a foreign name leads to this computer.
    pub(super) fn start(width: u32, height: u32) -> Self {
        let folder = TempDir::new().unwrap();
        assert!(
            *IS_INSTALLED,
            "chromium and chromedriver are not there: run tests/install-clients chromium chromium-driver"
        );
        let port = Closed::bind();
        let mut browser = Self {
            driver: driver(&folder, &port),
            address: port.address(),
            _port: port,
            session: String::new(),
            folder,
        };
        let capabilities = browser.capabilities(width, height);
        let begun = browser.ask("POST", "/session", &capabilities).unwrap();
        browser.session = begun["sessionId"].as_str().unwrap().to_owned();
        // The window has a frame: the page itself gets that size.
        browser.resize(width, height);
        browser
    }

    fn capabilities(&self, width: u32, height: u32) -> Value {
        let profile = self.folder.path().join("profile");
        let mut arguments = vec![
            "--headless=new".to_owned(),
            format!("--user-data-dir={}", profile.display()),
            format!("--window-size={width},{height}"),
            // It ends with chromedriver, however that ends.
            "--remote-debugging-pipe".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--no-first-run".to_owned(),
            format!(
                "--host-resolver-rules=MAP {FOREIGN} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
            ),
        ];
        // Chromium's sandbox needs a user other than root.
        if rustix::process::geteuid().is_root() {
            arguments.push("--no-sandbox".to_owned());
        }
        json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}})
    }

    /// Opens an address.
    pub(super) fn open(&self, url: &str) {
        self.tell("/url", &json!({"url": url}));
    }

    /// Runs statements in the page, and gives what they return.
    #[track_caller]
    pub(super) fn run(&self, script: &str) -> Value {
        self.tell("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Runs statements that call `arguments[0]` with their result some time.
    #[track_caller]
    pub(super) fn run_async(&self, script: &str) -> Value {
        self.tell("/timeouts", &json!({"script": DEADLINE.as_millis()}));
        self.tell("/execute/async", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(super) fn waits(&self, expression: &str) {
        let script = format!("return Boolean({expression});");
        let is_true = || (self.run(&script) == true).then_some(());
        let deadline = Instant::now() + DEADLINE;
        while is_true().is_none() {
            if Instant::now() > deadline {
                let shown = self.run("return document.body.innerText;");
                panic!(
                    "not within {DEADLINE:?}: {expression}\n{shown}\n{:?}",
                    self.complaints()
                );
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// The text of the first element that a selector is for.
    #[track_caller]
    pub(super) fn text(&self, selector: &str) -> String {
        let text = self.run(&format!("return document.querySelector({selector:?}).innerText;"));
        text.as_str().unwrap().to_owned()
    }

    /// Clicks, as a mouse does: what covers the element is clicked in its place, which is an error.
    #[track_caller]
    pub(super) fn click(&self, selector: &str) {
        let click = || {
            let element = self.send("POST", "/element", &by(selector)).ok()?;
            let id = element.as_object()?.values().next()?.as_str()?.to_owned();
            self.send("POST", &format!("/element/{id}/click"), &json!({})).ok()
        };
        eventually(&format!("{selector} is clicked"), click);
    }

    /// Types, as a keyboard does, wherever the focus is.
    pub(super) fn types(&self, text: &str) {
        let strokes = text.chars().flat_map(|key| {
            let key = key.to_string();
            [
                json!({"type": "keyDown", "value": key}),
                json!({"type": "keyUp", "value": key}),
            ]
        });
        let actions: Vec<_> = strokes.collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.tell("/actions", &json!({"actions": [keyboard]}));
    }

    /// Has the page the size of a screen.
    pub(super) fn resize(&self, width: u32, height: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.develop("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// `light` or `dark`.
    pub(super) fn prefers(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]);
        self.develop("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// A command of the DevTools protocol.
    #[track_caller]
    pub(super) fn develop(&self, command: &str, parameters: &Value) -> Value {
        self.tell("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// A picture of the page, as PNG in Base64.
    pub(super) fn picture(&self) -> String {
        let picture = self.send("GET", "/screenshot", &Value::Null).unwrap();
        picture.as_str().unwrap().to_owned()
    }

    /// Returns the new messages on the browser's console, errors of the policy among them.
    pub(super) fn complaints(&self) -> Vec<String> {
        let log = self.tell("/se/log", &json!({"type": "browser"}));
        let messages = log.as_array().unwrap().iter();
        messages
            .map(|entry| entry["message"].as_str().unwrap().to_owned())
            .collect()
    }

    #[track_caller]
    fn tell(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, body)
            .unwrap_or_else(|fault| panic!("{path}: {fault}"))
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, Fault> {
        self.ask(method, &format!("/session/{}{path}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, Fault> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (address, length) = (self.address, body.len());
        let mut stream = TcpStream::connect(address).unwrap();
        // A script may take a deadline of its own.
        stream.set_read_timeout(Some(2 * DEADLINE)).unwrap();
        stream
            .write_all(
                format!(
                    "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
                )
                .as_bytes(),
            )
            .unwrap();
        let (status, body) = answer(&mut BufReader::new(stream));
        let mut body: Value = serde_json::from_slice(&body).unwrap();
        let value = body["value"].take();
        match status {
            200 => Ok(value),
            _ => Err(format!("{}: {}", value["error"], value["message"])),
        }
    }

    /// Returns whether a process has the profile open.
    fn is_running(&self) -> bool {
        let folder = self.folder.path().to_str().unwrap_or_default();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut commands = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        commands.any(|command| String::from_utf8_lossy(&command).contains(folder))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let path = format!("/session/{}", self.session);
        if self.driver.is_running() {
            // A test that has failed may have broken it: chromedriver's end is the browser's.
            let end = || self.ask("DELETE", &path, &Value::Null);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(end)).ok();
            self.driver.signal(rustix::process::Signal::TERM);
        }
        let deadline = Instant::now() + DEADLINE;
        while self.is_running() && Instant::now() < deadline {
            sleep(Duration::from_millis(20));
        }
    }
}

/// The status and the content of an answer, after which chromedriver leaves the connection open.
fn answer(stream: &mut BufReader<TcpStream>) -> (u16, Vec<u8>) {
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if line.starts_with("http/") {
            status = line.split(' ').nth(1).unwrap().parse().unwrap();
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (status, body)
}

fn by(selector: &str) -> Value {
    json!({"using": "css selector", "value": selector})
}

/// axe-core, which `tests/install-clients` fetches.
pub(super) fn axe() -> String {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../axe/node_modules/axe-core/axe.min.js");
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}: run tests/install-clients", file.display()))
}

/// A name of another computer that leads to this one: DNS rebinding.
pub(super) const FOREIGN: &str = "rebound.example.com";
/// Keys of WebDriver.
pub(super) const ENTER: &str = "\u{e007}";
pub(super) const ESCAPE: &str = "\u{e00c}";
pub(super) const END: &str = "\u{e010}";
pub(super) const ARROW_DOWN: &str = "\u{e015}";

//! The harness of the black-box tests: a proxy, the peers on both sides of it, and its figures. Nothing waits for ever.

pub(crate) mod authority;
pub(crate) mod haproxy;
pub(crate) mod loopback;
pub(crate) mod page;
pub(crate) mod peer;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod seccomp;
pub(crate) mod shared;
pub(crate) mod stream;
pub(crate) mod target;

use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use switchboard::tunnel::outcome::RefusalReason;
use tempfile::TempDir;

/// The deadline of every wait. It never decides a test that passes, on however busy a machine: it only ends one that
/// hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// The answer in front of the first byte of the target.
pub(crate) const CONFIRMATION: &str = "HTTP/1.1 200 Connection established\r\n\r\n";

/// Tries until there is a value, which is then returned, or the deadline has passed.
pub(crate) fn eventually<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, what, attempt)
}

/// The same with another deadline.
pub(crate) fn within<T>(time: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + time;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {time:?}: {what}");
        thread::sleep(BETWEEN_ATTEMPTS);
    }
}

/// Waits until the kernel has given up a connection with the proxy's TCP_USER_TIMEOUT, whose peer answers and reads nothing.
pub(crate) fn wait_for_user_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _never_read = listener.accept().unwrap();
    let timeout = Some(Duration::from_secs(120));
    SockRef::from(&stream).set_tcp_user_timeout(timeout).unwrap();
    stream.set_write_timeout(Some(5 * DEADLINE)).unwrap();
    let error = stream.write_all(&vec![0; 64 << 20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// The section `allowlist` of a configuration that leads each name to its address, with nothing set for it.
pub(crate) fn allow(targets: &[(&str, SocketAddr)]) -> String {
    let mut section = "allowlist:\n  static:\n".to_owned();
    for (name, address) in targets {
        section += &format!("    - {{name: \"{name}\", addresses: [\"{address}\"]}}\n");
    }
    section
}

/// These settings, on ports that the kernel chooses where they name none. Most peers of the tests speak no SSH, all of
/// them are one client, and on a busy machine they are slow: unless the settings say otherwise, they may.
pub(crate) fn on_free_ports(settings: &str) -> String {
    let unless = |named: &str, line: &'static str| if settings.contains(named) { "" } else { line };
    let listen = unless("listen:", "listen: 127.0.0.1:0\n");
    let protocol = unless("ssh_only:", "ssh_only: false\n");
    let limits = unless("limits:", ONE_CLIENT);
    let timeouts = unless("timeouts:", PATIENT);
    format!("{listen}admin: 127.0.0.1:0\n{settings}{protocol}{limits}{timeouts}")
}

/// A path at which there is no file, nor a folder for one.
pub(crate) fn missing() -> String {
    let folder = TempDir::new().unwrap();
    folder.path().join("missing").display().to_string()
}

/// A request that every client could have sent.
pub(crate) fn request(name: &str) -> String {
    format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n")
}

/// That refusal as it is on the wire.
pub(crate) fn refused(reason: RefusalReason) -> String {
    let fields = match reason.retry_after() {
        Some(seconds) => format!("Retry-After: {seconds}\r\n"),
        None => String::new(),
    };
    let phrase = reason.phrase().to_string();
    refusal(reason.status(), &phrase, reason.proxy_status(), &fields)
}

/// A refusal as it is on the wire; `fields` are those that only some refusals have, with their line ends.
pub(crate) fn refusal(status: u16, phrase: &str, proxy_status: &str, fields: &str) -> String {
    format!(
        "HTTP/1.1 {status} {phrase}\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Proxy-Status: switchboard; error={proxy_status}; details=\"{}\"\r\n{fields}\r\n{phrase}\n",
        phrase.len() + 1,
        phrase.replace('"', "'")
    )
}

const ONE_CLIENT: &str = "limits: {client: {max_tunnels: unlimited, connects_per_second: unlimited}}\n";
const PATIENT: &str = "timeouts: {request_header: 2m}\n";
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

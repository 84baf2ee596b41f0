//! The least of HTTP/1.1 for benches: a request, the events of a watch, and a parameter.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

/// Returns the whole answer to a request.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Returns an address whose port was free a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Answers with each event as it comes, for so many seconds.
pub(crate) fn answer_watch(stream: &mut TcpStream, events: &Receiver<String>, seconds: u64) -> Option<()> {
    let end = Instant::now() + Duration::from_secs(seconds);
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .ok()?;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(event) => write!(stream, "{:x}\r\n{event}\n\r\n", event.len() + 1).ok()?,
            Err(_) if Instant::now() < end => thread::sleep(end - Instant::now()),
            Err(_) => return stream.write_all(b"0\r\n\r\n").ok(),
        }
    }
}

/// Returns the number that a target's query gives for a key.
pub(crate) fn number(target: &str, key: &str) -> Option<u64> {
    let (_, value) = target.split_once(&format!("{key}="))?;
    value.split('&').next()?.parse().ok()
}

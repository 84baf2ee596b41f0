//! The targets of the table: one of each kind that is no SSH server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use crate::harness::target::{Blackhole, Closed, Echo};

/// The entries of the allowlist. The last one needs client certificates.
pub(super) fn targets(blackhole: &Blackhole, closed: &Closed, echo: &Echo) -> Vec<String> {
    let scripted = |script: fn(TcpStream)| target(script);
    let entry = |name: &str, address: SocketAddr| format!("{{name: \"{name}.team-a:22\", addresses: [\"{address}\"]}}");
    let guarded = format!(
        "{{name: \"guarded.team-a:22\", addresses: [\"{}\"], allowed_clients: [alice@example.com]}}",
        echo.address()
    );
    vec![
        entry("box", echo.address()),
        entry("refuses", closed.address()),
        entry("blackhole", blackhole.address()),
        entry(
            "web",
            scripted(|stream| answer(stream, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")),
        ),
        entry(
            "silent",
            scripted(|mut stream| drop(stream.read_to_end(&mut Vec::new()))),
        ),
        entry("closes", scripted(|stream| answer(stream, ""))),
        entry("full", scripted(|stream| answer(stream, "Exceeded MaxStartups\r\n"))),
        entry(
            "resets",
            scripted(|stream| {
                read_a_line(&stream);
                set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            }),
        ),
        guarded,
    ]
}

/// A target whose connections are served by a script, for as long as the test runs.
fn target(script: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || script(stream));
        }
    });
    address
}

fn answer(mut stream: TcpStream, text: &str) {
    read_a_line(&stream);
    stream.write_all(text.as_bytes()).ok();
    stream.shutdown(std::net::Shutdown::Write).ok();
    stream.read_to_end(&mut Vec::new()).ok();
}

/// Waits for the client's identification. PuTTY sends none before the server's.
fn read_a_line(stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    BufReader::with_capacity(1, stream).read_line(&mut String::new()).ok();
    stream.set_read_timeout(None).unwrap();
}

//! A proxy that demands one bearer token, and keeps what it was shown.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// The proxy. It leads to one address, or answers `hello` and takes what comes.
pub(crate) struct DemandingProxy {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    shown: Vec<String>,
    received: Vec<u8>,
}

impl DemandingProxy {
    pub(crate) fn start(token: &str, target: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Seen::default())));
        let (demanded, kept) = (format!("Bearer {token}"), Arc::clone(&seen));
        thread::spawn(move || {
            // To the end of the test process.
            for stream in listener.incoming() {
                let (stream, demanded, seen) = (stream.unwrap(), demanded.clone(), Arc::clone(&kept));
                thread::spawn(move || serve(stream, &demanded, target, &seen));
            }
        });
        Self { address, seen }
    }

    /// The values of `Proxy-Authorization`, in the order of the requests.
    pub(crate) fn shown(&self) -> Vec<String> {
        self.seen.lock().unwrap().shown.clone()
    }

    /// The bytes of all tunnels that led nowhere.
    pub(crate) fn received(&self) -> Vec<u8> {
        self.seen.lock().unwrap().received.clone()
    }
}

fn serve(mut stream: TcpStream, demanded: &str, target: Option<SocketAddr>, seen: &Mutex<Seen>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let field = head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    let field = field.unwrap_or_default().to_owned();
    let is_demanded = field == demanded;
    seen.lock().unwrap().shown.push(field);
    // The client may leave at any moment.
    if !is_demanded {
        stream.write_all(b"HTTP/1.1 407 the token is not this one\r\n\r\n").ok();
        return;
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok();
    match target {
        Some(target) => relay(stream, TcpStream::connect(target).unwrap()),
        None => {
            stream.write_all(b"hello\n").ok();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).ok();
            seen.lock().unwrap().received.extend(received);
        }
    }
}

fn relay(client: TcpStream, target: TcpStream) {
    let pipe = |mut from: TcpStream, mut to: TcpStream| {
        thread::spawn(move || {
            std::io::copy(&mut from, &mut to).ok();
            to.shutdown(std::net::Shutdown::Write).ok();
        })
    };
    let up = pipe(client.try_clone().unwrap(), target.try_clone().unwrap());
    pipe(target, client).join().unwrap();
    up.join().unwrap();
}

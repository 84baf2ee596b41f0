//! The floors of bulk: a program with only what must be done, where the proxy or the anchor is.

use std::env;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::bare_relay;
use crate::programs::{LOOPBACK, Process, free_address};

/// A floor that accepts connections.
pub struct Floor {
    pub process: Process,
    pub address: SocketAddr,
}

impl Floor {
    /// In an anchor's place: it copies what it reads, 256 KiB at most at a time, to and from the target.
    pub fn copy(target: SocketAddr) -> Self {
        Self::start("copy", target)
    }

    /// In a proxy's place: it answers CONNECT and splices, 1 MiB at most at a time, to and from the target.
    pub fn splices(target: SocketAddr) -> Self {
        Self::start("splices", target)
    }

    fn start(what: &str, target: SocketAddr) -> Self {
        let address = free_address(LOOPBACK);
        let mut command = Command::new(env::current_exe().unwrap());
        let process = Process::spawn(command.args([ARGUMENT, what, &address.to_string(), &target.to_string()]));
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "the floor does not accept");
            thread::sleep(Duration::from_millis(2));
        }
        Self { process, address }
    }
}

/// Returns false if this process was not started as a floor. Otherwise it serves until it is killed.
pub fn serve_if_asked() -> bool {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [argument, what, address, target] = arguments.as_slice() else {
        return false;
    };
    if argument != ARGUMENT {
        return false;
    }
    let target: SocketAddr = target.parse().unwrap();
    let serve = if what == "copy" { copy_both } else { splice_both };
    for client in TcpListener::bind(address).unwrap().incoming().flatten() {
        // It ends with its client.
        thread::spawn(move || serve(&client, target).ok());
    }
    true
}

fn splice_both(mut client: &TcpStream, target: SocketAddr) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.extend(byte);
    }
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    bare_relay::relay(client, &TcpStream::connect(target)?)
}

fn copy_both(client: &TcpStream, target: SocketAddr) -> io::Result<()> {
    let upstream = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    let (from, to) = (client.try_clone()?, upstream.try_clone()?);
    let upload = thread::spawn(move || copy_all(&from, &to));
    copy_all(&upstream, client)?;
    upload.join().map_err(|_| ErrorKind::Other)?
}

fn copy_all(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut piece = vec![0; 256 * 1024];
    loop {
        match from.read(&mut piece)? {
            0 => return to.shutdown(Shutdown::Write),
            read => to.write_all(&piece[..read])?,
        }
    }
}

const ARGUMENT: &str = "--floor";

//! The floor of bulk by TLS: two blocking threads a tunnel, with rustls on the client's side. One way at a time: the lock is held
//! while a write blocks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::floor::answer;
use crate::secure::MAX_READ;

/// Takes a handshake and a CONNECT, whose name does not matter, and relays until one side has ended.
pub(crate) fn relay(client: TcpStream, target: SocketAddr, config: Arc<ServerConfig>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut session = StreamOwned::new(ServerConnection::new(config).map_err(io::Error::other)?, client);
    let mut lines = BufReader::new(&mut session);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
    }
    answer(&mut session)?;
    let upstream = TcpStream::connect(target)?;
    upstream.set_nodelay(true)?;
    let StreamOwned { mut conn, sock } = session;
    // rustls would take 64 KiB at once.
    conn.set_buffer_limit(None);
    let connection = Mutex::new(conn);
    thread::scope(|scope| {
        scope.spawn(|| {
            upload(&connection, &sock, &upstream).ok();
            // The client has left: that wakes the download.
            upstream.shutdown(Shutdown::Both).ok();
        });
        let sent = download(&connection, &upstream, &sock);
        sock.shutdown(Shutdown::Both).ok();
        sent
    })
}

fn download(connection: &Mutex<ServerConnection>, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut chunk = vec![0; MAX_PIECE];
    loop {
        let read = from.read(&mut chunk)?;
        if read == 0 {
            return Ok(());
        }
        let mut connection = connection.lock().unwrap();
        connection.writer().write_all(chunk.get(..read).unwrap_or_default())?;
        while connection.wants_write() {
            connection.write_tls(&mut to)?;
        }
    }
}

fn upload(connection: &Mutex<ServerConnection>, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let (mut encrypted, mut plain) = (vec![0; MAX_READ], vec![0; MAX_PIECE]);
    loop {
        let read = from.read(&mut encrypted)?;
        if read == 0 {
            return Ok(());
        }
        let mut rest = encrypted.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            let mut connection = connection.lock().unwrap();
            connection.read_tls(&mut rest)?;
            let state = connection.process_new_packets().map_err(io::Error::other)?;
            let bytes = plain.get_mut(..state.plaintext_bytes_to_read()).unwrap_or_default();
            connection.reader().read_exact(bytes)?;
            drop(connection);
            to.write_all(bytes)?;
        }
    }
}

/// The most that is encrypted at once, as by switchboard, or decrypted.
const MAX_PIECE: usize = 512 * 1024;

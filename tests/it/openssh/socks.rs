//! A SOCKS5 client (RFC 1928) and the server that it fetches from: what VS Code does over one ssh session.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A loopback server that sends `content` to each of `connections` once it has said `send`.
pub(crate) fn serve(content: Vec<u8>, connections: usize) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            bounded(&stream);
            let mut word = [0; 4];
            stream.read_exact(&mut word).unwrap();
            assert_eq!(&word, b"send");
            stream.write_all(&content).unwrap();
        }
    });
    (address, server)
}

/// Asks the SOCKS server for a connection to the target and reads all that it sends.
pub(crate) fn fetch(socks: SocketAddr, target: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(socks).unwrap();
    bounded(&stream);
    // Version 5, one method: no authentication.
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut method = [0; 2];
    stream.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    // CONNECT to a name, which the far side resolves.
    let host = target.ip().to_string();
    let mut request = vec![5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    request.extend(host.as_bytes());
    request.extend(target.port().to_be_bytes());
    stream.write_all(&request).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], [5, 0, 0, 1], "succeeded, with an IPv4 address");
    stream.write_all(b"send").unwrap();
    let mut content = Vec::new();
    stream.read_to_end(&mut content).unwrap();
    content
}

fn bounded(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
}

const PATIENCE: Duration = Duration::from_secs(60);

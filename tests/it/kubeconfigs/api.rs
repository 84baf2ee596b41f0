//! An API server without objects, over HTTP and over TLS, and a forward proxy to it that speaks HTTP and SOCKS 5.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The server. Its certificate is as `openssl req -x509` makes it.
pub(super) struct Api {
    pub(super) http: SocketAddr,
    pub(super) https: SocketAddr,
    /// In PEM.
    pub(super) certificate: String,
    /// In PEM.
    pub(super) key: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Api {
    pub(super) fn start() -> Self {
        let [plain, secure] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [http, https] = [&plain, &secure].map(|listener| listener.local_addr().unwrap());
        let (certificate, key, config) = self_signed("localhost");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        accept(plain, move |stream| answer(stream, &noted));
        let (noted, config) = (Arc::clone(&seen), Arc::new(config));
        accept(secure, move |stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            answer(StreamOwned::new(connection, stream), &noted);
        });
        Self {
            http,
            https,
            certificate,
            key,
            seen,
        }
    }

    /// The `Authorization` of each request, with the users that it impersonates.
    pub(super) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub(super) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }
}

/// Returns a certificate of an authority for itself, for `localhost` and 127.0.0.1, with its key.
pub(super) fn self_signed(name: &str) -> (String, String, ServerConfig) {
    let mut parameters = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .unwrap();
    (certificate.pem(), key.serialize_pem(), config)
}

/// Serves each connection in a thread of its own, to the end of the test process.
fn accept(listener: TcpListener, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
}

fn answer(stream: impl Read + Write, seen: &Mutex<Vec<String>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !stream.read_line(&mut head).is_ok_and(|read| read > 0) {
                return;
            }
        }
        let fields = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            let named = lines.filter(|(field, _)| field.eq_ignore_ascii_case(name));
            named.map(|(_, value)| value.to_owned()).collect::<Vec<_>>()
        };
        let mut shown = fields("authorization").concat();
        if let [user] = &fields("impersonate-user")[..] {
            shown = format!("{shown} as {user} {}", fields("impersonate-group").join(" "));
        }
        seen.lock().unwrap().push(shown);
        let begin = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        let list = r#"{"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}"#;
        let answer = match head.contains("watch=true") {
            true => format!("{begin}Transfer-Encoding: chunked\r\n\r\n"),
            false => format!("{begin}Content-Length: {}\r\n\r\n{list}", list.len()),
        };
        let stream = stream.get_mut();
        if stream
            .write_all(answer.as_bytes())
            .and_then(|()| stream.flush())
            .is_err()
        {
            return;
        }
    }
}

/// A forward proxy. A name ends in `.invalid` where it leads to the server that it was given.
pub(super) struct ForwardProxy {
    pub(super) address: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
}

impl ForwardProxy {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(None));
        let known = Arc::clone(&target);
        accept(listener, move |stream| {
            let known = *known.lock().unwrap();
            forward(stream, known).unwrap_or_default();
        });
        Self { address, target }
    }

    /// Makes it lead names to that server.
    pub(super) fn lead(&self, api: &Api) {
        *self.target.lock().unwrap() = Some(api.http);
    }
}

fn forward(mut stream: TcpStream, known: Option<SocketAddr>) -> std::io::Result<()> {
    let mut first = [0];
    stream.read_exact(&mut first)?;
    let (target, accepted) = match first {
        [5] => (socks(&mut stream)?, &b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"[..]),
        _ => {
            let mut head = Vec::from(first);
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut first)?;
                head.extend(first);
            }
            let head = String::from_utf8_lossy(&head);
            let target = head.split(' ').nth(1).unwrap_or_default().parse().ok();
            assert!(head.starts_with("CONNECT "), "{head}");
            (target, &b"HTTP/1.1 200 OK\r\n\r\n"[..])
        }
    };
    let upstream = TcpStream::connect(target.or(known).unwrap())?;
    stream.write_all(accepted)?;
    let (mut near, mut far) = (stream.try_clone()?, upstream.try_clone()?);
    thread::spawn(move || {
        std::io::copy(&mut near, &mut far).ok();
        far.shutdown(Shutdown::Write).ok();
    });
    let (mut near, mut far) = (stream, upstream);
    std::io::copy(&mut far, &mut near).ok();
    near.shutdown(Shutdown::Write)
}

/// Reads the two requests of SOCKS 5. Returns the address that is wanted; `None` for a name.
fn socks(stream: &mut TcpStream) -> std::io::Result<Option<SocketAddr>> {
    let mut read = |length: usize| {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).map(|()| bytes)
    };
    let methods = read(1)?[0];
    read(methods.into())?;
    stream.write_all(&[5, 0])?;
    let mut read = |length: usize| {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).map(|()| bytes)
    };
    if read(4)?[3] == 1 {
        let wanted = read(6)?;
        let address = Ipv4Addr::new(wanted[0], wanted[1], wanted[2], wanted[3]);
        return Ok(Some((address, u16::from_be_bytes([wanted[4], wanted[5]])).into()));
    }
    let length = read(1)?[0];
    read(usize::from(length) + 2)?;
    Ok(None)
}

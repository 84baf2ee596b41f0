//! A scripted client that speaks TLS, and programs that do.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::authority::{Authority, Issued};
use crate::harness::{CONFIRMATION, DEADLINE, request};

/// One that trusts the authority, and shows a certificate or none.
pub(crate) fn config(authority: &Authority, shows: Option<&Issued>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(authority.ca()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match shows {
        Some(issued) => {
            let (cert, key) = issued.load();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    })
}

/// A client in the middle of TLS.
pub(crate) type Client = StreamOwned<ClientConnection, TcpStream>;

/// Connects, and asks for a certificate of that name. The handshake is over when this is.
pub(crate) fn connect(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> io::Result<Client> {
    handshake(TcpStream::connect(address)?, config, name)
}

/// The same on a connection that there is already.
pub(crate) fn handshake(stream: TcpStream, config: &Arc<ClientConfig>, name: &str) -> io::Result<Client> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), stream);
    while client.conn.is_handshaking() {
        client.conn.complete_io(&mut client.sock)?;
    }
    Ok(client)
}

/// Has its tunnel to that name.
#[track_caller]
pub(crate) fn open(client: &mut Client, name: &str) {
    client.write_all(request(name).as_bytes()).unwrap();
    let mut answer = vec![0; CONFIRMATION.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), CONFIRMATION);
}

/// All that it hears without a word of its own; as much as came, if it ends otherwise than it should.
pub(crate) fn rest(client: &mut Client) -> Vec<u8> {
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).ok();
    rest
}

/// All that it hears when it asks for that name; as much as came, if it ends otherwise than it should.
pub(crate) fn answer(client: &mut Client, name: &str) -> String {
    let mut answer = Vec::new();
    let asked = client.write_all(request(name).as_bytes());
    let read = asked.and_then(|()| client.read_to_end(&mut answer));
    format!(
        "{}{}",
        String::from_utf8_lossy(&answer),
        read.err().map(|error| error.to_string()).unwrap_or_default()
    )
}

/// Runs a program with that input, and gives both of its streams together.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("timeout")
        .args(["-s", "KILL", "120", program])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have ended before it reads.
    child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// As an argument of a program.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

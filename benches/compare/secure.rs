//! TLS as the clients speak it: one certificate for all proxies, and one cipher, so that all do the same work.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::{fmt, fs};

use rcgen::CertifiedKey;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig, StreamOwned};

/// A session that a client has with a proxy.
pub(crate) type Session = StreamOwned<ClientConnection, Buffered>;

/// How sessions begin.
pub(crate) struct Security {
    config: Arc<ClientConfig>,
    full: AtomicUsize,
}

impl Security {
    /// Each with a full handshake, for that protocol.
    pub(crate) fn new(protocol: &[u8]) -> io::Result<Self> {
        Self::with(protocol, Resumption::disabled())
    }

    /// Each but the first few with the ticket of an earlier one.
    pub(crate) fn resuming(protocol: &[u8]) -> io::Result<Self> {
        Self::with(protocol, Resumption::in_memory_sessions(16))
    }

    fn with(protocol: &[u8], resumption: Resumption) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CERTIFICATE.cert.der().clone()).map_err(io::Error::other)?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = resumption;
        Ok(Self {
            config: config.into(),
            full: AtomicUsize::new(0),
        })
    }

    /// A session that has its handshake behind it.
    pub(crate) fn begin(&self, socket: TcpStream) -> io::Result<Session> {
        let connection = ClientConnection::new(self.config(), server_name()).map_err(io::Error::other)?;
        let mut session = StreamOwned::new(connection, Buffered::new(socket));
        while session.conn.is_handshaking() {
            session.conn.complete_io(&mut session.sock)?;
        }
        if session.conn.handshake_kind() != Some(HandshakeKind::Resumed) {
            self.full.fetch_add(1, Ordering::Relaxed);
        }
        Ok(session)
    }

    /// How many sessions began with a full handshake so far.
    pub(crate) fn full_handshakes(&self) -> usize {
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security").finish_non_exhaustive()
    }
}

/// A socket that is read in large pieces: rustls by itself reads 4 KiB at a time.
#[derive(Debug)]
pub(crate) struct Buffered(BufReader<TcpStream>);

impl Buffered {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self(BufReader::with_capacity(MAX_READ, socket))
    }

    pub(crate) fn get_ref(&self) -> &TcpStream {
        self.0.get_ref()
    }
}

impl Read for Buffered {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

impl Write for Buffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the proxies' certificate and key, and both in one file, as HAProxy wants them.
pub(crate) fn write_certificate(directory: &Path) -> io::Result<()> {
    let (certificate, key) = (CERTIFICATE.cert.pem(), CERTIFICATE.signing_key.serialize_pem());
    fs::write(directory.join("both.pem"), format!("{certificate}{key}"))?;
    fs::write(directory.join("certificate.pem"), certificate)?;
    fs::write(directory.join("key.pem"), key)
}

/// Returns how the floor serves TLS, with the certificate that [`write_certificate`] has written.
pub(crate) fn server_config(directory: &Path) -> io::Result<Arc<ServerConfig>> {
    let certificate = CertificateDer::from_pem_file(directory.join("certificate.pem")).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(directory.join("key.pem")).map_err(io::Error::other)?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    Ok(config.into())
}

fn provider() -> Arc<CryptoProvider> {
    let provider = CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    };
    provider.into()
}

pub(crate) fn server_name() -> ServerName<'static> {
    ServerName::try_from(NAME).unwrap()
}

/// ECDSA on P-256, as most have it. It signs itself: clients that trust it have one signature to check.
static CERTIFICATE: LazyLock<CertifiedKey<rcgen::KeyPair>> =
    LazyLock::new(|| rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap());
const NAME: &str = "proxy.bench";
/// As much as both ends of a bulk tunnel read at once.
pub(crate) const MAX_READ: usize = 128 * 1024;

//! Gets a key set from its URL: one request over HTTP/1.1, without redirects, in bounded time and size.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{StatusCode, Uri};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::key_set::MAX_BYTES;
use crate::base::file;
use crate::base::follow::Reads;
use crate::base::text::chain;
use crate::net::exchange;
use crate::net::x509::pem::items;
use crate::net::x509::{MAX_PEM_BYTES as LARGEST_PEM, PemError};

/// The URL of a key set.
#[derive(Debug)]
pub(super) struct Endpoint {
    url: Uri,
    is_tls: bool,
    host: Box<str>,
    port: u16,
    /// The authorities to trust; `None` is the system's.
    ca: Option<PathBuf>,
}

impl Endpoint {
    /// Creates the endpoint of a URL that the settings have accepted.
    pub(super) fn new(url: &Uri, ca: Option<PathBuf>) -> Self {
        let is_tls = url.scheme() == Some(&Scheme::HTTPS);
        let host = url.host().unwrap_or_default();
        Self {
            url: url.clone(),
            is_tls,
            host: host.trim_start_matches('[').trim_end_matches(']').into(),
            port: url.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            ca,
        }
    }

    /// Gets the key set.
    ///
    /// # Errors
    /// The reason, for the operator, such as no whole answer within [`REQUEST_TIMEOUT`].
    pub(super) async fn get(&self, reads: &Reads) -> Result<Vec<u8>, Box<str>> {
        match timeout(REQUEST_TIMEOUT, self.request(reads)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no whole answer within {}s", REQUEST_TIMEOUT.as_secs()).into()),
        }
    }

    async fn request(&self, reads: &Reads) -> Result<Vec<u8>, Box<str>> {
        let stream = self.connect().await?;
        if !self.is_tls {
            return self.exchange(stream).await;
        }
        let ca = self.ca.clone();
        // The files are read each time, so a renewed authority counts.
        let config = reads.run(move || tls(ca.as_deref())).await;
        let config = config.map_err(|error| format!("its authorities were {error}"))??;
        let name =
            ServerName::try_from(self.host.to_string()).map_err(|_| "its host is not a name for a certificate")?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        Box::pin(self.exchange(stream.map_err(|error| chain(&error))?)).await
    }

    /// Tries the addresses of the host in turn; without TLS, only loopback ones.
    async fn connect(&self) -> Result<TcpStream, Box<str>> {
        let addresses = lookup_host((&*self.host, self.port)).await;
        let addresses = addresses.map_err(|error| format!("cannot look up {}: {error}", self.host))?;
        let mut last = format!("{} has no address", self.host);
        for address in addresses.filter(|address| self.is_tls || address.ip().is_loopback()) {
            let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
            match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = format!("cannot connect to {address}: {error}"),
            }
        }
        Err(last.into())
    }

    async fn exchange<S>(&self, stream: S) -> Result<Vec<u8>, Box<str>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let path = self.url.path_and_query().map_or("/", |path| path.as_str());
        let host = self.url.authority().map_or("", |authority| authority.as_str());
        let request = exchange::request(path, host, "application/jwk-set+json, application/json");
        let (response, _running) = exchange::send_request(stream, request, Bytes::new()).await?;
        match response.status() {
            StatusCode::OK => Ok(exchange::body(response.into_body(), MAX_BYTES).await?.into()),
            status => {
                let advice = match status.is_redirection() {
                    true => ": redirects are not followed, give the final URL",
                    false => "",
                };
                Err(format!("the answer is {}{advice}", status.as_u16()).into())
            }
        }
    }
}

/// Returns the TLS settings, which trust only `ca` if it is given, else the system's certificates. With `ca`, a
/// certificate of a public authority is not accepted for a private issuer.
fn tls(ca: Option<&Path>) -> Result<ClientConfig, Box<str>> {
    let roots = match ca {
        Some(path) => roots_of(path)?,
        None => {
            let mut roots = RootCertStore::empty();
            // Some systems ship certificates that cannot be parsed. That matters only if there are no others.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    if roots.is_empty() {
        return Err("the system has no certificates to trust: name a file (ca)".into());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| chain(&error))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

pub(super) fn roots_of(path: &Path) -> Result<RootCertStore, Box<str>> {
    let fault = |reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let bytes = file::read(path, LARGEST_PEM).map_err(|error| fault(&PemError::unreadable(&error)))?;
    let certificates = items::<CertificateDer<'static>>(&bytes).map_err(|error| fault(&error))?;
    let mut roots = RootCertStore::empty();
    for (line, certificate) in certificates {
        let added = roots.add(certificate);
        added.map_err(|error| fault(&format!("line {line}: the certificate is not valid: {}", chain(&error))))?;
    }
    Ok(roots)
}

/// From the look-up of the host to the end of the body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// For one address. The rest of [`REQUEST_TIMEOUT`] is left for the others.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

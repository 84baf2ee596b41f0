//! Requests to the API server of a kubeconfig's context, with the credentials of its user.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use zeroize::Zeroizing;

use super::authorization::Authorization;
use super::error::{ApiFault, CredentialError};
use super::kubeconfig::{Cluster, Resolved};
use super::{Credentials, user};
use crate::base::json::Object;
use crate::base::text::printable;
use crate::client::dial::tls;

/// The API server of a context.
pub(super) struct ApiServer<'a> {
    cluster: &'a Cluster,
    /// The address as the kubeconfig has it.
    pub(super) address: String,
    wanted: &'static str,
    host: String,
    port: u16,
    is_tls: bool,
    /// The path in front of the API's own, as behind Rancher.
    prefix: String,
}

impl<'a> ApiServer<'a> {
    /// That of what a context leads to. `wanted` is what it will be asked for, for messages.
    pub(super) fn of(resolved: &'a Resolved, wanted: &'static str) -> Result<Self, CredentialError> {
        let missing = || CredentialError::NoCluster(printable(&resolved.context, LONGEST_NAME));
        let cluster = resolved.cluster.as_ref().ok_or_else(missing)?;
        let address = cluster.server.clone().ok_or_else(missing)?;
        let shown = printable(&address, LONGEST_NAME);
        let refuse = |fault| CredentialError::Api {
            server: shown.clone(),
            wanted,
            fault: Box::new(fault),
        };
        let uri: Uri = address.parse().map_err(|_| refuse(ApiFault::Address))?;
        let host = uri.host().filter(|_| !address.contains('@'));
        let host = host
            .ok_or_else(|| refuse(ApiFault::Address))?
            .trim_matches(['[', ']'])
            .to_owned();
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if is_loopback(&host) => false,
            Some("http") => return Err(refuse(ApiFault::Cleartext)),
            Some(_) | None => return Err(refuse(ApiFault::Address)),
        };
        if cluster.insecure_skip_tls_verify == Some(true) {
            return Err(refuse(ApiFault::Unverified));
        }
        if cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty()) {
            return Err(refuse(ApiFault::ProxyUrl));
        }
        Ok(Self {
            cluster,
            port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            address: shown,
            wanted,
            host,
            is_tls,
        })
    }

    /// The fault as an error that names the server.
    pub(super) fn error(&self, fault: ApiFault) -> CredentialError {
        CredentialError::Api {
            server: self.address.clone(),
            wanted: self.wanted,
            fault: Box::new(fault),
        }
    }

    /// Asks, and returns the body of a success.
    pub(super) async fn request(
        &self,
        credentials: &Credentials,
        question: &Question<'_>,
        deadline: Instant,
    ) -> Result<Zeroizing<Vec<u8>>, ApiFault> {
        let request = self.message(credentials, question)?;
        let deadline = deadline.min(Instant::now() + LONGEST_REQUEST);
        let answered = async {
            // Before the first packet: a wrong certificate is reported whatever the state of the network.
            let tls = if self.is_tls {
                Some(self.tls(credentials)?)
            } else {
                None
            };
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
            let stream = stream.map_err(ApiFault::Connect)?;
            match tls {
                None => {
                    permit_cleartext(stream.peer_addr())?;
                    Box::pin(exchange(stream, request, question.largest)).await
                }
                Some((tls, name)) => {
                    let stream = tls.connect(name, stream).await.map_err(ApiFault::Tls)?;
                    Box::pin(exchange(stream, request, question.largest)).await
                }
            }
        };
        let answered = timeout_at(deadline, Box::pin(answered)).await;
        let (status, body) = answered.map_err(|_| ApiFault::Deadline)??;
        if status.is_success() {
            Ok(body)
        } else {
            Err(refusal(status, &body, credentials.authorization.as_ref()))
        }
    }

    fn message(&self, credentials: &Credentials, question: &Question<'_>) -> Result<Request<Full<Bytes>>, ApiFault> {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        let mut request = Request::builder()
            .method(question.method.clone())
            .uri(format!("{}{}", self.prefix, question.path))
            .header(header::HOST, format!("{host}:{}", self.port))
            .header(header::USER_AGENT, crate::client::dial::head::USER_AGENT)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, question.media_type);
        if let Some(authorization) = &credentials.authorization {
            let field = authorization.field();
            let mut value = http::HeaderValue::from_str(field.expose()).map_err(|_| ApiFault::Address)?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        request
            .body(Full::from(question.body.clone()))
            .map_err(|_| ApiFault::Address)
    }

    fn tls(&self, credentials: &Credentials) -> Result<(TlsConnector, ServerName<'static>), ApiFault> {
        let name = self.cluster.tls_server_name.as_deref().filter(|name| !name.is_empty());
        let name = ServerName::try_from(name.unwrap_or(&self.host).to_owned()).map_err(|_| ApiFault::Address)?;
        let pem = match (
            &self.cluster.certificate_authority_data,
            &self.cluster.certificate_authority,
        ) {
            (Some(data), _) if !data.is_empty() => Some(user::decode("certificate-authority-data", data)),
            (_, Some(path)) => Some(user::read(path)),
            (_, None) => None,
        };
        let roots = match pem.transpose().map_err(|error| ApiFault::Authority(Box::new(error)))? {
            Some(pem) => tls::roots_in(pem.as_bytes()).map_err(ApiFault::Roots)?,
            None => tls::system_roots().map_err(|_| ApiFault::NoRoots)?,
        };
        let pair = credentials.certificate.as_ref().map(tls::KeyPair::load);
        let pair = pair.transpose().map_err(ApiFault::Identity)?;
        let config = tls::config(roots, pair).map_err(ApiFault::Setup)?;
        Ok((TlsConnector::from(Arc::new(config)), name))
    }
}

/// One request, and the whole answer.
async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    largest: usize,
) -> Result<(StatusCode, Zeroizing<Vec<u8>>), ApiFault>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let begun = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = begun.map_err(ApiFault::Http)?;
    let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let (head, body) = sender.send_request(request).await.map_err(ApiFault::Http)?.into_parts();
    let mut body = Limited::new(body, largest);
    let mut received = Zeroizing::new(Vec::with_capacity(largest));
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => received.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
            Err(error) => match error.downcast::<hyper::Error>() {
                Ok(error) => return Err(ApiFault::Http(*error)),
                Err(_) => return Err(ApiFault::Long),
            },
        }
    }
    Ok((head.status, received))
}

/// What the API server is asked.
#[derive(Debug)]
pub(in crate::client) struct Question<'a> {
    pub(in crate::client) method: Method,
    pub(in crate::client) path: &'a str,
    /// That of the body.
    pub(in crate::client) media_type: &'static str,
    pub(in crate::client) body: String,
    /// The bytes of the longest answer. As many are taken at once, since a token in them is to be overwritten.
    pub(in crate::client) largest: usize,
}

/// The refusal in the server's words, if it has sent a Status object. The server, or what stands in front of it, may quote
/// the request.
fn refusal(status: StatusCode, body: &[u8], sent: Option<&Authorization>) -> ApiFault {
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    let read = serde_json::from_slice::<Object<Refusal>>(body);
    let message = read.map_or_else(
        |_| String::new(),
        |Object(refusal)| printable(&refusal.message, LONGEST_MESSAGE),
    );
    ApiFault::Status {
        code: status.as_u16(),
        message: match sent {
            Some(sent) => sent.secret().redacted(&message),
            None => message,
        },
    }
}

/// Whether this is the name or address of this host alone.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(is_loopback_address)
}

fn is_loopback_address(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// A resolver may lead `localhost` elsewhere.
fn permit_cleartext(peer: io::Result<SocketAddr>) -> Result<(), ApiFault> {
    if peer.is_ok_and(|peer| is_loopback_address(peer.ip())) {
        return Ok(());
    }
    Err(ApiFault::Cleartext)
}

/// The time for one request.
const LONGEST_REQUEST: Duration = Duration::from_secs(30);
/// Characters of a name in a message.
const LONGEST_NAME: usize = 120;
/// Characters of the server's message.
const LONGEST_MESSAGE: usize = 250;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_in_clear_to_this_host_alone_whatever_its_name_leads_to() {
        for (peer, expected) in [
            ("127.0.0.1:80", true),
            ("127.8.8.8:80", true),
            ("[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("10.99.0.1:80", false),
            ("[::ffff:10.99.0.1]:80", false),
            ("[fe80::1]:80", false),
            ("0.0.0.0:80", false),
        ] {
            let permitted = permit_cleartext(Ok(peer.parse().unwrap()));
            assert_eq!(permitted.is_ok(), expected, "{peer}");
            assert!(matches!(permitted, Ok(()) | Err(ApiFault::Cleartext)));
        }
        assert!(permit_cleartext(Err(io::ErrorKind::NotConnected.into())).is_err());
    }
}

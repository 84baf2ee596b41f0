//! Gets a key set from its URL, also through a forward proxy: one request over HTTP/1.1, without redirects, in bounded time
//! and size.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{StatusCode, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::key_set::MAX_BYTES;
use crate::base::follow::ReadPool;
use crate::base::text::chain;
use crate::net::exchange;
use crate::policy::access::options::Issuer;
use crate::uplink::dial::forward::ForwardProxy;
use crate::uplink::dial::server::HttpServer;
use crate::uplink::dial::tls::{Connector, Peer, Verifier, verifier_of};
use crate::uplink::dial::url::ProxyUrl;

/// The URL of a key set.
#[derive(Debug)]
pub(super) struct Endpoint {
    url: Uri,
    /// The authorities to trust; `None` is the system's.
    ca: Option<PathBuf>,
    /// True if no forward proxy of the environment is used.
    is_direct: bool,
}

impl Endpoint {
    /// Creates the endpoint of a URL that the settings have accepted.
    pub(super) fn new(url: &Uri, issuer: &Issuer) -> Self {
        Self {
            url: url.clone(),
            ca: issuer.ca.clone(),
            is_direct: issuer.no_env_proxy,
        }
    }

    /// Gets the key set.
    ///
    /// # Errors
    /// The reason, for the operator, such as no whole answer within [`REQUEST_TIMEOUT`].
    pub(super) async fn get(&self, reads: &ReadPool) -> Result<Vec<u8>, Box<str>> {
        match timeout(REQUEST_TIMEOUT, self.request(reads)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no whole answer within {}s", REQUEST_TIMEOUT.as_secs()).into()),
        }
    }

    async fn request(&self, reads: &ReadPool) -> Result<Vec<u8>, Box<str>> {
        let (url, ca, is_direct) = (self.url.clone(), self.ca.clone(), self.is_direct);
        // The files are read each time, so a renewed authority counts.
        let server = reads.run(move || server(&url, ca.as_deref(), is_direct)).await;
        let server = server.map_err(|error| format!("its authorities were {error}"))?;
        let server = server.map_err(|error| chain(error.as_ref()))?;
        let stream = server.connect(REQUEST_TIMEOUT).await?;
        Box::pin(self.exchange(stream)).await
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
            StatusCode::OK => Ok(exchange::read_body(response.into_body(), MAX_BYTES).await?.into()),
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

/// Returns the server of a URL and the way to it. It trusts only `ca` if that is given, else the system's certificates: a
/// certificate of a public authority is not accepted for a private issuer.
fn server(url: &Uri, ca: Option<&Path>, is_direct: bool) -> Result<HttpServer, Box<dyn Error + Send + Sync>> {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let address: ProxyUrl = format!("{}://{authority}", url.scheme_str().unwrap_or_default()).parse()?;
    let is_local = url.scheme() != Some(&Scheme::HTTPS);
    let tls = || {
        let verifier = ca.map_or_else(|| Verifier::of_system(Peer::ISSUER), |ca| verifier_of(ca, Peer::ISSUER));
        Connector::for_server(address.host(), verifier?, None)
    };
    Ok(HttpServer {
        forward: if is_direct {
            None
        } else {
            ForwardProxy::for_server(&address)?
        },
        tls: if is_local { None } else { Some(tls()?) },
        url: address,
        is_local,
    })
}

/// From the look-up of the host to the end of the body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

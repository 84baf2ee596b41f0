//! Connections to a server other than the proxy, over HTTP: the API server of a cluster, or an issuer of OIDC.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use super::deadline::Deadline;
use super::dialer::connect_to_server;
use super::forward::ForwardProxy;
use super::io::BoxedIo;
use super::proxy_connection::via_forward_proxy;
use super::tls::Connector;
use super::url::ProxyUrl;
use crate::base::text::chain;
use crate::uplink::error::ClientError;

/// A server, and the way to it.
pub(crate) struct HttpServer {
    /// Its address.
    pub(crate) url: ProxyUrl,
    /// The forward proxy in between, if there is one.
    pub(crate) forward: Option<ForwardProxy>,
    /// Its TLS; `None` for `http://`.
    pub(crate) tls: Option<Connector>,
    /// True if only a server on this host may be reached.
    pub(crate) is_local: bool,
}

impl HttpServer {
    /// Connects to it within that time.
    ///
    /// # Errors
    /// The reason.
    pub(crate) async fn connect(&self, within: Duration) -> Result<BoxedIo, String> {
        match timeout(within, Box::pin(self.open(within))).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("no connection to {self} within {within:?}")),
        }
    }

    async fn open(&self, within: Duration) -> Result<BoxedIo, String> {
        let hop = self.forward.as_ref().map_or(&self.url, ForwardProxy::url);
        let is_allowed = |address: &SocketAddr| !self.is_local || address.ip().is_loopback();
        let opened = async {
            let stream = connect_to_server(hop, is_allowed).await?;
            match &self.forward {
                None => Ok(Box::new(stream) as BoxedIo),
                Some(forward) => Box::pin(via_forward_proxy(forward, stream, &self.url, Deadline::after(within))).await,
            }
        };
        let stream = opened.await.map_err(|error: ClientError| match &self.forward {
            None => chain(&error),
            Some(_) => format!("{self} is not reached: {}", chain(&error)),
        })?;
        let Some(tls) = &self.tls else { return Ok(stream) };
        let secured = Box::pin(tls.connect(stream)).await;
        Ok(Box::new(secured.map_err(|error| chain(error.as_ref()))?))
    }
}

/// Prints its address, and the forward proxy in between.
impl fmt::Display for HttpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.forward {
            Some(forward) => write!(f, "{} through {forward}", self.url.authority()),
            None => write!(f, "{}", self.url.authority()),
        }
    }
}

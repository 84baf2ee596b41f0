//! One request to the proxy with the current credentials, and a second one with fresh credentials if it rejects them.

use std::mem::take;
use std::net::{IpAddr, SocketAddr};

use anyhow::anyhow;

use super::credential_cache::CachedLogin;
use crate::uplink::Options;
use crate::uplink::credentials::Credentials;
use crate::uplink::dial::deadline::{Deadline, Step};
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::dial::head::{Agreement, Request, Wanted};
use crate::uplink::dial::io::BoxedIo;
use crate::uplink::dial::proxy_connection;
use crate::uplink::dial::tls;
use crate::uplink::dial::url::Scheme;
use crate::uplink::dial::websocket::{Upgrade, WebSocketStream};
use crate::uplink::error::{ClientError, Refusal};

/// A connection on which the proxy has accepted a request.
pub(crate) struct OpenConnection {
    /// The connection.
    pub(crate) stream: BoxedIo,
    /// The address of the proxy; `None` if there is another proxy in between.
    pub(crate) peer: Option<SocketAddr>,
    /// The answer of the proxy.
    pub(crate) agreement: Agreement,
}

/// Opens a connection by at most two requests.
///
/// The second one is sent if the proxy answers 407, or rejects the certificate of the credentials, and the source has others
/// by then.
pub(crate) async fn open(
    options: &Options,
    wanted: &Wanted<'_>,
    login: &mut CachedLogin,
    dialer: &mut ProxyDialer,
) -> Result<OpenConnection, ClientError> {
    let source = &options.credentials;
    // Before a plugin opens a browser.
    if is_in_clear(options) {
        return Err(ClientError::Cleartext);
    }
    let credentials = Box::pin(login.credentials(source)).await.map_err(no_login)?;
    let rejection = match Box::pin(request(options, wanted, &credentials, dialer)).await {
        Err(ClientError::Refused(refusal))
            if refusal.status == 407 || (refusal.status == 401 && options.proxy.websocket().is_some()) =>
        {
            if source.source.is_none() && options.proxy.authorization().is_none() {
                let refusal = Refusal {
                    retry_after: None,
                    ..refusal
                };
                return Err(ClientError::Never(anyhow!(
                    "{refusal} (give credentials: --kubeconfig, --context, --token-file, --token-command or \
                     SWITCHBOARD_TOKEN)"
                )));
            }
            ClientError::Refused(refusal)
        }
        // Not the certificate of `--cert`, which takes precedence.
        Err(error)
            if credentials.certificate.is_some()
                && options.trust.identity.is_none()
                && tls::is_refused_certificate(&error) =>
        {
            error
        }
        ended => return ended,
    };
    let fresh = Box::pin(login.fresh(source)).await.map_err(no_login)?;
    // Sent again, the credentials would be refused again, and counted as one more failed login.
    if fresh == credentials {
        return Err(rejection);
    }
    Box::pin(request(options, wanted, &fresh, dialer)).await
}

/// Returns the error for missing credentials. It allows a retry: a source may need the network, and files are replaced.
fn no_login(error: anyhow::Error) -> ClientError {
    ClientError::WithBackoff(error.context("cannot log in to the proxy"))
}

/// Sends one request to the proxy.
async fn request(
    options: &Options,
    wanted: &Wanted<'_>,
    credentials: &Credentials,
    dialer: &mut ProxyDialer,
) -> Result<OpenConnection, ClientError> {
    let Options {
        proxy, forward, trust, ..
    } = options;
    let certificate = credentials.certificate.as_ref();
    let authorization = match &credentials.authorization {
        Some(authorization) => Some(authorization.clone()),
        None if proxy.scheme() == Scheme::Http && certificate.is_some() => {
            return Err(no_login(anyhow!(
                "the user has a client certificate and no token, and only an https:// proxy can be shown one"
            )));
        }
        None => proxy.authorization().map(|basic| basic.to_owned().into()),
    };
    let deadline = Deadline::after(options.timeout);
    let tls = match proxy.scheme() {
        Scheme::Http => None,
        // Before the first packet, so that a wrong file is reported regardless of the network.
        Scheme::Https => Some(tls::Connector::new(proxy.host(), trust, certificate)?),
    };
    let route = proxy_connection::open(proxy, forward.as_ref(), dialer, deadline).await?;
    let (mut stream, deadline) = (route.stream, route.deadline);
    if let Some(tls) = tls {
        dialer.step = Step::Tls;
        stream = Box::new(Box::pin(deadline.bound(Step::Tls, tls.handshake(stream))).await?);
    }
    let upgrade = Upgrade::new(proxy);
    let is_websocket = upgrade.is_some();
    dialer.step = if is_websocket { Step::WebSocket } else { Step::Answer };
    // A resolver may point `localhost` to another host.
    if may_not_be_clear(options) && !route.peer.is_some_and(|peer| is_loopback(peer.ip())) {
        return Err(ClientError::Cleartext);
    }
    if let Some(text) = fault_over_websockets(wanted).filter(|_| is_websocket) {
        return Err(ClientError::Never(anyhow!(text)));
    }
    let request = Request {
        wanted,
        authorization,
        upgrade,
    };
    let opened = Box::pin(request.open(&mut stream, deadline)).await;
    if let Ok(_) | Err(ClientError::Refused(_)) = opened {
        dialer.step = Step::Answer;
    }
    let mut agreement = opened?;
    if is_websocket {
        stream = Box::new(WebSocketStream::new(stream, take(&mut agreement.early)));
    }
    // Else anybody on the way could publish keys. That credentials may be sent there does not change it.
    let is_authentic = proxy.scheme() == Scheme::Https || route.peer.is_some_and(|peer| is_loopback(peer.ip()));
    agreement.host_keys.take_if(|_| !is_authentic);
    Ok(OpenConnection {
        stream,
        peer: route.peer,
        agreement,
    })
}

/// Returns the reason why a request cannot be made over a WebSocket, if there is one.
fn fault_over_websockets(wanted: &Wanted<'_>) -> Option<&'static str> {
    match wanted {
        Wanted::Registration { .. } => {
            Some("an anchor registers at an http:// or https:// proxy, not over a WebSocket")
        }
        Wanted::Listing { .. } => Some("names are listed by an http:// or https:// proxy, not over a WebSocket"),
        Wanted::Tunnel { .. } => None,
    }
}

/// Returns whether anybody on the way could answer for the proxy.
pub fn is_unauthenticated(options: &Options) -> bool {
    options.proxy.scheme() == Scheme::Http && (options.forward.is_some() || !is_local(options.proxy.host()))
}

/// Returns whether the source's credential would leave this host in clear without `--allow-cleartext`.
pub fn is_in_clear(options: &Options) -> bool {
    may_not_be_clear(options) && is_unauthenticated(options)
}

/// Returns whether only a proxy on this host may receive the source's credential: the scheme is `http://`, and
/// `--allow-cleartext` is not given.
fn may_not_be_clear(options: &Options) -> bool {
    let source = &options.credentials;
    source.source.is_some() && options.proxy.scheme() == Scheme::Http && !source.cleartext
}

/// Returns whether a host is this machine: `localhost`, or a loopback address.
fn is_local(host: &str) -> bool {
    let is_name = host == "localhost" || host.ends_with(".localhost");
    is_name || host.parse().is_ok_and(is_loopback)
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

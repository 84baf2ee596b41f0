//! One request for the tunnel with the credentials that there are, and a second one with fresh credentials behind a 407.

use std::net::IpAddr;

use anyhow::anyhow;

use super::login::Login;
use super::notice;
use super::notice::Watched;
use crate::client::credentials::Credentials;
use crate::client::dial::deadline::{Deadline, Step};
use crate::client::dial::dialing::Dialing;
use crate::client::dial::head::Request;
use crate::client::dial::route::{self, Route};
use crate::client::dial::tls::{self, KeyPair};
use crate::client::dial::transport::Stream;
use crate::client::dial::url::Scheme;
use crate::client::error::{ClientError, Refusal};
use crate::client::options::Options;

/// The stream of an open tunnel, and the bytes of it that are already read.
pub(in crate::client) type Tunnel = (Stream, Vec<u8>);

/// The tunnel, by at most two requests.
///
/// The second one is sent if the proxy answers 407 and the source has other credentials by then.
pub(in crate::client) async fn open(
    options: &Options,
    login: &mut Login,
    dialing: &mut Dialing,
) -> Result<Tunnel, ClientError> {
    let source = &options.credentials;
    // Before a plugin opens a browser.
    if source.has_source()
        && options.proxy.scheme() == Scheme::Http
        && !source.cleartext
        && (options.forward.is_some() || !is_local(options.proxy.host()))
    {
        return Err(ClientError::Cleartext);
    }
    let credentials = Box::pin(login.credentials(source)).await.map_err(no_login)?;
    let refusal = match Box::pin(Attempt::new(options, &credentials)?.open(dialing)).await {
        Err(ClientError::Refused(refusal)) if refusal.status == 407 => refusal,
        ended => return ended,
    };
    if !source.has_source() && options.proxy.authorization().is_none() {
        let refusal = Refusal {
            retry_after: None,
            ..refusal
        };
        return Err(ClientError::Never(anyhow!(
            "{refusal} (give credentials: --kubeconfig, --context, --token-file, --token-command or SWITCHBOARD_TOKEN)"
        )));
    }
    let fresh = Box::pin(login.fresh(source)).await.map_err(no_login)?;
    // The same would be refused once more, and be counted as one more failure.
    if fresh == credentials {
        return Err(ClientError::Refused(refusal));
    }
    Box::pin(Attempt::new(options, &fresh)?.open(dialing)).await
}

/// There are no credentials for the proxy. What gives them may need the network, and files may be replaced at the moment.
fn no_login(error: anyhow::Error) -> ClientError {
    ClientError::WithPauses(error.context("cannot log in to the proxy"))
}

/// One request to the proxy.
struct Attempt<'a> {
    options: &'a Options,
    request: Request<'a>,
    certificate: Option<&'a KeyPair>,
}

impl<'a> Attempt<'a> {
    fn new(options: &'a Options, credentials: &'a Credentials) -> Result<Self, ClientError> {
        let certificate = credentials.certificate.as_ref();
        let authorization = match &credentials.authorization {
            Some(authorization) => Some(authorization.field()),
            None if options.proxy.scheme() == Scheme::Http && certificate.is_some() => {
                return Err(no_login(anyhow!(
                    "the user has a client certificate and no token, and only an https:// proxy can be shown one"
                )));
            }
            None => options.proxy.authorization().map(|basic| basic.to_owned().into()),
        };
        Ok(Self {
            options,
            request: Request {
                target: &options.target,
                authorization,
                end_marker: notice::marker(),
            },
            certificate,
        })
    }

    async fn open(&self, dialing: &mut Dialing) -> Result<Tunnel, ClientError> {
        let Options {
            proxy, forward, trust, ..
        } = self.options;
        let deadline = Deadline::after(self.options.timeout);
        match proxy.scheme() {
            Scheme::Http => {
                let route = route::open(proxy, forward.as_ref(), dialing, deadline).await?;
                dialing.step = Step::Answer;
                self.permit_cleartext(&route)?;
                self.ask(route.stream, route.deadline).await
            }
            Scheme::Https => {
                // Before the first packet: a wrong file is reported whatever the state of the network.
                let tls = tls::Connector::new(proxy.host(), trust, self.certificate)?;
                let route = route::open(proxy, forward.as_ref(), dialing, deadline).await?;
                let Route { stream, deadline, .. } = route;
                dialing.step = Step::Tls;
                let stream = Box::pin(deadline.bound(Step::Tls, tls.handshake(stream))).await?;
                dialing.step = Step::Answer;
                self.ask(Box::new(stream), deadline).await
            }
        }
    }

    /// Has the proxy open the tunnel over this connection.
    async fn ask(&self, mut stream: Stream, deadline: Deadline) -> Result<Tunnel, ClientError> {
        let (early, marker) = Box::pin(self.request.open(&mut stream, deadline)).await?;
        Ok(match marker {
            Some(marker) => (Box::new(Watched::new(stream, marker, early)), Vec::new()),
            None => (stream, early),
        })
    }

    /// A resolver may lead `localhost` elsewhere.
    fn permit_cleartext(&self, route: &Route) -> Result<(), ClientError> {
        let source = &self.options.credentials;
        if !source.has_source() || source.cleartext || route.peer.is_some_and(is_loopback) {
            return Ok(());
        }
        Err(ClientError::Cleartext)
    }
}

/// Whether a host is this one by its name, or by an address that never leaves it.
fn is_local(host: &str) -> bool {
    let is_name = host == "localhost" || host.ends_with(".localhost");
    is_name || host.parse().is_ok_and(is_loopback)
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

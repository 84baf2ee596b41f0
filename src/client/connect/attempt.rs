//! One request for the tunnel with the credentials that there are, and a second one with fresh credentials behind a 407.

use std::net::IpAddr;

use anyhow::anyhow;

use super::login::Login;
use super::notice;
use super::notice::Watched;
use crate::base::secret::Secret;
use crate::client::credentials::{Cleartext, Credentials};
use crate::client::dial::dialing::Dialing;
use crate::client::dial::head::Request;
use crate::client::dial::route::{self, Route};
use crate::client::dial::tls::{self, KeyPair};
use crate::client::dial::transport::Stream;
use crate::client::{ClientError, Deadline, Options, Scheme, Step};

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
        return Err(ClientError::Credentials(Cleartext.into()));
    }
    let credentials = Box::pin(login.credentials(source)).await;
    let credentials = credentials.map_err(ClientError::Credentials)?;
    let (reason, retry_after) = match Box::pin(Attempt::new(options, &credentials)?.run(dialing)).await {
        Err(ClientError::Refused {
            status: 407,
            reason,
            retry_after,
            ..
        }) => (reason, retry_after),
        ended => return ended,
    };
    if !source.has_source() && options.proxy.authorization().is_none() {
        return Err(ClientError::CredentialsRequired { reason });
    }
    let fresh = Box::pin(login.fresh(source)).await;
    let fresh = fresh.map_err(ClientError::Credentials)?;
    // The same would be refused once more, and be counted as one more failure.
    if fresh == credentials {
        return Err(ClientError::Refused {
            status: 407,
            reason,
            retry_after,
            starting: None,
        });
    }
    Box::pin(Attempt::new(options, &fresh)?.run(dialing)).await
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
                return Err(ClientError::Credentials(anyhow!(
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

    async fn run(&self, dialing: &mut Dialing) -> Result<Tunnel, ClientError> {
        Box::pin(self.open(dialing))
            .await
            .map_err(|error| self.concealed(error))
    }

    async fn open(&self, dialing: &mut Dialing) -> Result<Tunnel, ClientError> {
        let Options { proxy, trust, .. } = self.options;
        let deadline = Deadline::after(self.options.timeout);
        match proxy.scheme() {
            Scheme::Http => {
                let route = route::open(self.options, dialing, deadline).await?;
                dialing.step = Step::Answer;
                self.permit_cleartext(&route)?;
                self.ask(route.stream, route.deadline).await
            }
            Scheme::Https => {
                // Before the first packet: a wrong file is reported whatever the state of the network.
                let tls = tls::Connector::new(proxy.host(), trust, self.certificate)?;
                let Route { stream, deadline, .. } = route::open(self.options, dialing, deadline).await?;
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

    /// The end of the attempt, without parts of the credential that the proxy may have quoted.
    fn concealed(&self, error: ClientError) -> ClientError {
        let field = self.request.authorization.as_ref().map(Secret::expose);
        let secret = field.and_then(|field| field.split_once(' '));
        match secret {
            Some((_scheme, secret)) => error.without(&Secret::from(secret)),
            None => error,
        }
    }

    /// A resolver may lead `localhost` elsewhere.
    fn permit_cleartext(&self, route: &Route) -> Result<(), ClientError> {
        let source = &self.options.credentials;
        if !source.has_source() || source.cleartext || route.peer.is_some_and(is_loopback) {
            return Ok(());
        }
        Err(ClientError::Credentials(Cleartext.into()))
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

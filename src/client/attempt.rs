//! One request for the tunnel with the credentials that there are, and a second one with fresh credentials behind a 407.

use std::future::pending;
use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::credentials::{CredentialError, Credentials};
use super::head::Request;
use super::tls::KeyPair;
use super::{ClientError, Deadline, Local, Options, Scheme, Step, connection, http1, http2, tls};
use crate::secret::Secret;

/// The tunnel, by at most two requests.
///
/// The second one is sent if the proxy answers 407 and the source has other credentials by then.
pub(super) async fn tunnel<R, W>(options: &Options, local: &mut Local<R, W>) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let source = &options.credentials;
    // Before a plugin opens a browser.
    if source.has_source()
        && options.proxy.scheme() == Scheme::Http
        && !source.cleartext
        && !is_local(options.proxy.host())
    {
        return Err(ClientError::Credentials(CredentialError::Cleartext));
    }
    let Some(credentials) = obtain(options, None, local).await? else {
        return Ok(());
    };
    let attempt = Attempt::new(options, &credentials)?;
    let reason = match attempt.concealed(Box::pin(attempt.run(local)).await) {
        Err(ClientError::Refused { status: 407, reason }) => reason,
        ended => return ended,
    };
    if !source.has_source() && options.proxy.authorization().is_none() {
        return Err(ClientError::CredentialsRequired { reason });
    }
    let Some(fresh) = obtain(options, Some(&credentials), local).await? else {
        return Ok(());
    };
    // The same would be refused once more, and be counted as one more failure.
    if fresh == credentials {
        return Err(ClientError::Refused { status: 407, reason });
    }
    let attempt = Attempt::new(options, &fresh)?;
    attempt.concealed(Box::pin(attempt.run(local)).await)
}

/// Gets the credentials, for as long as stdout has a reader. `None` when it has none any more.
async fn obtain<R, W>(
    options: &Options,
    refused: Option<&Credentials>,
    local: &Local<R, W>,
) -> Result<Option<Credentials>, ClientError> {
    let left = async {
        let Some(is_abandoned) = local.is_abandoned else {
            return pending().await;
        };
        while !is_abandoned(&local.stdout) {
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        biased;
        obtained = Box::pin(options.credentials.obtain(refused)) => obtained.map(Some).map_err(ClientError::Credentials),
        () = left => Ok(None),
    }
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
                return Err(ClientError::Credentials(CredentialError::CertificateInClear));
            }
            None => options.proxy.authorization().map(|basic| basic.to_owned().into()),
        };
        Ok(Self {
            options,
            request: Request {
                target: &options.target,
                authorization,
            },
            certificate,
        })
    }

    async fn run<R, W>(&self, local: &mut Local<R, W>) -> Result<(), ClientError>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let Options {
            proxy, trust, http2, ..
        } = self.options;
        let (request, deadline) = (&self.request, Deadline::after(self.options.timeout));
        match proxy.scheme() {
            Scheme::Http => {
                let stream = connection::connect(proxy, deadline).await?;
                self.permit_cleartext(&stream)?;
                Box::pin(http1::tunnel(stream, request, deadline, local)).await
            }
            Scheme::Https => {
                // Before the first packet: a wrong file is reported whatever the state of the network.
                let tls = tls::Connector::new(proxy.host(), trust, self.certificate, *http2)?;
                let stream = connection::connect(proxy, deadline).await?;
                let stream = Box::pin(deadline.bound(Step::Tls, tls.handshake(stream))).await?;
                if tls::chose_http2(&stream) {
                    Box::pin(http2::tunnel(stream, request, deadline, local)).await
                } else {
                    Box::pin(http1::tunnel(stream, request, deadline, local)).await
                }
            }
        }
    }

    /// The end of the attempt, without parts of the credential that the proxy may have quoted.
    fn concealed(&self, ended: Result<(), ClientError>) -> Result<(), ClientError> {
        let field = self.request.authorization.as_ref().map(Secret::expose);
        let Some((_scheme, secret)) = field.and_then(|field| field.split_once(' ')) else {
            return ended;
        };
        match ended {
            Err(ClientError::Refused { status, reason }) => Err(ClientError::Refused {
                status,
                reason: Secret::from(secret).redacted(&reason),
            }),
            ended => ended,
        }
    }

    /// A resolver may lead `localhost` elsewhere.
    fn permit_cleartext(&self, stream: &TcpStream) -> Result<(), ClientError> {
        let source = &self.options.credentials;
        let is_local = || stream.peer_addr().is_ok_and(|peer| is_loopback(peer.ip()));
        if !source.has_source() || source.cleartext || is_local() {
            return Ok(());
        }
        Err(ClientError::Credentials(CredentialError::Cleartext))
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

/// Between two looks at whether stdout has a reader.
const LOOK: Duration = Duration::from_millis(250);

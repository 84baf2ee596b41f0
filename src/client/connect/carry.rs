//! What is done with an open tunnel: bytes are relayed as they are, or it carries a session with an anchor.

use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;

use super::hangup::{Exit, Leaving};
use super::login::Login;
use super::open_tunnel::{Finished, Opened};
use super::relay::Sent;
use super::session::{Found, Left, Session, find};
use super::{relay, retry_after};
use crate::client::dial::dialing::Dialing;
use crate::client::{ClientError, Local, Options};

/// Opens the tunnel, and carries stdin and stdout to their end.
pub(in crate::client) async fn tunnel<R, W>(
    options: &Options,
    local: &mut Local<R, W>,
    mut exit: Exit,
) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    // A person at a terminal is not ssh.
    let settings = options.session.as_ref().filter(|_| !local.interactive);
    let (mut login, mut dialing) = (Login::default(), Dialing::default());
    let opened = tokio::select! {
        biased;
        opened = Box::pin(retry_after::open(options, &mut login, &mut dialing)) => opened?,
        () = is_left(local) => return Ok(()),
        _ = exit.asked(Leaving::Now) => return Ok(()),
    };
    let of_tunnel = of_tunnel(&opened);
    let Some(settings) = settings else {
        let relayed = opened.carry(|stream, early| async {
            relay::relay(stream, early, local)
                .await
                .map(|_| Finished::unbounded(()))
        });
        return Box::pin(or_now(exit, relayed)).await.map(drop).map_err(of_tunnel);
    };
    let mut session = Session::new(options, settings, local, exit.clone());
    session.dials_by(dialing);
    let carried = opened.carry(|stream, early| async {
        let found = tokio::select! {
            found = find(stream, early) => found?,
            _ = exit.asked(Leaving::Now) => return Ok(Finished::unbounded(Carried::Plain(Sent::Bytes))),
        };
        carry(found, &mut session, exit).await
    });
    match Box::pin(carried).await {
        Ok(Carried::Plain(Sent::Bytes)) => Ok(()),
        // An SSH server identifies itself, and an anchor announces itself, before anything else.
        Ok(Carried::Plain(Sent::Nothing)) => Err(ClientError::Unidentified),
        Ok(Carried::Session(left)) => Box::pin(session.run(Ok(left), &mut login)).await,
        Err(error) if !session.has_begun() => Err(of_tunnel(error)),
        Err(error) => Box::pin(session.run(Err(error), &mut login)).await,
    }
}

/// What a tunnel has carried, and how that has ended.
enum Carried {
    Plain(Sent),
    Session(Left),
}

/// Carries what is at the other end of the tunnel.
async fn carry<R, W>(
    found: Found,
    session: &mut Session<'_, R, W>,
    exit: Exit,
) -> Result<Finished<Carried>, ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    match found {
        Found::Plain { stream, bytes } => {
            let relayed = relay::relay(stream, bytes, session.local());
            let sent = or_now(exit, relayed).await?.unwrap_or(Sent::Bytes);
            Ok(Finished::unbounded(Carried::Plain(sent)))
        }
        Found::Broken { bytes, error } => {
            let stdout = &mut session.local().stdout;
            stdout.write_all(&bytes).await.map_err(ClientError::Output)?;
            stdout.flush().await.map_err(ClientError::Output)?;
            Err(ClientError::Lost(error))
        }
        Found::Anchor { stream, opening } => {
            let Finished { done, farewell } = session.begin(stream, opening).await?;
            Ok(Finished {
                done: Carried::Session(done),
                farewell,
            })
        }
    }
}

/// The error of an open tunnel. A reset over HTTP/1.1 may be the target's, which the proxy has passed on; over HTTP/2 that
/// would be one of the stream.
fn of_tunnel(opened: &Opened) -> fn(ClientError) -> ClientError {
    match opened {
        Opened::Http1(..) => |error| {
            if let ClientError::Lost(lost) = error {
                let is_reset = lost.kind() == io::ErrorKind::ConnectionReset;
                return if is_reset {
                    ClientError::Reset(lost)
                } else {
                    ClientError::Lost(lost)
                };
            }
            error
        },
        Opened::Http2(..) => |error| error,
    }
}

/// `None`: the process is asked to go before the work is done.
async fn or_now<T>(
    mut exit: Exit,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<Option<T>, ClientError> {
    tokio::select! {
        biased;
        done = work => done.map(Some),
        _ = exit.asked(Leaving::Now) => Ok(None),
    }
}

/// Completes when stdout has no reader any more.
async fn is_left<R, W>(local: &Local<R, W>) {
    let Some(is_abandoned) = local.is_abandoned else {
        return pending().await;
    };
    while !is_abandoned(&local.stdout) {
        sleep(LOOK).await;
    }
}

/// Between two looks at whether stdout has a reader.
const LOOK: Duration = Duration::from_millis(250);

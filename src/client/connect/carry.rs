//! What is done with an open tunnel: bytes are relayed as they are, or it carries a session with an anchor.

use std::future::pending;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;

use super::hangup::{Exit, Leaving};
use super::login::Login;
use super::session::{Found, Session, find};
use super::stdio::Local;
use super::{relay, retry_after};
use crate::base::authority::Authority;
use crate::client::dial::dialing::Dialing;
use crate::client::error::ClientError;
use crate::client::options::Options;

/// Opens the tunnel, and carries stdin and stdout to their end.
///
/// After an error `local.stdout` stays open, so that the failure can be reported before ssh exits. A stdout whose reader has
/// closed it is no error: ssh ends like that.
pub(in crate::client) async fn tunnel<R, W>(
    options: &Options,
    local: &mut Local<R, W>,
    mut exit: Exit,
) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    options.target.parse::<Authority>().map_err(ClientError::Target)?;
    let (mut login, mut dialing) = (Login::default(), Dialing::default());
    let (stream, early) = tokio::select! {
        biased;
        opened = Box::pin(retry_after::open(options, &mut login, &mut dialing)) => opened?,
        () = is_left(local) => return Ok(()),
        _ = exit.asked(Leaving::Now) => return Ok(()),
    };
    // A person at a terminal is not ssh.
    let Some(settings) = options.session.as_ref().filter(|_| !local.interactive) else {
        let relayed = Box::pin(relay::relay(stream, early, local));
        return or_now(exit, relayed).await.map(drop);
    };
    let found = tokio::select! {
        found = find(stream, early) => found?,
        _ = exit.asked(Leaving::Now) => return Ok(()),
    };
    match found {
        Found::Plain { stream, bytes } => {
            let relayed = Box::pin(relay::relay(stream, bytes, local));
            match or_now(exit, relayed).await? {
                // An SSH server identifies itself, and an anchor announces itself, before anything else.
                Some(false) => Err(ClientError::Unidentified),
                Some(true) | None => Ok(()),
            }
        }
        Found::Broken { bytes, error } => {
            local.stdout.write_all(&bytes).await.map_err(relay::unwritable)?;
            local.stdout.flush().await.map_err(relay::unwritable)?;
            Err(relay::lost(error))
        }
        Found::Anchor { stream, opening } => {
            let session = Session::new(options, settings, local, exit);
            Box::pin(session.run((stream, opening), dialing, &mut login)).await
        }
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

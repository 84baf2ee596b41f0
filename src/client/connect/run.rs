//! Opens and runs a tunnel, which relays bytes as they are, or carries a session with an anchor.

use std::future::pending;
use std::mem;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;

use super::attempt::Tunnel;
use super::session::{ClientSession, FarEnd, detect};
use super::signals::{ExitRequest, ExitSignals};
use super::stdio::Stdio;
use super::{relay, retry_after};
use crate::base::authority::Authority;
use crate::client::known_hosts;
use crate::client::options::{Options, resumption};
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::deadline::Step;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::error::ClientError;

/// The way to the proxy: the connections of one program share the login, not the dialer.
#[derive(Debug, Default)]
pub(in crate::client) struct ProxyAccess {
    pub(in crate::client) dialer: ProxyDialer,
    pub(in crate::client) login: CachedLogin,
}

/// Opens the tunnel, and relays stdin and stdout to their end.
///
/// After an error `stdio.stdout` stays open, so that the failure can be reported before ssh exits. A stdout whose reader has
/// closed it is no error: ssh ends like that.
pub(in crate::client) async fn run<R, W>(
    options: &Options,
    stdio: &mut Stdio<R, W>,
    mut exit: ExitSignals,
    access: &mut ProxyAccess,
) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    options.target.parse::<Authority>().map_err(ClientError::Target)?;
    let ProxyAccess { dialer, login } = access;
    let Tunnel {
        stream,
        early,
        takes_anchor_keys,
    } = tokio::select! {
        biased;
        opened = Box::pin(retry_after::open(options, login, dialer)) => opened?,
        () = stdout_closed(stdio) => return Ok(()),
        _ = exit.requested(ExitRequest::Immediate) => return Ok(()),
    };
    dialer.step = Step::Ssh;
    // A person at a terminal is not ssh.
    let Some(settings) = options.session.as_ref().filter(|_| !stdio.interactive) else {
        if options.verbose && !stdio.interactive {
            (options.output.0)(resumption(false, false));
        }
        let relayed = Box::pin(relay::relay(stream, early, stdio));
        return unless_interrupted(exit, relayed).await.map(drop);
    };
    let found = tokio::select! {
        found = detect(stream, early) => found?,
        _ = exit.requested(ExitRequest::Immediate) => return Ok(()),
    };
    if takes_anchor_keys {
        known_hosts::publish(options.host_keys.as_ref(), &options.output, found.host_keys(), false).await;
    }
    let has_anchor = match &found {
        FarEnd::Anchor { .. } => Some(true),
        FarEnd::Plain { bytes, .. } => bytes.starts_with(b"SSH-").then_some(false),
        FarEnd::Broken { .. } => None,
    };
    if let Some(has_anchor) = has_anchor.filter(|_| options.verbose) {
        (options.output.0)(resumption(true, has_anchor));
    }
    match found {
        FarEnd::Plain { stream, bytes } => {
            let relayed = Box::pin(relay::relay(stream, bytes, stdio));
            match unless_interrupted(exit, relayed).await? {
                // An SSH server identifies itself, and an anchor announces itself, before anything else.
                Some(false) => Err(ClientError::Unidentified),
                Some(true) | None => Ok(()),
            }
        }
        FarEnd::Broken { bytes, error } => {
            stdio.stdout.write_all(&bytes).await.map_err(relay::unwritable)?;
            stdio.stdout.flush().await.map_err(relay::unwritable)?;
            Err(relay::lost(error))
        }
        FarEnd::Anchor { stream, handshake } => {
            let session = ClientSession::new(options, settings, stdio, exit);
            let session_dialer = mem::take(dialer);
            dialer.step = Step::Ssh;
            Box::pin(session.run((stream, handshake), session_dialer, login)).await
        }
    }
}

/// Returns the result of the work; `None` if the process has to exit first.
async fn unless_interrupted<T>(
    mut exit: ExitSignals,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<Option<T>, ClientError> {
    tokio::select! {
        biased;
        done = work => done.map(Some),
        _ = exit.requested(ExitRequest::Immediate) => Ok(None),
    }
}

/// Completes when stdout has no reader any more.
async fn stdout_closed<R, W>(stdio: &Stdio<R, W>) {
    let Some(is_abandoned) = stdio.is_abandoned else {
        return pending().await;
    };
    while !is_abandoned(&stdio.stdout) {
        sleep(LOOK).await;
    }
}

/// The interval between checks that stdout has a reader.
const LOOK: Duration = Duration::from_millis(250);

//! SIGHUP, which ssh sends to its ProxyCommand when ssh exits, and the signals that end the ProxyCommand at once.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::base::platform::Signals;
use crate::uplink::error::ClientError;

/// The exit that a signal requests, in order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::client) enum ExitRequest {
    /// No exit.
    No,
    /// A graceful exit: SIGHUP.
    Graceful,
    /// An immediate exit: SIGTERM and SIGINT.
    Immediate,
}

/// The signals of the process.
#[derive(Clone, Debug)]
pub(in crate::client) struct ExitSignals(pub(in crate::client) watch::Receiver<ExitRequest>);

impl ExitSignals {
    /// Completes once a signal has requested at least `least`.
    pub(in crate::client) async fn requested(&mut self, least: ExitRequest) -> ExitRequest {
        if let Ok(request) = self.0.wait_for(|request| *request >= least).await {
            return *request;
        }
        pending().await
    }
}

/// Runs a tunnel to its end. Returns `None` if a signal ended the tunnel, and it did not close gracefully after SIGHUP:
/// nobody is left to report to.
///
/// ssh sends SIGHUP at every logout, about when it closes stdin and stdout. A process that died of the signal would leave
/// the proxy with a tunnel that was aborted, and perhaps without ssh's last message. So the tunnel has 1 s to close
/// gracefully, by the end of stdin. After SIGTERM and SIGINT it has 1 s to end its credential plugin, and to send the
/// anchor the end of the session.
pub(in crate::client) async fn run_with_signals<T, F>(
    tunnel: impl FnOnce(ExitSignals) -> F,
) -> Option<Result<T, ClientError>>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut signals = Signals::listen();
    let (ask, exit) = watch::channel(ExitRequest::No);
    let mut tunnel = pin!(tunnel(ExitSignals(exit)));
    let request = tokio::select! {
        biased;
        ended = &mut tunnel => return Some(ended),
        is_hangup = signals.next_is_hangup() => if is_hangup { ExitRequest::Graceful } else { ExitRequest::Immediate },
    };
    ask.send_replace(request);
    match timeout(CLOSE_TIMEOUT, tunnel).await {
        Ok(Ok(done)) if request == ExitRequest::Graceful => Some(Ok(done)),
        Ok(_) | Err(_) => None,
    }
}

/// The time for a tunnel to close after a signal.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

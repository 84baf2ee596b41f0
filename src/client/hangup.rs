//! SIGHUP, which ssh sends its ProxyCommand when it exits, and the signals that end it at once.

use std::fs;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::ClientError;

/// What a signal has asked for. Later ones are stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leaving {
    /// Nothing.
    No,
    /// To end in order: SIGHUP.
    Soon,
    /// To end now: SIGTERM, SIGINT.
    Now,
}

/// The signals of the process, for what runs in it.
#[derive(Clone, Debug)]
pub(super) struct Exit(pub(super) watch::Receiver<Leaving>);

impl Exit {
    /// Without signals.
    pub(super) fn never() -> Self {
        Self(watch::channel(Leaving::No).1)
    }

    /// Completes once a signal has asked for that, or for more.
    pub(super) async fn asked(&mut self, least: Leaving) -> Leaving {
        let asked = self
            .0
            .wait_for(|leaving| *leaving >= least)
            .await
            .map(|leaving| *leaving);
        match asked {
            Ok(leaving) => leaving,
            Err(_) => pending().await,
        }
    }
}

/// Runs a tunnel to its end. `None` if a signal ended it before: nothing is left to report to then.
///
/// ssh sends SIGHUP at every logout, and right behind it closes stdin and stdout. A process that died of the signal would
/// leave the proxy with a tunnel that was aborted, and perhaps without ssh's last message. So the tunnel has a moment to
/// end in order, by the end of stdin. Behind SIGTERM and SIGINT it has one to end its credential plugin, and a session to
/// tell its anchor.
pub(super) async fn run_until_hung_up<T, F>(tunnel: impl FnOnce(Exit) -> F) -> Option<Result<T, ClientError>>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut hangups = listen(SignalKind::hangup());
    let (mut terminations, mut interrupts) = (listen(SignalKind::terminate()), listen(SignalKind::interrupt()));
    let (ask, exit) = watch::channel(Leaving::No);
    let mut tunnel = pin!(tunnel(Exit(exit)));
    let leaving = tokio::select! {
        biased;
        ended = &mut tunnel => return Some(ended),
        () = next(&mut terminations) => Leaving::Now,
        () = next(&mut interrupts) => Leaving::Now,
        () = next(&mut hangups) => Leaving::Soon,
    };
    ask.send_replace(leaving);
    match timeout(LONGEST_FAREWELL, tunnel).await {
        Ok(Ok(done)) if leaving == Leaving::Soon => Some(Ok(done)),
        Ok(_) | Err(_) => None,
    }
}

/// The signal, unless it is ignored: `nohup ssh` passes that on to its ProxyCommand.
fn listen(kind: SignalKind) -> Option<Signal> {
    if is_ignored(kind).unwrap_or(false) {
        return None;
    }
    // Without it the process dies of the signal, as any other.
    signal(kind).ok()
}

async fn next(signals: &mut Option<Signal>) {
    match signals {
        Some(signals) => _ = signals.recv().await,
        None => pending().await,
    }
}

/// Whether the process was started with that signal ignored (proc_pid_status(5)).
fn is_ignored(kind: SignalKind) -> io::Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The lowest bit is that of signal 1.
    let bit = kind.as_raw_value() - 1;
    Ok(mask.is_some_and(|mask| mask >> bit & 1 == 1))
}

/// The time of a tunnel to end in order once ssh has exited.
const LONGEST_FAREWELL: Duration = Duration::from_secs(1);

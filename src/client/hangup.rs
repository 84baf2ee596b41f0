//! SIGHUP, which ssh sends its ProxyCommand when it exits, and the signals that end it at once.

use std::fs;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::ClientError;

/// Runs `tunnel` to its end. `None` if a signal ended it before: nothing is left to report to then.
///
/// ssh sends SIGHUP at every logout, and right behind it closes stdin and stdout. A process that died of the signal would
/// leave the proxy with a tunnel that was aborted, and perhaps without ssh's last message. So the tunnel has a moment to
/// end in order, by the end of stdin. SIGTERM and SIGINT end it at once, but not without its credential plugin.
pub(super) async fn run_until_hung_up(
    tunnel: impl Future<Output = Result<(), ClientError>>,
) -> Option<Result<(), ClientError>> {
    let mut hangups = listen(SignalKind::hangup());
    let (mut terminations, mut interrupts) = (listen(SignalKind::terminate()), listen(SignalKind::interrupt()));
    let mut tunnel = pin!(tunnel);
    tokio::select! {
        biased;
        ended = &mut tunnel => return Some(ended),
        () = next(&mut terminations) => return None,
        () = next(&mut interrupts) => return None,
        () = next(&mut hangups) => {}
    }
    match timeout(LONGEST_FAREWELL, tunnel).await {
        Ok(Ok(())) => Some(Ok(())),
        Ok(Err(_)) | Err(_) => None,
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

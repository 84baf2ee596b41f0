//! SIGHUP, which ssh sends its ProxyCommand when it exits.

use std::fs;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::ClientError;

/// Runs `tunnel` to its end. `None` if the process was hung up before: nothing is left to report to then.
///
/// ssh sends SIGHUP at every logout, and right behind it closes stdin and stdout. A process that died of the signal would
/// leave the proxy with a tunnel that was aborted, and perhaps without ssh's last message. So the tunnel has a moment to
/// end in order, by the end of stdin.
pub(super) async fn run_until_hung_up(
    tunnel: impl Future<Output = Result<(), ClientError>>,
) -> Option<Result<(), ClientError>> {
    let mut hangups = hangups();
    let mut tunnel = pin!(tunnel);
    tokio::select! {
        biased;
        ended = &mut tunnel => return Some(ended),
        () = next(&mut hangups) => {}
    }
    match timeout(LONGEST_FAREWELL, tunnel).await {
        Ok(Ok(())) => Some(Ok(())),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// The signal, unless it is ignored: `nohup ssh` passes that on to its ProxyCommand.
fn hangups() -> Option<Signal> {
    if is_ignored().unwrap_or(false) {
        return None;
    }
    // Without it the process dies of the signal, as any other.
    signal(SignalKind::hangup()).ok()
}

async fn next(hangups: &mut Option<Signal>) {
    match hangups {
        Some(hangups) => _ = hangups.recv().await,
        None => pending().await,
    }
}

/// Whether the process was started with SIGHUP ignored (proc_pid_status(5)).
fn is_ignored() -> io::Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The lowest bit is that of signal 1.
    Ok(mask.is_some_and(|mask| mask & 1 == 1))
}

/// The time of a tunnel to end in order once ssh has exited.
const LONGEST_FAREWELL: Duration = Duration::from_secs(1);

//! Runs a program for its output: with a bound and a deadline, without a terminal, and with nothing left of it after a
//! failure.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};
use zeroize::Zeroizing;

use crate::base::platform::{Group, is_suspended, killed_by};

/// Runs the program to its end and returns what it printed.
///
/// Its stdin is `/dev/null`, since ours is ssh's stream, and its stderr is ours. Other processes of its group may live on
/// after a good end: a browser, or an agent. No error quotes what it printed.
pub(super) async fn output(mut command: Command, deadline: Instant) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    command
        // The proxy's URL may hold a password.
        .env_remove("SWITCHBOARD_PROXY")
        .env_remove("SWITCHBOARD_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    Group::isolate(&mut command);
    let mut child = command.spawn().context("it cannot be started")?;
    let stdout = child.stdout.take();
    let group = Group::of(&child);
    // Never moved: what a reallocation leaves behind would not be overwritten.
    let mut printed = Zeroizing::new(Vec::with_capacity(MOST_OUTPUT + 1));
    let collected = collect(&mut child, stdout, &mut printed);
    let status = timeout_at(deadline, collected)
        .await
        .map_err(|_| anyhow!("it did not end in time and was stopped"))??;
    if let Some(signal) = killed_by(status) {
        bail!("signal {signal} ended it");
    }
    if !status.success() {
        bail!("it ended with exit status {}", status.code().unwrap_or_default());
    }
    group.release();
    Ok(printed)
}

/// Reads until the program has ended and its output too.
async fn collect(
    child: &mut Child,
    mut stdout: Option<ChildStdout>,
    printed: &mut Vec<u8>,
) -> anyhow::Result<ExitStatus> {
    let id = child.id();
    let mut ended: Option<(ExitStatus, Instant)> = None;
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        match ended {
            Some((status, last)) if stdout.is_none() || last <= Instant::now() => return Ok(status),
            Some(_) | None => {}
        }
        let last = ended.map_or_else(Instant::now, |(_, last)| last);
        tokio::select! {
            read = read_some(&mut stdout, printed) => match read.context(UNREADABLE)? {
                0 => stdout = None,
                _ if printed.len() > MOST_OUTPUT => bail!("it printed more than 64 KiB and was stopped"),
                _ => {}
            },
            status = child.wait(), if ended.is_none() => {
                // A process that it left behind may hold the pipe open for good.
                ended = Some((status.context(UNREADABLE)?, Instant::now() + PIPE_WAIT));
            }
            () = sleep_until(last), if ended.is_some() => {}
            _ = look.tick(), if ended.is_none() => if id.is_some_and(is_suspended) {
                // The kernel has suspended it (SIGTTIN).
                bail!("it asks at the terminal, which belongs to ssh: log in with it in a shell first");
            },
        }
    }
}

/// Reads, or waits without end where the output has ended.
async fn read_some(stdout: &mut Option<ChildStdout>, printed: &mut Vec<u8>) -> io::Result<usize> {
    match stdout {
        Some(stdout) => {
            let free = MOST_OUTPUT + 1 - printed.len().min(MOST_OUTPUT);
            stdout.take(free as u64).read_buf(printed).await
        }
        None => std::future::pending().await,
    }
}

const UNREADABLE: &str = "its output cannot be read";
/// The output of a plugin is a token and little else.
const MOST_OUTPUT: usize = 64 * 1024;
/// Between two looks at whether the program is suspended.
const LOOK: Duration = Duration::from_secs(1);
/// The time in which the pipe has to end once the program has.
const PIPE_WAIT: Duration = Duration::from_secs(1);

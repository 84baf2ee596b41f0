//! Runs a program for its output: with a size limit and a deadline, without a terminal, and without leaving a process
//! after a failure.

use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

use crate::base::platform::{ProcessGroup, is_suspended, terminal_for_hidden_stderr, termination_signal};

/// Runs the program until it exits, and returns its output.
///
/// Its stdin is ours if it is interactive, else `/dev/null`. Its stderr is ours, or the terminal if ours is hidden. After a
/// success other processes of its group, such as a browser or an agent, go on. No error quotes the output.
pub(super) async fn output(
    mut command: Command,
    is_interactive: bool,
    deadline: Instant,
) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    command
        // The proxy's URL may hold a password.
        .env_remove("SWITCHBOARD_PROXY")
        .env_remove("SWITCHBOARD_TOKEN")
        .stdout(Stdio::piped())
        .stderr(terminal_for_hidden_stderr().map_or_else(Stdio::inherit, Stdio::from));
    match is_interactive {
        // It stays in our group, since only that of the foreground may read the terminal.
        true => _ = command.stdin(Stdio::inherit()).kill_on_drop(true),
        false => ProcessGroup::isolate(command.stdin(Stdio::null())),
    }
    let mut child = command.spawn().context("it cannot be started")?;
    let stdout = child.stdout.take();
    let group = ProcessGroup::for_child(&child);
    // Never reallocated: the old memory would keep a copy of the secret.
    let mut printed = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT + 64));
    let collected = collect(&mut child, stdout, &mut printed);
    let status = timeout_at(deadline, collected)
        .await
        .map_err(|_| anyhow!("it did not end in time and was stopped"))??;
    if let Some(signal) = termination_signal(status) {
        bail!("signal {signal} ended it");
    }
    if !status.success() {
        bail!("it ended with exit status {}", status.code().unwrap_or_default());
    }
    group.release();
    Ok(printed)
}

/// Reads until the program has exited, and its output has ended.
async fn collect(child: &mut Child, stdout: Option<ChildStdout>, printed: &mut Vec<u8>) -> anyhow::Result<ExitStatus> {
    let reading = async {
        if let Some(stdout) = stdout {
            let mut stdout = stdout.take(MAX_OUTPUT as u64 + 1);
            stdout.read_to_end(printed).await.context(UNREADABLE)?;
        }
        ensure!(
            printed.len() <= MAX_OUTPUT,
            "it printed more than 64 KiB and was stopped"
        );
        Ok(())
    };
    let id = child.id();
    let ending = async {
        loop {
            if let Ok(status) = timeout(LOOK, child.wait()).await {
                return status.context(UNREADABLE);
            }
            // Suspended by the kernel (SIGTTIN).
            let is_suspended = id.is_some_and(is_suspended);
            ensure!(
                !is_suspended,
                "it asks at the terminal, which belongs to ssh: log in with it in a shell first"
            );
        }
    };
    let (mut reading, mut ending) = (pin!(reading), pin!(ending));
    tokio::select! {
        read = &mut reading => {
            read?;
            ending.await
        }
        status = &mut ending => {
            // A process that it left behind may hold the pipe open permanently.
            timeout(PIPE_WAIT, reading).await.unwrap_or(Ok(()))?;
            status
        }
    }
}

const UNREADABLE: &str = "its output cannot be read";
/// The maximum size of the output: it is a token and little else.
const MAX_OUTPUT: usize = 64 * 1024;
/// The interval at which to check whether the program is suspended.
const LOOK: Duration = Duration::from_secs(1);
/// The timeout for the end of the pipe after the program has exited.
const PIPE_WAIT: Duration = Duration::from_secs(1);

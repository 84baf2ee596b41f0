//! The check of a jump host: ssh itself opens a tunnel through it, by the user's own settings and keys, and asks nothing.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, join};
use tokio::process::Command;
use tokio::time::timeout;

use super::identification;
use crate::base::text::{chain, printable};
use crate::client::connect::runtime;
use crate::client::stderr::{MAX_LINE, last_line};

/// Checks the way to a target, `HOST:PORT`, through a jump host, `[USER@]HOST[:PORT]`. Prints on stdout what ssh finds.
pub fn command(jump: &str, target: &str) -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            last_line(&chain(&error));
            return ExitCode::FAILURE;
        }
    };
    let found = runtime.block_on(check(jump, target));
    runtime.shutdown_background();
    let (mut text, target) = (String::new(), printable(target, MAX_LINE));
    match &found {
        Ok(line) => writeln!(
            text,
            "ok     jump host  {jump} opens a tunnel to {target}\nok     SSH        {line}"
        ),
        Err(reason) => writeln!(text, "FAILS  jump host  {reason}"),
    }
    .unwrap_or_default();
    write!(io::stdout(), "{text}").unwrap_or_default();
    match found {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Returns the identification of the target, or the reason why there is none.
async fn check(jump: &str, target: &str) -> Result<String, String> {
    let mut ssh = Command::new("ssh");
    ssh.args([
        "-o",
        "BatchMode=yes",
        "-o",
        "ControlPath=none",
        "-o",
        "ConnectTimeout=10",
    ]);
    ssh.args(["-W", target, "--", &format!("ssh://{jump}")]);
    ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let cannot = |error| format!("cannot run ssh: {error}");
    let mut child = ssh.kill_on_drop(true).spawn().map_err(cannot)?;
    let ends = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
    let ((stdin, stdout), stderr) = ends.ok_or("cannot run ssh: it has no pipes")?;
    let found = async {
        match identification(&mut join(stdout, stdin)).await {
            Some(found) => found,
            None => {
                let mut said = Vec::new();
                stderr.take(MAX_SAID).read_to_end(&mut said).await.unwrap_or_default();
                Err(reason(&String::from_utf8_lossy(&said)))
            }
        }
    };
    let late = |_| format!("nothing has come through it within {TIMEOUT:?}: is the target an SSH server?");
    timeout(TIMEOUT, found).await.map_err(late)?
}

/// Returns what ssh says of a failure, and more where it has not asked.
fn reason(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = lines.map(|line| format!("\n       {}", printable(line, MAX_LINE)));
    let asks = if said.contains("Permission denied") {
        "\n       (this check asks for no password, ticket or passphrase: ssh itself may)"
    } else {
        ""
    };
    format!("ssh says:{}{asks}", lines.collect::<String>())
}

/// A dial of the proxy may take 10 s.
const TIMEOUT: Duration = Duration::from_secs(30);
const MAX_SAID: u64 = 4096;

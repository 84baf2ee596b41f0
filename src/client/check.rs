//! A login as far as the SSH identification, and which step of it fails.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::connect::attempt::Tunnel;
use super::connect::{attempt, report, runtime};
use super::options::Options;
use super::stderr::MAX_LINE;
use crate::base::authority::Authority;
use crate::base::text::{chain, printable};
use crate::uplink;
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::deadline::Step;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::dial::io::read_some;
use crate::uplink::dial::url::Scheme;
use crate::uplink::error::ClientError;

/// Checks a login, and prints on stdout its steps up to the one that fails.
pub fn command(options: &Options) -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return report(options, &error),
    };
    let mut dialing = ProxyDialer::default();
    let found = runtime.block_on(check(options, &mut dialing));
    // A lookup may still run.
    runtime.shutdown_background();
    let text = table(options, dialing.step, &found);
    write!(std::io::stdout(), "{text}").unwrap_or_default();
    match found {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Logs in as far as the SSH identification, and returns it, or why there is none.
async fn check(options: &Options, dialing: &mut ProxyDialer) -> Result<String, String> {
    let parsed = options.target.parse::<Authority>().map_err(ClientError::Target);
    parsed.map_err(|error| chain(&error))?;
    let opened = Box::pin(attempt::open(options, &mut CachedLogin::default(), dialing)).await;
    let tunnel = opened.map_err(|error| chain(&error))?;
    dialing.step = Step::Ssh;
    timeout(options.uplink.timeout, identification(tunnel))
        .await
        .map_err(|_| {
            let waited = options.uplink.timeout;
            format!("the target has said nothing within {waited:?}: is it an SSH server?")
        })?
}

/// Returns a line for each step. After a failure the last line is the one of `begun`.
fn table(options: &Options, begun: Step, found: &Result<String, String>) -> String {
    let uplink::Options { proxy, forward, .. } = &options.uplink;
    let mut steps = vec![(Step::Settings, "settings", "the arguments and files".to_owned())];
    match forward {
        Some(forward) => steps.push((Step::Connect, "network", format!("through {forward}"))),
        None => steps.extend([
            (Step::Lookup, "DNS", format!("{} has an address", proxy.host())),
            (Step::Connect, "TCP", format!("a connection to port {}", proxy.port())),
        ]),
    }
    if proxy.scheme() == Scheme::Https {
        steps.push((Step::Tls, "TLS", "the proxy's certificate is trusted".to_owned()));
    }
    let target = printable(&options.target, MAX_LINE);
    steps.extend([
        (Step::Answer, "proxy", format!("{proxy} opens a tunnel to {target}")),
        (Step::Ssh, "SSH", found.clone().unwrap_or_default()),
    ]);
    let mut text = String::new();
    for (step, name, fine) in steps {
        let failure = found.as_ref().err().filter(|_| step >= begun);
        if let Some(reason) = failure {
            let reason = printable(reason, MAX_LINE);
            writeln!(text, "FAILS  {name:8}  {reason}").unwrap_or_default();
            break;
        }
        writeln!(text, "ok     {name:8}  {fine}").unwrap_or_default();
    }
    text
}

/// Returns the server's identification, or an error that quotes what came instead. The client's identification is sent
/// first, because some SSH proxies do not answer a silent client.
async fn identification((mut stream, early): Tunnel) -> Result<String, String> {
    let hello = format!("SSH-2.0-switchboard_check_{}\r\n", env!("CARGO_PKG_VERSION"));
    let sent = async {
        stream.write_all(hello.as_bytes()).await?;
        stream.flush().await
    };
    // The read below gives the reason of a failure.
    sent.await.unwrap_or_default();
    let (mut read, mut end) = (early, Ok(1));
    loop {
        if let Some(line) = find(&read) {
            return match line.starts_with("SSH-2.0-") || line.starts_with("SSH-1.99-") {
                true => Ok(line),
                false => Err(format!(
                    "the server says {line:?}: ssh speaks to servers of SSH 2.0 only"
                )),
            };
        }
        match end {
            Ok(1..) if read.len() < MAX_PREFACE => {}
            Ok(0) if read.is_empty() => {
                return Err("the connection ended without a word: is it an SSH server?".to_owned());
            }
            Ok(_) => return Err(said(&read)),
            Err(error) => {
                let error = ClientError::from(error);
                return Err(if let ClientError::Lost(error) = &error {
                    format!("the connection broke: {error}")
                } else {
                    error.to_string()
                });
            }
        }
        end = read_some(&mut stream, &mut read).await;
    }
}

/// Returns the line of an identification (RFC 4253 section 4.2).
fn find(read: &[u8]) -> Option<String> {
    let mut lines = read.split_inclusive(|&byte| byte == b'\n');
    let line = lines.find(|line| line.starts_with(b"SSH-") && line.ends_with(b"\n"))?;
    Some(printable(&String::from_utf8_lossy(line), MAX_LINE))
}

fn said(read: &[u8]) -> String {
    let text = String::from_utf8_lossy(read);
    format!(
        "the target is no SSH server: it says {:?}",
        printable(text.lines().next().unwrap_or_default(), MAX_EXCERPT)
    )
}

/// The bytes before an identification.
const MAX_PREFACE: usize = 8 * 1024;
/// Characters shown of a target that speaks something else.
const MAX_EXCERPT: usize = 80;

//! A login as far as the SSH identification, and which step of it fails.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, duplex, split};
use tokio::sync::watch;
use tokio::time::timeout;

use self::host_key::NOT_PUBLISHED;
use super::connect::run::{ProxyAccess, run};
use super::connect::signals::{ExitRequest, ExitSignals};
use super::connect::stdio::Stdio;
use super::connect::{in_band, report, runtime};
use super::known_hosts::{self, HostKeyOutput};
use super::options::{Options, resumption};
use super::stderr::{MAX_LINE, UserOutput, last_line, line};
use crate::base::text::{chain, printable};
use crate::protocol::host_key::PublishedKeys;
use crate::uplink;
use crate::uplink::dial::deadline::Step;
use crate::uplink::dial::io::read_some;
use crate::uplink::dial::url::Scheme;
use crate::uplink::error::{ClientError, Retry};

mod host_key;
pub mod jump_host;

/// Checks a login, and prints on stdout its steps up to the one that fails.
pub fn command(options: &Options) -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return report(options, &error),
    };
    let mut access = ProxyAccess::default();
    let (found, published) = runtime.block_on(check(options, &mut access));
    // A lookup may still run.
    runtime.shutdown_background();
    let mut text = table(options, access.dialer.step, &found);
    if found.is_ok() && options.host_keys.is_some() {
        text += &host_key::step(&known_hosts::name(&options.target), published.as_ref());
    }
    write!(io::stdout(), "{text}").unwrap_or_default();
    match found {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints the published host keys of a target as lines of known_hosts (sshd(8)), or on stderr why there are none.
pub fn print_host_keys(options: &Options) -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return report(options, &error),
    };
    let (found, published) = runtime.block_on(check(options, &mut ProxyAccess::default()));
    runtime.shutdown_background();
    let name = known_hosts::name(&options.target);
    let error = match (found, published) {
        (Ok(_), Some(PublishedKeys { keys, .. })) => {
            let lines: String = keys.iter().map(|key| format!("{name} {key}\n")).collect();
            match io::stdout()
                .write_all(lines.as_bytes())
                .and_then(|()| io::stdout().flush())
            {
                Ok(()) => return ExitCode::SUCCESS,
                Err(error) => format!("cannot write the host keys: {error}"),
            }
        }
        (Ok(_), None) if uplink::is_unauthenticated(&options.uplink) => format!("{NOT_PUBLISHED}{IN_CLEAR}"),
        (Ok(_), None) => NOT_PUBLISHED.to_owned(),
        (Err(error), _) => error,
    };
    last_line(&format!("{name}: {error}"));
    ExitCode::FAILURE
}

/// Logs in as far as the SSH identification, and returns it, or why there is none; and the published host keys.
async fn check(options: &Options, access: &mut ProxyAccess) -> (Result<String, String>, Option<PublishedKeys>) {
    let (mut options, published) = (options.clone(), Arc::default());
    if options.host_keys.is_some() {
        options.host_keys = Some(HostKeyOutput::Memory(Arc::clone(&published)));
    }
    let found = identify(options, access).await;
    (found, published.lock().take())
}

async fn identify(mut options: Options, access: &mut ProxyAccess) -> Result<String, String> {
    let remark = Arc::new(Mutex::new(resumption(options.session.is_some(), false).to_owned()));
    let kept = Arc::clone(&remark);
    if options.session.is_some() {
        let remarks = [true, false].map(|has_anchor| resumption(true, has_anchor));
        options.output = UserOutput(Arc::new(move |text| match remarks.contains(&text) {
            true => *kept.lock() = text.to_owned(),
            false => line(text),
        }));
        options.verbose = true;
    }
    let (mut ssh, stdio) = duplex(MAX_PREFACE);
    let (exit, signals) = watch::channel(ExitRequest::No);
    let tunnel = async {
        let (stdin, stdout) = split(stdio);
        let mut stdio = in_band::wrap(Stdio {
            stdin,
            stdout,
            interactive: false,
            ends_with_target: false,
            is_abandoned: None,
        });
        Box::pin(run(&options, &mut stdio, ExitSignals(signals), access)).await
    };
    let found = async move {
        let found = identification(&mut ssh).await;
        // An anchor keeps a session without an end for a day. Without an identification the tunnel has the reason.
        if found.is_some() {
            exit.send_replace(ExitRequest::Immediate);
        }
        found
    };
    let waited = options.uplink.timeout * 2;
    match timeout(waited, async { tokio::join!(tunnel, found) }).await {
        Ok((_, Some(found))) => found.map(|line| format!("{line} ({})", remark.lock())),
        Ok((Err(error), None)) => Err(reason(&error, access.dialer.step)),
        Ok((Ok(()), None)) => Err(SILENT.to_owned()),
        Err(_) => Err(format!(
            "the target has said nothing within {waited:?}: is it an SSH server?"
        )),
    }
}

/// Returns the reason of a failure in that step.
fn reason(error: &ClientError, step: Step) -> String {
    match error.retry() {
        Retry::Immediately if step == Step::Ssh => format!("{SILENT} ({})", chain(error)),
        Retry::Immediately | Retry::WithBackoff | Retry::Never => chain(error),
    }
}

/// Returns a line for each step. After a failure the last line is the one of `failed`.
fn table(options: &Options, failed: Step, found: &Result<String, String>) -> String {
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
    if proxy.websocket().is_some() {
        let fine = "it is passed on (who terminates TLS reads the credential: a ticket can be withdrawn)";
        steps.push((Step::WebSocket, "WebSocket", fine.to_owned()));
    }
    let target = printable(&options.target, MAX_LINE);
    steps.extend([
        (Step::Answer, "proxy", format!("{proxy} opens a tunnel to {target}")),
        (Step::Ssh, "SSH", found.clone().unwrap_or_default()),
    ]);
    let width = steps
        .iter()
        .map(|(_, name, _)| name.len())
        .max()
        .unwrap_or_default()
        .max(8);
    let mut text = String::new();
    for (step, name, fine) in steps {
        let failure = found.as_ref().err().filter(|_| step >= failed);
        if let Some(reason) = failure {
            let reason = printable(reason, MAX_LINE);
            writeln!(text, "FAILS  {name:width$}  {reason}").unwrap_or_default();
            break;
        }
        writeln!(text, "ok     {name:width$}  {fine}").unwrap_or_default();
    }
    text
}

/// Returns the server's identification, or an error that quotes what came instead; `None` if nothing came. The client's identification is sent
/// first, because some SSH proxies do not answer a silent client.
async fn identification(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Option<Result<String, String>> {
    let hello = format!("SSH-2.0-switchboard_check_{}\r\n", env!("CARGO_PKG_VERSION"));
    // The read below gives the reason of a failure.
    stream.write_all(hello.as_bytes()).await.unwrap_or_default();
    let mut read = Vec::new();
    while read.len() < MAX_PREFACE && matches!(read_some(stream, &mut read).await, Ok(1..)) {
        if let Some(line) = find(&read) {
            let is_known = line.starts_with("SSH-2.0-") || line.starts_with("SSH-1.99-");
            let fault = format!("the server says {line:?}: ssh speaks to servers of SSH 2.0 only");
            return Some(if is_known { Ok(line) } else { Err(fault) });
        }
    }
    (!read.is_empty()).then(|| Err(describe_bytes(&read)))
}

/// Returns the line of an identification (RFC 4253 section 4.2).
fn find(read: &[u8]) -> Option<String> {
    let mut lines = read.split_inclusive(|&byte| byte == b'\n');
    let line = lines.find(|line| line.starts_with(b"SSH-") && line.ends_with(b"\n"))?;
    Some(printable(&String::from_utf8_lossy(line), MAX_LINE))
}

fn describe_bytes(read: &[u8]) -> String {
    let text = String::from_utf8_lossy(read);
    let line = text.lines().next().unwrap_or_default();
    let is_web = line.starts_with("HTTP/") || text.trim_start().starts_with('<');
    let web = if is_web {
        ": a web server or a captive portal has answered"
    } else {
        ""
    };
    format!(
        "the target is no SSH server: it says {:?}{web}",
        printable(line, MAX_EXCERPT)
    )
}

const IN_CLEAR: &str = ", or it came in clear: over http:// a proxy is believed on this host only";
const SILENT: &str = "the connection ended without a word: is it an SSH server? A web server or a captive portal may have \
                      answered in the proxy's name";

/// The bytes before an identification.
const MAX_PREFACE: usize = 8 * 1024;
/// Characters shown of a target that speaks something else.
const MAX_EXCERPT: usize = 80;

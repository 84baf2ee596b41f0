//! A login as far as the SSH identification, and which step of it fails.

use std::fmt::{self, Write as _};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::time::timeout;

use super::connect::login::Login;
use super::connect::{attempt, notice};
use super::dial::dialing::Dialing;
use super::dial::transport::{Stream, read_some};
use super::{ClientError, LONGEST_LINE, Options, Scheme, Step};
use crate::base::authority::Authority;
use crate::base::text::{chain, printable};

/// A step on the way to an SSH server, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The target, the files and the credentials.
    Settings,
    /// The address of the proxy's name.
    Dns,
    /// The connection to it.
    Tcp,
    /// The way through the proxy of the user's network, in place of both.
    Forward,
    /// The handshake with the proxy.
    Tls,
    /// The proxy as one, and the user there.
    Proxy,
    /// The name at the proxy, and the connection to it.
    Target,
    /// The first line of the SSH server.
    Ssh,
}

/// Why a stage fails.
#[derive(Debug)]
pub struct Failure {
    /// The stage.
    pub stage: Stage,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Settings => "settings",
            Self::Dns => "DNS",
            Self::Tcp => "TCP",
            Self::Forward => "network",
            Self::Tls => "TLS",
            Self::Proxy => "proxy",
            Self::Target => "target",
            Self::Ssh => "SSH",
        })
    }
}

/// Checks the way, and prints each step with its result on stdout.
pub fn command(options: &Options) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return super::report(options, &ClientError::Runtime(error)),
    };
    let found = runtime.block_on(check(options));
    // A lookup may still be at it.
    runtime.shutdown_background();
    let (text, code) = (
        table(options, &found),
        if found.is_ok() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        },
    );
    write!(std::io::stdout(), "{text}").unwrap_or_default();
    code
}

/// Logs in as far as the SSH identification, and returns it.
///
/// # Errors
/// The first stage that fails.
pub async fn check(options: &Options) -> Result<String, Failure> {
    let fails = |error: &ClientError| Failure {
        stage: stage(error, options.proxy.scheme()),
        reason: printable(&chain(error), LONGEST_LINE),
    };
    let parsed = options.target.parse::<Authority>().map_err(ClientError::Target);
    parsed.map_err(|error| fails(&error))?;
    let opened = Box::pin(attempt::open(options, &mut Login::default(), &mut Dialing::default())).await;
    let opened = opened.map_err(|error| fails(&error))?;
    let (stream, early) = opened;
    identification(stream, early, options.timeout).await
}

/// The stages with their results, one a line.
fn table(options: &Options, found: &Result<String, Failure>) -> String {
    let (proxy, target) = (&options.proxy, printable(&options.target, LONGEST_LINE));
    let lines = [
        (Stage::Settings, "the arguments and files".to_owned()),
        (Stage::Dns, format!("{} has an address", proxy.host())),
        (Stage::Tcp, format!("a connection to port {}", proxy.port())),
        (
            Stage::Forward,
            options
                .forward
                .as_ref()
                .map_or_else(String::new, |forward| format!("through {forward}")),
        ),
        (Stage::Tls, "the proxy's certificate is trusted".to_owned()),
        (Stage::Proxy, format!("{proxy} answers CONNECT")),
        (Stage::Target, format!("{target} is reached")),
        (Stage::Ssh, found.as_ref().map_or_else(|_| String::new(), Clone::clone)),
    ];
    let failed = found.as_ref().err().map(|failure| failure.stage);
    let mut text = String::new();
    for (stage, fine) in lines {
        let is_passed = match stage {
            Stage::Dns | Stage::Tcp => options.forward.is_none(),
            Stage::Forward => options.forward.is_some(),
            Stage::Tls => proxy.scheme() == Scheme::Https,
            Stage::Settings | Stage::Proxy | Stage::Target | Stage::Ssh => true,
        };
        let line = match (found, failed) {
            (Err(failure), Some(at)) if at == stage => format!("FAILS  {stage:8}  {}", failure.reason),
            (_, Some(at)) if stage > at && is_passed => format!("-      {stage:8}  not tried"),
            _ if is_passed => format!("ok     {stage:8}  {fine}"),
            _ => continue,
        };
        writeln!(text, "{line}").unwrap_or_default();
    }
    text
}

/// The first line of the server, or what is there in its place. A client that says nothing is not answered by every proxy.
async fn identification(mut stream: Stream, early: Vec<u8>, deadline: Duration) -> Result<String, Failure> {
    let asked = async {
        let hello = format!("SSH-2.0-switchboard_check_{}\r\n", env!("CARGO_PKG_VERSION"));
        let sent = async {
            stream.write_all(hello.as_bytes()).await?;
            stream.flush().await
        };
        // What is read says why.
        sent.await.unwrap_or_default();
        let (mut read, mut end) = (early, Ok(1));
        loop {
            if let Some(found) = find(&read) {
                return Box::pin(after(found, stream, read)).await;
            }
            match end {
                Ok(1..) if read.len() < LONGEST_PREFACE => {}
                Ok(1..) => return Err((Stage::Ssh, said(&read))),
                Ok(0) if read.is_empty() => {
                    return Err((
                        Stage::Ssh,
                        "the connection ended without a word: is it an SSH server?".to_owned(),
                    ));
                }
                Ok(0) => return Err((Stage::Ssh, said(&read))),
                Err(error) => {
                    let told = notice::ended(&error).map(|ended| ended.to_string());
                    let reason = told.unwrap_or_else(|| format!("the connection broke: {error}"));
                    return Err((Stage::Ssh, reason));
                }
            }
            end = read_some(&mut stream, &mut read).await;
        }
    };
    let found = timeout(deadline, asked).await;
    let found = found.unwrap_or_else(|_| {
        Err((
            Stage::Ssh,
            format!("the target has said nothing within {deadline:?}: is it an SSH server?"),
        ))
    });
    found.map_err(|(stage, reason)| Failure { stage, reason })
}

/// The line of an identification (RFC 4253 section 4.2), and the bytes up to its end.
fn find(read: &[u8]) -> Option<(String, usize)> {
    let mut end = 0;
    for line in read.split_inclusive(|&byte| byte == b'\n') {
        end += line.len();
        if line.starts_with(b"SSH-") && line.ends_with(b"\n") {
            return Some((printable(&String::from_utf8_lossy(line), LONGEST_LINE), end));
        }
    }
    None
}

/// The identification, unless a message to disconnect is behind it: a proxy refuses so, too, to be understood by ssh.
async fn after(
    (line, end): (String, usize),
    mut stream: impl AsyncRead + Unpin,
    mut read: Vec<u8>,
) -> Result<String, (Stage, String)> {
    if !line.starts_with("SSH-2.0-") && !line.starts_with("SSH-1.99-") {
        return Err((
            Stage::Ssh,
            format!("the server says {line:?}: ssh speaks to servers of SSH 2.0 only"),
        ));
    }
    let whole = async {
        loop {
            let packet = read.get(end..).unwrap_or_default();
            match packet.get(5) {
                // SSH_MSG_DISCONNECT (RFC 4253 section 11.1), with its length in front.
                Some(1) => {
                    let length = packet
                        .get(..4)
                        .and_then(|length| length.try_into().ok())
                        .map_or(0, u32::from_be_bytes);
                    if packet.len() >= 4 + usize::try_from(length).unwrap_or(0).min(LONGEST_PREFACE) {
                        return packet.get(10..).map(text_of);
                    }
                }
                Some(_) => return None,
                None => {}
            }
            if !matches!(read_some(&mut stream, &mut read).await, Ok(1..)) || read.len() > 2 * LONGEST_PREFACE {
                return None;
            }
        }
    };
    match timeout(FAREWELL, whole).await {
        Ok(Some(reason)) => Err((Stage::Target, reason)),
        // The proxy itself: it says so to refuse.
        Ok(None) | Err(_) if line == "SSH-2.0-switchboard" => Err((
            Stage::Target,
            "the proxy refuses the target, and its reason is not understood".to_owned(),
        )),
        Ok(None) | Err(_) => Ok(line),
    }
}

/// A string of RFC 4251 section 5.
fn text_of(bytes: &[u8]) -> String {
    let length = bytes
        .get(..4)
        .and_then(|length| length.try_into().ok())
        .map_or(0, u32::from_be_bytes);
    let text = bytes.get(4..).unwrap_or_default();
    let text = text.get(..usize::try_from(length).unwrap_or(0)).unwrap_or(text);
    printable(&String::from_utf8_lossy(text), LONGEST_LINE)
}

fn said(read: &[u8]) -> String {
    let text = String::from_utf8_lossy(read);
    format!(
        "the target is no SSH server: it says {:?}",
        printable(text.lines().next().unwrap_or_default(), LONGEST_SAID)
    )
}

/// The stage at which an error occurs. `scheme`: of the proxy.
fn stage(error: &ClientError, scheme: Scheme) -> Stage {
    match error {
        ClientError::Target(_)
        | ClientError::Ca { .. }
        | ClientError::Identity(_)
        | ClientError::NoSystemRoots(_)
        | ClientError::TlsName { .. }
        | ClientError::TlsSetup(_)
        | ClientError::Runtime(_)
        | ClientError::Credentials(_) => Stage::Settings,
        ClientError::Lookup { .. } | ClientError::Deadline { step: Step::Lookup, .. } => Stage::Dns,
        ClientError::Connect { .. }
        | ClientError::Deadline {
            step: Step::Connect, ..
        } => Stage::Tcp,
        ClientError::Forward { .. } => Stage::Forward,
        ClientError::CertificateRequired(_)
        | ClientError::CertificateRefused(_)
        | ClientError::ProxyCertificate(_)
        | ClientError::Tls(_)
        | ClientError::PlainHttp
        | ClientError::Deadline { step: Step::Tls, .. } => Stage::Tls,
        ClientError::NotHttp if scheme == Scheme::Https => Stage::Tls,
        ClientError::NotHttp
        | ClientError::NoAnswer
        | ClientError::TruncatedAnswer
        | ClientError::LongAnswer
        | ClientError::EndlessAnswer
        | ClientError::NotProxy { .. }
        | ClientError::CredentialsRequired { .. }
        | ClientError::Lost(_)
        | ClientError::Deadline { step: Step::Answer, .. } => Stage::Proxy,
        // What the proxy thinks of the request, or of the user, is not the target's fault.
        ClientError::Refused { status, .. } if !matches!(status, 403 | 500..) => Stage::Proxy,
        ClientError::Refused { .. } => Stage::Target,
        ClientError::Session(_)
        | ClientError::Unidentified
        | ClientError::Reset(_)
        | ClientError::Ended(_)
        | ClientError::Input(_)
        | ClientError::Output(_) => Stage::Ssh,
    }
}

/// The bytes in front of an identification, and of a message behind it.
const LONGEST_PREFACE: usize = 8 * 1024;
/// What is shown of a target that speaks something else.
const LONGEST_SAID: usize = 80;
/// The time for a message behind an identification, .
const FAREWELL: Duration = Duration::from_secs(1);

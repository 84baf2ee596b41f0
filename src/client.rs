//! The ProxyCommand: a tunnel between stdin, stdout and a target behind an HTTP CONNECT proxy.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::authority::Authority;
use crate::text::{chain, printable};

mod attempt;
mod carry;
pub mod check;
pub mod configuration;
mod connection;
pub mod credentials;
mod deadline;
mod dialing;
mod error;
mod forward;
mod hangup;
mod head;
mod http1;
mod http2;
mod in_band;
mod login;
mod notice;
mod opened;
mod relay;
mod route;
mod session;
pub mod ssh_config;
mod stdio;
pub mod ticket;
mod tls;
mod transport;
mod url;
mod wait;

use self::deadline::Deadline;
use self::hangup::Exit;

pub use self::credentials::CredentialError;
pub use self::deadline::Step;
pub use self::error::ClientError;
pub use self::forward::{ForwardProxy, ForwardProxyFault};
pub use self::session::{Clocks, Remarks, SessionError, Settings};
pub use self::tls::{CaError, CertificateFault, Identity, IdentityError, Trust};
pub use crate::yaml::finding::Report;

pub use self::url::{ProxyUrl, ProxyUrlError, Scheme};

/// The settings of one tunnel.
#[derive(Clone, Debug)]
pub struct Options {
    /// The proxy, with the user's credentials if it needs them.
    pub proxy: ProxyUrl,
    /// The HTTP proxy of the user's own network, through which this one is reached, if there is one.
    pub forward: Option<ForwardProxy>,
    /// The certificates for an `https://` proxy.
    pub trust: Trust,
    /// Whether HTTP/2 is offered to an `https://` proxy, which then chooses. Without TLS it is HTTP/1.1.
    pub http2: bool,
    /// The user's credentials for the proxy, in place of those of its URL.
    pub credentials: credentials::Options,
    /// The `host:port` to ask for. It is checked as an [`Authority`] and then sent as typed: to other proxies two
    /// spellings of one name may be different targets.
    pub target: String,
    /// The time for the connection, the TLS handshake and the proxy's answer together. See [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
    /// How a session outlives its connections, where there is an anchor beside the target. `None` looks for none.
    pub session: Option<Settings>,
    /// How long a 429 or 503 is followed by further requests, when the proxy asks for them. `None`: not at all.
    pub wait: Option<Duration>,
    /// Whether stderr has a failure also where ssh was told in band.
    pub verbose: bool,
}

impl Options {
    /// A failure with the name that was asked for: behind an alias of ssh_config(5) the user does not see what `%h` became.
    pub fn sentence(&self, error: &ClientError) -> String {
        let (line, target) = (chain(error), self.target.as_str());
        // What is no target may be a part of a password with a space in it.
        match line.contains(target) || matches!(error, ClientError::Target(_)) {
            true => line,
            false => format!("{target}: {line}"),
        }
    }
}

/// The default of [`Options::timeout`]: 30 seconds.
///
/// Switchboard itself may wait 10 s for a ready pod and 10 s for the dial before it answers; a client that gives up
/// sooner hides the refusal. ssh's ConnectTimeout covers a ProxyCommand too, and may be shorter.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The user's side of the tunnel.
#[derive(Debug)]
pub struct Local<R, W> {
    /// The bytes for the target. Its end becomes a FIN, or END_STREAM.
    pub stdin: R,
    /// The bytes from the target. Its `shutdown` is called at their end, and must be an end of stream to its reader.
    pub stdout: W,
    /// Whether `stdin` is a terminal, which stays open when `stdout` ends: the proxy's end then ends the tunnel.
    pub interactive: bool,
    /// Looks whether the reader of `stdout` has left, which ends a login that the user no longer waits for: ssh that is
    /// killed sends its ProxyCommand no signal. `None` cannot tell.
    pub is_abandoned: Option<fn(&W) -> bool>,
}

/// Runs the tunnel between the process's own stdin and stdout, and reports a failure: to ssh, where that reads stdout and
/// has read nothing yet, in band; otherwise, and with [`Options::verbose`], on stderr in one line.
///
/// The exit code is 0 when the tunnel ended in order, and otherwise that of [`ClientError::exit_code`]. A read of stdin
/// may still be pending on a thread that cannot be cancelled, so the caller must return from `main` or exit at once. After a
/// SIGHUP the tunnel has a second to end in order, and a failure is not reported: ssh has exited.
/// From here on the process's stdout leads to `/dev/null`: the tunnel owns the real one.
pub fn command(options: &Options) -> ExitCode {
    let local = match stdio::take_stdout() {
        Ok(stdout) => Local {
            stdin: stdio::Input::default(),
            stdout,
            interactive: io::stdin().is_terminal(),
            is_abandoned: None,
        },
        Err(error) => return report(options, &ClientError::Output(error)),
    };
    let mut local = in_band::watch(local, &options.target);
    local.is_abandoned = Some(|stdout| stdout.stream.is_abandoned());
    let streams = &mut local;
    let run = move |exit| async move {
        let ended = run_until(options, streams, exit).await;
        match ended {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) if in_band::tell(streams, &error, &options.target).await && !options.verbose => {
                Ok(ExitCode::from(error.exit_code()))
            }
            Err(error) => Err(error),
        }
    };
    match run_to_the_end(run) {
        Some(Ok(code)) => code,
        // `local` still holds stdout open: ssh exits when its ProxyCommand's stdout ends, reported or not.
        Some(Err(error)) => report(options, &error),
        None => ExitCode::FAILURE,
    }
}

fn report(options: &Options, error: &ClientError) -> ExitCode {
    let line = printable(&options.sentence(error), LONGEST_LINE);
    // With stderr closed the exit code remains.
    writeln!(io::stderr(), "switchboard: {line}").ok();
    ExitCode::from(error.exit_code())
}

/// Runs one tunnel to its end.
///
/// # Errors
///
/// Every way in which the tunnel did not open, or did not end in order. `local.stdout` stays open then, so that the
/// failure can be reported before ssh exits. A `stdout` whose reader has closed it is no error: ssh ends like that.
pub async fn run<R, W>(options: &Options, local: &mut Local<R, W>) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    run_until(options, local, Exit::never()).await
}

async fn run_until<R, W>(options: &Options, local: &mut Local<R, W>, exit: Exit) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    options.target.parse::<Authority>().map_err(ClientError::Target)?;
    Box::pin(carry::tunnel(options, local, exit)).await
}

fn run_to_the_end<T, F>(run: impl FnOnce(Exit) -> F) -> Option<Result<T, ClientError>>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return Some(Err(ClientError::Runtime(error))),
    };
    let ended = runtime.block_on(hangup::run_until_hung_up(run));
    // Dropping the runtime would wait for a read of stdin that may never return.
    runtime.shutdown_background();
    ended
}

/// Characters of a message on stderr, and of a refusal's reason.
const LONGEST_LINE: usize = 400;

#[cfg(test)]
#[expect(
    clippy::large_futures,
    reason = "a test's TLS server is not a tunnel that lives for days"
)]
mod tests;

//! The ProxyCommand: carries stdin and stdout through an HTTP CONNECT proxy, and needs nothing else on the user's machine.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use crate::authority::{Authority, AuthorityError};
use crate::text::{chain, printable};

mod connection;
mod head;
mod http1;
mod http2;
mod relay;
mod stdio;
mod tls;
mod url;

pub use self::tls::{CaFault, Identity, IdentityFault, Trust};
pub use self::url::{ProxyUrl, ProxyUrlError, Scheme};

/// Where to go, through what, and how long that may take.
#[derive(Clone, Debug)]
pub struct Options {
    /// The proxy, with its credentials if it wants any.
    pub proxy: ProxyUrl,
    /// Whom to believe, and who to be, with an `https://` proxy.
    pub trust: Trust,
    /// Whether HTTP/2 is offered to an `https://` proxy, which then chooses. Else it is HTTP/1.1, as always without TLS.
    pub http2: bool,
    /// The `host:port` to ask for. It is checked as an [`Authority`] and then sent as typed, as another proxy may tell
    /// spellings apart that ours does not.
    pub target: String,
    /// How long the connection, the TLS handshake and the proxy's answer may take together. See [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
}

/// The default of [`Options::timeout`]: 30 seconds.
///
/// Switchboard itself may wait 10 s for a ready pod and 10 s for the dial before it answers; a client that gives up
/// sooner hides the refusal that says why. Whoever wants less has ssh's ConnectTimeout, which covers a ProxyCommand.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The user's end of the tunnel.
#[derive(Debug)]
pub struct Local<R, W> {
    /// What goes to the target. Its end becomes a FIN.
    pub stdin: R,
    /// What comes from the target. `shutdown` is called at the proxy's end, and must let its reader see that end.
    pub stdout: W,
    /// Whether a person types into `stdin`: then nobody closes it when `stdout` ends, so the proxy's end is the end.
    pub interactive: bool,
}

/// Runs the tunnel between the process's own stdin and stdout, and reports a failure on stderr in one line.
///
/// The exit code is 0 when the tunnel ended in order, and otherwise that of [`ClientError::exit_code`]. A read of stdin
/// may still be pending on a thread that cannot be cancelled, so the caller must return from `main` or exit at once.
/// From here on the process's stdout leads to `/dev/null`: the tunnel owns the real one.
pub fn command(options: &Options) -> ExitCode {
    let mut local = match stdio::take_stdout() {
        Ok(stdout) => Local {
            stdin: tokio::io::stdin(),
            stdout,
            interactive: io::stdin().is_terminal(),
        },
        Err(error) => return report(&ClientError::Output(error)),
    };
    match run_to_the_end(options, &mut local) {
        Ok(()) => ExitCode::SUCCESS,
        // While `local` holds stdout open: ssh hangs up on a ProxyCommand whose stdout ends, said or not.
        Err(error) => report(&error),
    }
}

fn report(error: &ClientError) -> ExitCode {
    let line = printable(&chain(error), LONGEST_LINE);
    // A closed stderr leaves nobody to tell, and the exit code still says it.
    writeln!(io::stderr(), "switchboard: {line}").ok();
    ExitCode::from(error.exit_code())
}

/// Runs one tunnel to its end.
///
/// # Errors
///
/// Every way in which the tunnel did not open, or did not end in order. `local.stdout` is closed only at the
/// tunnel's end, so that a failure can be told before. A reader of `stdout` that went away is not an
/// error: ssh leaves like that.
pub async fn run<R, W>(options: &Options, local: &mut Local<R, W>) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    options.target.parse::<Authority>().map_err(ClientError::Target)?;
    let deadline = Deadline::after(options.timeout);
    match options.proxy.scheme() {
        Scheme::Http => {
            let stream = connection::connect(&options.proxy, deadline).await?;
            Box::pin(http1::tunnel(stream, options, deadline, local)).await
        }
        Scheme::Https => {
            // Before the first packet: a wrong file is told at once, whatever the network does.
            let tls = tls::Connector::new(options.proxy.host(), &options.trust, options.http2)?;
            let stream = connection::connect(&options.proxy, deadline).await?;
            let stream = Box::pin(deadline.bound(Step::Tls, tls.handshake(stream))).await?;
            if tls::chose_http2(&stream) {
                Box::pin(http2::tunnel(stream, options, deadline, local)).await
            } else {
                Box::pin(http1::tunnel(stream, options, deadline, local)).await
            }
        }
    }
}

fn run_to_the_end<R, W>(options: &Options, local: &mut Local<R, W>) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ClientError::Runtime)?;
    let ended = runtime.block_on(run(options, local));
    // Dropping the runtime would wait for a read of stdin that may never return.
    runtime.shutdown_background();
    ended
}

/// Why a tunnel did not open, or did not end in order.
///
/// Each message prints its own level; the cause below is the `source`.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The target is not `host:port`. The caller used the command wrongly.
    #[error("the target is not HOST:PORT")]
    Target(#[source] AuthorityError),
    /// The file of `--ca` cannot be used.
    #[error("cannot use the certificates in {}", path.display())]
    Ca {
        /// The file as typed.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        fault: CaFault,
    },
    /// The files of `--cert` and `--key` cannot be used.
    #[error("cannot use the client certificate")]
    Identity(#[source] IdentityFault),
    /// The proxy wants a client certificate, and there is none.
    #[error("the proxy wants a client certificate: give --cert and --key")]
    CertificateWanted(#[source] io::Error),
    /// The proxy does not take the client certificate.
    #[error("the proxy refused the client certificate")]
    CertificateRefused(#[source] io::Error),
    /// The system has no list of trusted certificates where anyone would look.
    #[error("the system has no trusted certificates: give the proxy's with --ca")]
    NoSystemRoots(#[source] Option<rustls_native_certs::Error>),
    /// The proxy's host, or the name in its place, cannot be the name in a certificate.
    #[error("{name} cannot stand in a certificate as the proxy's name")]
    TlsName {
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: rustls::pki_types::InvalidDnsNameError,
    },
    /// rustls refused the configuration.
    #[error("cannot set TLS up")]
    TlsSetup(#[source] rustls::Error),
    /// The event loop could not be started.
    #[error("cannot start the event loop")]
    Runtime(#[source] io::Error),
    /// The request cannot be written as one of HTTP/2.
    #[error("cannot ask for the target over HTTP/2")]
    Request(#[source] http::Error),
    /// The proxy's name has no address.
    #[error("cannot look up {proxy}")]
    Lookup {
        /// `host:port` of the proxy.
        proxy: String,
        /// What the resolver says.
        #[source]
        source: io::Error,
    },
    /// No address of the proxy took the connection; this is the last one tried.
    #[error("cannot connect to the proxy at {address}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The TLS handshake failed: an unknown authority, a wrong name, or a peer that does not speak TLS.
    #[error("the TLS handshake with the proxy failed")]
    Tls(#[source] io::Error),
    /// The time was over.
    #[error("{step} took longer than {timeout:?}")]
    Deadline {
        /// What the client was waiting for.
        step: Step,
        /// The time for all steps together.
        timeout: Duration,
    },
    /// The proxy closed without a byte.
    #[error("the proxy closed the connection without an answer")]
    NoAnswer,
    /// The proxy closed in the middle of a response head.
    #[error("the proxy closed the connection in the middle of its answer")]
    CutAnswer,
    /// The response head is over 16 KiB, or has over 128 fields.
    #[error("the head of the proxy's answer is too long")]
    LongAnswer,
    /// The peer answered something else than HTTP.
    #[error("the proxy's answer is not HTTP: are the address and the port right?")]
    NotHttp,
    /// The peer answered in TLS.
    #[error("the proxy's answer is not HTTP but TLS: is the URL https://?")]
    AnsweredInTls,
    /// The proxy answered anything but 2xx.
    #[error("the proxy answered {status}{}{reason}", if reason.is_empty() { "" } else { ": " })]
    Refused {
        /// The status code.
        status: u16,
        /// The reason phrase or the first line of the body, without control characters; perhaps empty.
        reason: String,
    },
    /// The connection to the proxy was reset, or timed out. Bytes may be missing.
    #[error("the connection to the proxy was lost")]
    Lost(#[source] io::Error),
    /// The proxy reset the tunnel's stream, or the HTTP/2 connection under it. Bytes may be missing.
    #[error("the proxy broke the tunnel off ({})", code(.0))]
    BrokenOff(#[source] h2::Error),
    /// What the proxy sends as HTTP/2 is faulty.
    #[error("the proxy's HTTP/2 is faulty ({}; --http1.1 does without it)", code(.0))]
    NotHttp2(#[source] h2::Error),
    /// stdin cannot be read.
    #[error("cannot read stdin")]
    Input(#[source] io::Error),
    /// stdout cannot be written, and not because its reader went away.
    #[error("cannot write to stdout")]
    Output(#[source] io::Error),
}

impl ClientError {
    /// The exit code of the process: 2 where the command line is at fault, else 1.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::Target(_)) { 2 } else { 1 }
    }
}

/// The name that RFC 9113 section 7 gives an error.
fn code(error: &h2::Error) -> String {
    error
        .reason()
        .map_or_else(|| "no code".to_owned(), |reason| format!("{reason:?}"))
}

/// What the client waits for before the tunnel is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The resolver.
    Lookup,
    /// The proxy's half of the TLS handshake.
    Tls,
    /// The response head.
    Answer,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lookup => "the lookup of the proxy's name",
            Self::Tls => "the TLS handshake with the proxy",
            Self::Answer => "the proxy's answer",
        })
    }
}

/// One moment by which all steps must be over.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            // A timeout that the clock cannot hold means "for ever", and must not panic.
            at: now.checked_add(timeout).unwrap_or(now + FOR_EVER),
            timeout,
        }
    }

    fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    async fn bound<T>(self, step: Step, work: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
        match tokio::time::timeout_at(self.at, work).await {
            Ok(done) => done,
            Err(_) => Err(ClientError::Deadline {
                step,
                timeout: self.timeout,
            }),
        }
    }
}

/// Characters of a message on stderr, and of a refusal's reason.
const LONGEST_LINE: usize = 400;
const FOR_EVER: Duration = Duration::from_secs(86_400 * 365);

#[cfg(test)]
#[expect(
    clippy::large_futures,
    reason = "a test's TLS server is not a tunnel that lives for days"
)]
mod tests;

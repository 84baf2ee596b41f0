//! The programs of users: `connect`, which is the ProxyCommand, `config`, and `ticket`.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::base::authority::AuthorityError;
use crate::base::secret::Secret;
use crate::base::text::chain;

pub mod check;
pub mod configuration;
pub mod credentials;
pub mod ssh_config;
mod stderr;
pub mod ticket;

use self::credentials::Cleartext;
use self::dial::deadline::Deadline;

pub use self::connect::session::{Remarks, SessionError, Settings};
pub use self::dial::deadline::Step;
pub use self::dial::forward::{ForwardProxy, ForwardProxyFault};
pub use self::dial::tls::{CaError, Identity, IdentityError, Trust};
pub use crate::base::yaml::finding::Report;

pub use self::dial::url::{ProxyUrl, ProxyUrlError, Scheme};

/// The settings of one tunnel.
#[derive(Clone, Debug)]
pub struct Options {
    /// The proxy, with the user's credentials if it needs them.
    pub proxy: ProxyUrl,
    /// The HTTP proxy of the user's own network, through which this one is reached, if there is one.
    pub forward: Option<ForwardProxy>,
    /// The certificates for an `https://` proxy.
    pub trust: Trust,
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
    /// The bytes for the target. Its end becomes a FIN.
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
    let local = match connect::stdio::take_stdout() {
        Ok(stdout) => Local {
            stdin: connect::stdio::Input::default(),
            stdout,
            interactive: io::stdin().is_terminal(),
            is_abandoned: None,
        },
        Err(error) => return report(options, &ClientError::Output(error)),
    };
    let mut local = connect::in_band::watch(local, &options.target);
    local.is_abandoned = Some(|stdout| stdout.stream.is_abandoned());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(options, &ClientError::Runtime(error)),
    };
    let streams = &mut local;
    let run = move |exit| async move {
        match Box::pin(connect::carry::tunnel(options, streams, exit)).await {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) if connect::in_band::tell(streams, &error, &options.target).await && !options.verbose => {
                Ok(ExitCode::from(error.exit_code()))
            }
            Err(error) => Err(error),
        }
    };
    let ended = runtime.block_on(connect::hangup::run_until_hung_up(run));
    // Dropping the runtime would wait for a read of stdin that may never return.
    runtime.shutdown_background();
    match ended {
        Some(Ok(code)) => code,
        // `local` still holds stdout open: ssh exits when its ProxyCommand's stdout ends, reported or not.
        Some(Err(error)) => report(options, &error),
        None => ExitCode::FAILURE,
    }
}

fn report(options: &Options, error: &ClientError) -> ExitCode {
    stderr::last_line(&options.sentence(error));
    ExitCode::from(error.exit_code())
}

/// The failure of a tunnel: it did not open, or did not end in order.
///
/// Each message prints its own level. The cause is the `source`.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The target is not `host:port`: an error of usage.
    #[error("the target is not HOST:PORT")]
    Target(#[source] AuthorityError),
    /// The file of `--ca` cannot be used.
    #[error("cannot use the certificates in {}", path.display())]
    Ca {
        /// The file as typed.
        path: PathBuf,
        /// Its fault.
        #[source]
        fault: CaError,
    },
    /// The files of `--cert` and `--key` cannot be used.
    #[error("cannot use the client certificate")]
    Identity(#[source] IdentityError),
    /// The proxy requires a client certificate, and there is none.
    #[error("the proxy requires a client certificate: give --cert and --key")]
    CertificateRequired(#[source] io::Error),
    /// The proxy does not accept the client certificate.
    #[error("the proxy refused the client certificate")]
    CertificateRefused(#[source] io::Error),
    /// The system has no list of trusted certificates in a usual place.
    #[error("the system has no trusted certificates: give the proxy's with --ca")]
    NoSystemRoots(#[source] Option<rustls_native_certs::Error>),
    /// The proxy's host, or the name in its place, cannot be the name in a certificate.
    #[error("{name} cannot be the proxy's name in a certificate")]
    TlsName {
        /// The name.
        name: String,
        /// The reason.
        #[source]
        source: rustls::pki_types::InvalidDnsNameError,
    },
    /// rustls refused the configuration.
    #[error("cannot set TLS up")]
    TlsSetup(#[source] rustls::Error),
    /// The event loop could not be started.
    #[error("cannot start the event loop")]
    Runtime(#[source] io::Error),
    /// The proxy's name has no address.
    #[error("cannot look up {proxy}")]
    Lookup {
        /// `host:port` of the proxy.
        proxy: String,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// No address of the proxy accepted the connection. This is the last one.
    #[error("cannot connect to the proxy at {address}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The proxy's certificate is not one to trust.
    #[error("the proxy is not trusted: {0}")]
    ProxyCertificate(String),
    /// The way through the HTTP proxy of the user's own network is not open.
    #[error("{forward} in the environment does not lead to the proxy at {proxy} (--no-env-proxy goes without it)")]
    Forward {
        /// Its URL, and the variable that names it.
        forward: String,
        /// `host:port` of the proxy behind it.
        proxy: String,
        /// Its fault.
        #[source]
        source: Box<Self>,
    },
    /// The TLS handshake failed otherwise, as with a peer that does not speak TLS.
    #[error("the TLS handshake with the proxy failed: is the port one of TLS?")]
    Tls(#[source] io::Error),
    /// The time is over.
    #[error("{step} took longer than {timeout:?}")]
    Deadline {
        /// The step that was not completed.
        step: Step,
        /// The time for all steps together.
        timeout: Duration,
    },
    /// The proxy closed without a byte.
    #[error("the proxy closed the connection without an answer")]
    NoAnswer,
    /// The proxy closed in the middle of a response head.
    #[error("the proxy closed the connection in the middle of its answer")]
    TruncatedAnswer,
    /// The response head is over 16 KiB, or has over 128 fields.
    #[error("the head of the proxy's answer is too long")]
    LongAnswer,
    /// Over 64 KiB of interim responses (1xx) in front of the answer.
    #[error("the proxy sends interim answers (1xx) without end")]
    EndlessAnswer,
    /// The peer's answer is not HTTP.
    #[error("the proxy's answer is not HTTP: are the scheme, the address and the port of its URL right?")]
    NotHttp,
    /// The proxy's answer is not 2xx.
    #[error(
        "the proxy answered {status}{}{reason}{}", if reason.is_empty() { "" } else { ": " },
        self.advice().map(|advice| format!(" ({advice})")).unwrap_or_default()
    )]
    Refused {
        /// The status code.
        status: u16,
        /// When another request makes sense, if the proxy says so.
        retry_after: Option<Duration>,
        /// How long the target has left to start, if the proxy has started it.
        starting: Option<Duration>,
        /// The reason phrase or the first line of the body, without control characters. It may be empty.
        reason: String,
    },
    /// The answer of a web server, or of another port of the proxy.
    #[error(
        "the proxy answered {status}{}{reason} (this is not a CONNECT proxy, or it knows no such name: are the host and the \
         port of its URL right?)", if reason.is_empty() { "" } else { ": " }
    )]
    NotProxy {
        /// The status code.
        status: u16,
        /// As of [`Self::Refused`].
        reason: String,
    },
    /// The proxy's answer is 407, and there are no credentials.
    #[error(
        "the proxy answered 407{}{reason} (give credentials: --kubeconfig, --context, --token-file, --token-command or \
         SWITCHBOARD_TOKEN)", if reason.is_empty() { "" } else { ": " }
    )]
    CredentialsRequired {
        /// As of [`Self::Refused`].
        reason: String,
    },
    /// There are no credentials for the proxy, or they may not be sent.
    #[error("cannot log in to the proxy")]
    Credentials(#[source] anyhow::Error),
    /// The tunnel was reset: its bytes are those of the target, and so may be its end. Bytes may be missing.
    #[error("the connection was reset: the target or the proxy has ended it, or the network has failed")]
    Reset(#[source] io::Error),
    /// The connection to the proxy was reset, or timed out. Bytes may be missing.
    #[error("the connection to the proxy was lost")]
    Lost(#[source] io::Error),
    /// The proxy has ended the tunnel, and has said why. Bytes may be missing.
    #[error("{0}")]
    Ended(String),
    /// The session has no connection, or is over.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The target, or what is between, has closed the tunnel without a byte.
    #[error("the tunnel was closed before the target's first byte")]
    Unidentified,
    /// stdin cannot be read.
    #[error("cannot read stdin")]
    Input(#[source] io::Error),
    /// stdout cannot be written although its reader is there.
    #[error("cannot write to stdout")]
    Output(#[source] io::Error),
}

impl ClientError {
    /// The error without parts of a secret that the proxy may have quoted.
    fn without(mut self, secret: &Secret) -> Self {
        if let Self::Refused { reason, .. } | Self::NotProxy { reason, .. } = &mut self {
            *reason = secret.redacted(reason);
        }
        self
    }

    /// The exit code of the process: 2 for an error of usage, else 1.
    pub fn exit_code(&self) -> u8 {
        let is_cleartext = matches!(self, Self::Credentials(error) if error.is::<Cleartext>());
        if is_cleartext || matches!(self, Self::Target(_)) {
            2
        } else {
            1
        }
    }
}

/// Characters of a message on stderr, and of a refusal's reason.
const LONGEST_LINE: usize = 400;

mod connect;
mod dial;
#[cfg(test)]
#[expect(
    clippy::large_futures,
    reason = "a test's TLS server is not a tunnel that lives for days"
)]
mod tests;

//! The command line: `serve`, `check`, `connect` and `drain`.

use std::error::Error;
use std::ffi::OsStr;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use switchboard::allowlist::StaticTarget;
use switchboard::app::admin::Progress;
use switchboard::app::drain_request::{self, Answer, Wait};
use switchboard::app::logging::{self, Logging, ParseError};
use switchboard::app::{App, Command, LoadConfig, StartError, threads};
use switchboard::client::{self, Identity, ProxyUrl, ProxyUrlError, Trust};
use switchboard::config::{Config, LoadError, Overrides};
use switchboard::drain::Drained;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// An SSH ingress for Kubernetes: CONNECT in, SSH servers behind an allowlist.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, disable_help_subcommand = true)]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the proxy until SIGTERM or SIGINT; SIGHUP reloads the allowlist and the limits
    #[command(after_help = SERVE_EXITS)]
    Serve(Serve),
    /// Report every fault of a configuration file at once
    Check {
        /// The file
        #[arg(
            long,
            env = "SWITCHBOARD_CONFIG",
            value_name = "FILE",
            required_unless_present = "schema"
        )]
        config: Option<PathBuf>,
        /// Print the format of the file as JSON Schema instead, for editors and for the schema of the Helm chart
        #[arg(long)]
        schema: bool,
    },
    /// Carry stdin and stdout through a proxy: for ProxyCommand of ssh_config(5)
    #[command(after_help = CONNECT_EXAMPLE)]
    Connect(Connect),
    /// Ask the process on this host to drain, as SIGTERM does: for preStop hooks without a shell
    #[command(after_help = DRAIN_EXITS)]
    Drain(Drain),
}

#[derive(Args)]
struct Drain {
    /// The admin port of the process
    #[arg(
        long,
        env = "SWITCHBOARD_ADMIN",
        value_name = "ADDR",
        default_value = "127.0.0.1:9090"
    )]
    admin: SocketAddr,
    /// Return when the tunnels of the process have ended
    #[arg(long)]
    wait: bool,
    /// Return when no more than N tunnels are left
    #[arg(long, value_name = "N", default_value_t = 0, requires = "wait")]
    at_most: u32,
    /// Wait no longer than this, such as 50m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, requires = "wait")]
    timeout: Option<Duration>,
}

#[derive(Args)]
struct Connect {
    /// The proxy: http://HOST[:PORT] or https://HOST[:PORT], with USER:PASSWORD@ if it requires credentials
    #[arg(
        long,
        env = "SWITCHBOARD_PROXY",
        value_name = "URL",
        hide_env_values = true,
        value_parser = SecretUrl
    )]
    proxy: ProxyUrl,
    /// Trust the certificates of this PEM file instead of the system's for an https:// proxy
    #[arg(long, env = "SWITCHBOARD_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Show this client certificate (PEM, with its intermediate certificates) to an https:// proxy that asks for one
    #[arg(long, env = "SWITCHBOARD_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The private key of --cert (PEM, not encrypted)
    #[arg(long, env = "SWITCHBOARD_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Expect this name in the proxy's certificate, and ask for it, instead of the host of the URL
    #[arg(long, env = "SWITCHBOARD_SERVER_NAME", value_name = "NAME")]
    server_name: Option<String>,
    /// Offer only HTTP/1.1 to an https:// proxy, not HTTP/2; to an http:// proxy it is always HTTP/1.1
    #[arg(long = "http1.1")]
    http1: bool,
    /// The target to reach through the proxy
    #[arg(value_name = "HOST:PORT")]
    target: String,
}

/// The parser of the proxy's URL. clap's own would print a faulty one, with the password in it.
#[derive(Clone)]
struct SecretUrl;

impl TypedValueParser for SecretUrl {
    type Value = ProxyUrl;

    fn parse_ref(&self, command: &clap::Command, _: Option<&Arg>, value: &OsStr) -> Result<ProxyUrl, clap::Error> {
        // No host is named in another encoding.
        let parsed = value.to_str().map_or(Err(ProxyUrlError::BadHost), str::parse);
        parsed.map_err(|fault| {
            let message = format!("invalid value for '--proxy <URL>' or SWITCHBOARD_PROXY: {fault}");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

impl From<Connect> for client::Options {
    fn from(options: Connect) -> Self {
        let identity = options.cert.zip(options.key);
        Self {
            proxy: options.proxy,
            trust: Trust {
                ca: options.ca,
                server_name: options.server_name,
                identity: identity.map(|(certificate, key)| Identity { certificate, key }),
            },
            http2: !options.http1,
            target: options.target,
            timeout: client::DEFAULT_TIMEOUT,
        }
    }
}

#[derive(Args)]
struct Serve {
    /// Read settings from this file; flags and environment override it
    #[arg(long, env = "SWITCHBOARD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve clients at this address, in place of the file's (repeatable)
    #[arg(long, env = "SWITCHBOARD_LISTEN", value_name = "ADDR", value_delimiter = ',')]
    listen: Vec<SocketAddr>,
    /// Serve /metrics, /livez and /readyz at this address
    #[arg(long, env = "SWITCHBOARD_ADMIN", value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Allow this target, besides the file's (repeatable; separated by spaces in the environment)
    #[arg(
        long,
        env = "SWITCHBOARD_ALLOW",
        value_name = "NAME:PORT=ADDR[,ADDR…]",
        value_delimiter = ' '
    )]
    allow: Vec<StaticTarget>,
    /// Filter of the messages on stderr, such as `warn` or `debug,h2=warn`: other crates are silent unless named
    #[arg(long, env = "SWITCHBOARD_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
    /// Form of the messages on stderr
    #[arg(long, env = "SWITCHBOARD_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl From<LogFormat> for logging::Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

fn main() -> ExitCode {
    let commands = CommandLine::try_parse().unwrap_or_else(|error| conceal(error).exit());
    let result = match commands.task {
        Task::Serve(options) => serve(options),
        Task::Check { schema: true, .. } => print_schema(),
        Task::Check { config, .. } => check(&config.unwrap_or_default()),
        Task::Drain(options) => drain(&options),
        Task::Connect(options) => Ok(client::command(&options.into())),
    };
    result.unwrap_or_else(|error| {
        eprintln!("switchboard: {error:#}");
        if error.chain().any(is_usage) {
            ExitCode::from(USAGE)
        } else {
            ExitCode::FAILURE
        }
    })
}

/// The error of a command line without what may be a part of a proxy URL: a password with a space in it and without
/// quotation marks becomes arguments of its own.
fn conceal(error: clap::Error) -> clap::Error {
    let stray = match error.get(ContextKind::InvalidArg) {
        Some(clap::error::ContextValue::String(argument)) => !argument.starts_with('-'),
        Some(_) | None => false,
    };
    let connects = std::env::args_os().nth(1).is_some_and(|task| task == "connect");
    let is_shown = !error.use_stderr() || !connects || !(stray || error.render().to_string().contains('@'));
    if is_shown {
        return error;
    }
    let message =
        "unexpected argument, which may be a part of a password and is not shown: is the URL in quotation marks?";
    CommandLine::command().error(error.kind(), message)
}

fn is_usage(cause: &(dyn Error + 'static)) -> bool {
    // StartError::Config is transparent: the chain holds it in place of its LoadError.
    let is_config = matches!(cause.downcast_ref(), Some(StartError::Config(_)));
    is_config || cause.is::<LoadError>() || cause.is::<ParseError>()
}

fn serve(options: Serve) -> anyhow::Result<ExitCode> {
    let workers = threads::workers();
    threads::try_start(workers).context("cannot start the threads, see pids.max and RLIMIT_NPROC")?;
    let logging = start_logging(&options)?;
    let dropped = logging.dropped.clone();
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(workers.get())
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let drained = runtime.block_on(async {
        let commands = commands().context("cannot listen for signals")?;
        let stopped = stopped().context("cannot listen for signals")?;
        let start = Box::pin(App::start(load_config(options), Box::new(move || dropped.lines())));
        tokio::select! {
            app = start => anyhow::Ok(Box::pin(app?.run(commands)).await),
            // While the configuration is read, which may take until a mount answers. Nothing is served yet.
            () = stopped => Ok(Drained::Clean),
        }
    });
    // The drain is over: tasks that still run have had their deadline.
    runtime.shutdown_background();
    drop(logging);
    Ok(match drained? {
        Drained::Clean => ExitCode::SUCCESS,
        Drained::Cut => ExitCode::from(DRAIN_CUT),
    })
}

fn start_logging(options: &Serve) -> anyhow::Result<Logging> {
    logging::start(&options.log, options.log_format.into()).map_err(|error| match error {
        logging::StartError::Filter(fault) => anyhow::Error::new(fault).context("--log"),
        logging::StartError::Open(_) => error.into(),
    })
}

/// Reads the file anew and overlays it with the flags.
fn load_config(options: Serve) -> LoadConfig {
    Box::new(move || {
        let file = options
            .config
            .as_deref()
            .map_or_else(|| Ok(Config::default()), Config::load)?;
        Ok(file.overridden(Overrides {
            listen: options.listen.clone(),
            admin: options.admin,
            allow: options.allow.clone(),
        }))
    })
}

/// Turns signals into commands, for as long as the runtime lives.
fn commands() -> std::io::Result<mpsc::Receiver<Command>> {
    let (sender, receiver) = mpsc::channel(QUEUED_COMMANDS);
    for (kind, command) in [
        (SignalKind::hangup(), Command::Reload),
        (SignalKind::terminate(), Command::Stop),
        (SignalKind::interrupt(), Command::Stop),
    ] {
        let mut signals = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(async move { while signals.recv().await.is_some() && sender.send(command).await.is_ok() {} });
    }
    Ok(receiver)
}

/// Completes at the first signal to stop.
fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn print_schema() -> anyhow::Result<ExitCode> {
    writeln!(std::io::stdout(), "{:#}", Config::schema())?;
    Ok(ExitCode::SUCCESS)
}

fn check(file: &Path) -> anyhow::Result<ExitCode> {
    Config::load(file)?;
    writeln!(std::io::stdout(), "{}: ok", file.display())?;
    Ok(ExitCode::SUCCESS)
}

fn drain(options: &Drain) -> anyhow::Result<ExitCode> {
    let wait = options.wait.then_some(Wait {
        at_most: options.at_most,
        timeout: options.timeout,
    });
    let admin = options.admin;
    let (state, code) = match drain_request::drain(&drain_request::Options { admin, wait })? {
        Answer::Draining(progress) => (describe(&progress), ExitCode::SUCCESS),
        Answer::Ended => ("ended".to_owned(), ExitCode::SUCCESS),
        Answer::TimedOut(progress) => (describe(&progress), ExitCode::from(DRAIN_CUT)),
    };
    writeln!(std::io::stdout(), "{state}")?;
    Ok(code)
}

fn describe(progress: &Progress) -> String {
    let Progress {
        phase,
        tunnels,
        connections,
    } = progress;
    format!("{phase}: {tunnels} tunnels, {connections} connections")
}

const DRAIN_EXITS: &str = "\
Exit status: 0 the process drains, with --wait no more than N tunnels are left or it has ended, 1 it cannot be asked, \
2 usage, 3 more were left after --timeout";
const SERVE_EXITS: &str = "Exit status: 0 drained, 1 runtime error, 2 usage or configuration, 3 tunnels had to be cut";
const CONNECT_EXAMPLE: &str = "\
In ~/.ssh/config:
  Host *.svc.cluster.local
    ProxyCommand switchboard connect --proxy http://ssh.example.com %h:%p

Exit status: 0 the tunnel ended in order, 1 it did not open or broke off, 2 usage";
const USAGE: u8 = 2;
const DRAIN_CUT: u8 = 3;
const QUEUED_COMMANDS: usize = 4;

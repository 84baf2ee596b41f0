//! The command line: `serve`, `check`, `connect`, `ticket`, `anchor` and `drain`.

use std::env;
use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::io::{Read as _, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use switchboard::allowlist::StaticTarget;
use switchboard::anchor;
use switchboard::app::logging::{self, Logging, ParseError};
use switchboard::app::size::Size;
use switchboard::app::{App, Command, LONGEST_READ, LoadConfig, NOT_READ, StartError, threads};
use switchboard::client;
use switchboard::config::{Config, Loaded, Overrides, Purpose, Report};
use switchboard::drain::Drained;
use tokio::runtime::{self, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

mod anchor_arguments;
mod connect_arguments;
mod drain_arguments;
mod proxy_argument;
mod ticket_arguments;

use anchor_arguments::AnchorArguments;
use connect_arguments::Connect;
use drain_arguments::{DRAIN_CUT, DRAIN_EXITS, Drain, drain};
use proxy_argument::conceal;
use ticket_arguments::Ticket;

/// An SSH ingress for Kubernetes: CONNECT in, SSH servers behind an allowlist.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, disable_help_subcommand = true)]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the proxy until SIGTERM or SIGINT; SIGHUP reloads TLS, access, the allowlist, the limits and ssh_only
    #[command(after_help = SERVE_EXITS)]
    Serve(Serve),
    /// Report the faults of a configuration file all at once, up to a YAML syntax error, and what is odd about it
    #[command(after_help = CHECK_EXITS)]
    Check(Check),
    /// Carry stdin and stdout through a proxy: for ProxyCommand of ssh_config(5)
    #[command(after_help = CONNECT_EXAMPLE)]
    Connect(Connect),
    /// Make a ticket: 26 letters in place of a token, for clients that cannot carry one
    #[command(after_help = TICKET_EXAMPLE)]
    Ticket(Ticket),
    /// Keep sessions beside an SSH server, for clients that resume them on another connection, until SIGTERM or SIGINT
    #[command(after_help = ANCHOR_EXITS)]
    Anchor {
        #[command(flatten)]
        options: AnchorArguments,
        #[command(flatten)]
        log: LogFlags,
    },
    /// Ask the process on this host to drain, as SIGTERM does: for preStop hooks without a shell
    #[command(after_help = DRAIN_EXITS)]
    Drain(Drain),
}

#[derive(Args)]
struct Check {
    /// The file; `-` is standard input. Without one: --config, or else SWITCHBOARD_CONFIG
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The file, as `serve` takes it
    // Without `env`: a variable of the pod would contradict a FILE.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideFlags,
    /// Form of the findings: lines on stderr, or an object on stdout
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Print the format of the file as JSON Schema instead, for editors and for the schema of the Helm chart
    #[arg(long)]
    schema: bool,
}

#[derive(Args)]
struct Serve {
    /// Read settings from this file; flags and environment override it
    #[arg(long, env = "SWITCHBOARD_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideFlags,
    #[command(flatten)]
    log: LogFlags,
}

#[derive(Args)]
struct LogFlags {
    /// Filter of the messages on stderr, such as `warn` or `debug,h2=warn`: other crates are silent unless named
    #[arg(long, env = "SWITCHBOARD_LOG", value_name = "FILTER", default_value = "info")]
    log: String,
    /// Form of the messages on stderr
    #[arg(long, env = "SWITCHBOARD_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: Format,
}

/// What goes over the settings of the file.
#[derive(Args)]
struct OverrideFlags {
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
}

impl From<OverrideFlags> for Overrides {
    fn from(flags: OverrideFlags) -> Self {
        let OverrideFlags { listen, admin, allow } = flags;
        Self { listen, admin, allow }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl From<Format> for logging::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

fn main() -> ExitCode {
    let commands = CommandLine::try_parse().unwrap_or_else(|error| conceal(CommandLine::command(), error).exit());
    let result = match commands.task {
        Task::Serve(options) => serve(options),
        Task::Check(Check { schema: true, .. }) => print_schema(),
        Task::Check(options) => check(options),
        Task::Drain(options) => drain(&options),
        Task::Anchor { options, log } => anchor(options.into(), &log),
        Task::Connect(options) => match options.into_options::<CommandLine>() {
            Ok(options) => Ok(client::command(&options)),
            Err(fault) => fault.exit(),
        },
        Task::Ticket(options) => Ok(client::ticket::command(&options.into_options())),
    };
    result.unwrap_or_else(|error| {
        if let Some(StartError::Config(report)) = error.downcast_ref() {
            // As `check` prints it, without a prefix: editors and terminals follow FILE:LINE:COLUMN.
            to_stderr(report);
            return ExitCode::from(USAGE);
        }
        to_stderr(format_args!("switchboard: {error:#}"));
        if error.chain().any(<dyn Error>::is::<ParseError>) {
            ExitCode::from(USAGE)
        } else {
            ExitCode::FAILURE
        }
    })
}

/// Writes a line. A full disk or a reader that is gone changes no exit status: `eprintln!` would panic.
fn to_stderr(line: impl Display) {
    writeln!(std::io::stderr(), "{line}").unwrap_or_default();
}

fn serve(options: Serve) -> anyhow::Result<ExitCode> {
    let (runtime, logging) = start(&options.log, Size::SERVE)?;
    let dropped = logging.dropped.clone();
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

fn anchor(options: anchor::Options, log: &LogFlags) -> anyhow::Result<ExitCode> {
    let (runtime, logging) = start(log, Size::ANCHOR)?;
    let dropped = logging.dropped.clone();
    runtime.block_on(async {
        let stopped = stopped().context("cannot listen for signals")?;
        // A terminal that is closed is no reason to end sessions: a handler that does nothing.
        let _hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
        let anchor = anchor::Anchor::start(options, Box::new(move || dropped.lines()))?;
        Box::pin(anchor.run(stopped)).await;
        anyhow::Ok(())
    })?;
    runtime.shutdown_background();
    drop(logging);
    Ok(ExitCode::SUCCESS)
}

/// Starts the runtime and the logs of a program that serves.
fn start(log: &LogFlags, size: Size) -> anyhow::Result<(Runtime, Logging)> {
    let workers = threads::workers(size.workers);
    threads::try_start(workers).context("cannot start the threads, see pids.max and RLIMIT_NPROC")?;
    try_descriptors().context("cannot open the files of a start, see RLIMIT_NOFILE")?;
    let logging = start_logging(log, size.queued_lines)?;
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(workers.get())
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    Ok((runtime, logging))
}

/// Tries whether there are descriptors for a start: Tokio panics where it has none for its signals.
fn try_descriptors() -> std::io::Result<()> {
    let tried: std::io::Result<Vec<File>> = (0..FIRST_DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    tried.map(drop)
}

fn start_logging(flags: &LogFlags, queued: usize) -> anyhow::Result<Logging> {
    logging::start(&flags.log, flags.log_format.into(), queued).map_err(|error| match error {
        logging::StartError::Filter(fault) => anyhow::Error::new(fault).context("--log"),
        logging::StartError::Open(_) => error.into(),
    })
}

/// Reads the file anew and overlays it with the flags.
fn load_config(options: Serve) -> LoadConfig {
    let overrides = options.overrides.into();
    Box::new(move || Loaded::from_file(options.config.as_deref(), &overrides, Purpose::Serve))
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

fn check(options: Check) -> anyhow::Result<ExitCode> {
    let by_environment = || env::var_os("SWITCHBOARD_CONFIG").filter(|file| !file.is_empty());
    let file = options.file.or(options.config);
    let Some(file) = file.or_else(|| by_environment().map(PathBuf::from)) else {
        let missing = "no file to check: give FILE, --config FILE or SWITCHBOARD_CONFIG";
        CommandLine::command()
            .error(ErrorKind::MissingRequiredArgument, missing)
            .exit()
    };
    let overrides = options.overrides.into();
    let is_stdin = file == Path::new("-");
    let loaded = load_to_check(&file, overrides)?;
    let is_ok = loaded.is_ok();
    let report: Report = loaded.map_or_else(|faults| faults, |loaded| loaded.report);
    let mut stdout = std::io::stdout();
    match options.format {
        Format::Json => writeln!(stdout, "{:#}", report.json())?,
        Format::Text => {
            report.lines().for_each(|(_, line)| to_stderr(line));
            if is_ok {
                let name = if is_stdin { STDIN.into() } else { file.to_string_lossy() };
                writeln!(stdout, "{name}: ok")?;
            }
        }
    }
    Ok(if is_ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(USAGE)
    })
}

/// Reads a configuration and the files that it names, for as long as `serve` would. What is piped in has no deadline.
fn load_to_check(file: &Path, overrides: Overrides) -> anyhow::Result<Result<Loaded, Report>> {
    let (mut piped, is_stdin) = (Vec::new(), file == Path::new("-"));
    if is_stdin {
        // A byte more than is accepted, which is an error below.
        let read = std::io::stdin().lock().take(LARGEST_INPUT).read_to_end(&mut piped);
        if let Err(error) = read {
            return Ok(Err(Report::unreadable(STDIN, format!("cannot be read: {error}"))));
        }
    }
    let (sender, loaded) = std::sync::mpsc::channel();
    let path = file.to_owned();
    let load = move || {
        let loaded = match is_stdin {
            true => Loaded::from_reader(STDIN, &*piped, &overrides, Purpose::Check),
            false => Loaded::from_file(Some(&path), &overrides, Purpose::Check),
        };
        // An error: the deadline has passed, and the process ends.
        sender.send(loaded).unwrap_or_default();
    };
    std::thread::Builder::new()
        .name("configuration".to_owned())
        .spawn(load)
        .context("cannot start a thread")?;
    let name = if is_stdin { STDIN.into() } else { file.to_string_lossy() };
    let late = |_| Err(Report::unreadable(&name, format!("was {NOT_READ}")));
    Ok(loaded.recv_timeout(LONGEST_READ).unwrap_or_else(late))
}

const CHECK_EXITS: &str = "\
Exit status: 0 `serve` accepts the configuration, perhaps with warnings and notes, 2 usage, or a file with faults or that \
cannot be read";
const ANCHOR_EXITS: &str = "Exit status: 0 stopped by a signal or by `switchboard drain`, 1 runtime error, 2 usage";
const SERVE_EXITS: &str = "Exit status: 0 drained, 1 runtime error, 2 usage or configuration, 3 tunnels had to be cut";
const CONNECT_EXAMPLE: &str = "\
In ~/.ssh/config:
  Host *.svc.cluster.local
    ProxyCommand switchboard connect --proxy https://ssh.example.com --context prod %h:%p

A session whose connection is lost goes on over another one, if the target has an anchor (--resume). ssh must wait as \
long: leave ServerAliveInterval at 0, its default.

SWITCHBOARD_TOKEN in the environment is a bearer token, for a proxy whose URL has no user, without options for \
credentials.

Exit status: 0 the tunnel ended in order, 1 it did not open or broke off, 2 usage";
const TICKET_EXAMPLE: &str = "\
A ticket of one's own, as a password of proxytunnel, which carries 80 characters:
  PROXYUSER=ticket PROXYPASS=\"$(switchboard ticket)\" ssh devbox.team-a.svc.cluster.local

stdout has the ticket and nothing else, stderr the command that takes it back.

Exit status: 0 it was made, 1 it was not, 2 usage";
const STDIN: &str = "<stdin>";
/// What is read of stdin: a byte more than a configuration may have.
const LARGEST_INPUT: u64 = (1 << 20) + 1;
const USAGE: u8 = 2;
const QUEUED_COMMANDS: usize = 4;
/// Two for the logs, seven for the runtime and its signals, one for the file, and one each for the ports.
const FIRST_DESCRIPTORS: usize = 12;

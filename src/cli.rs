//! The command line: a file for each program, with its arguments and its exit status.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use switchboard::base::platform::{mark_vital, try_calls, watch_vital_threads};
use switchboard::client::{Report, ticket};

#[cfg(feature = "anchor")]
mod anchor;
#[cfg(not(feature = "server"))]
mod client_check;
mod client_file;
mod client_flags;
mod completions;
mod config;
mod connect;
mod forward;
mod names;
mod output;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "anchor")]
mod start;
mod usage_error;

use self::completions::{Completions, Manual};
use self::config::{CONFIG_EXAMPLE, ConfigFlags};
use self::connect::{CONNECT_EXAMPLE, Connect};
use self::forward::{FORWARD_EXAMPLE, Forward};
use self::names::known_hosts::{self, KNOWN_HOSTS_EXAMPLE, KnownHostsFlags};
use self::names::ls::{self, LS_EXAMPLE, LsFlags};
use self::output::{USAGE, to_stderr};
use self::usage_error::usage_error;

/// Runs the program that the arguments name.
pub(crate) fn run() -> ExitCode {
    watch_vital_threads();
    mark_vital();
    let matches = match CommandLine::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return shown(&usage_error(CommandLine::command, error)),
    };
    let arguments = match CommandLine::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => return shown(&error),
    };
    let given = || matches.subcommand().map(|(_, given)| given.clone()).unwrap_or_default();
    let tried = try_calls().map_err(anyhow::Error::from);
    let result = tried.and_then(|()| arguments.task.run(given));
    result.unwrap_or_else(failed)
}

/// Prints the error of a program, and returns its exit status.
fn failed(error: anyhow::Error) -> ExitCode {
    match error.downcast::<clap::Error>() {
        Ok(error) => shown(&error.format(&mut CommandLine::command())),
        Err(error) if error.is::<Report>() => {
            // As `check` prints it, without a prefix: editors and terminals follow FILE:LINE:COLUMN.
            to_stderr(error);
            ExitCode::from(USAGE)
        }
        Err(error) => {
            to_stderr(format_args!("switchboard: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a usage error to stderr, or a help or a version to stdout, and returns the exit status.
fn shown(error: &clap::Error) -> ExitCode {
    match error.print().and_then(|()| io::stdout().flush()) {
        // A reader that is gone, as `head` is, has read what it wanted.
        Err(failure) if !error.use_stderr() && failure.kind() != ErrorKind::BrokenPipe => {
            to_stderr(format_args!("switchboard: cannot write to stdout: {failure}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE)),
    }
}

/// An SSH ingress for Kubernetes: CONNECT in, SSH servers behind an allowlist.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    #[cfg(feature = "server")]
    #[command(flatten)]
    Server(Box<server::Task>),
    /// Run beside an SSH server until SIGTERM or SIGINT, and keep its sessions while clients replace their connections
    #[cfg(feature = "anchor")]
    #[command(after_help = anchor::ANCHOR_EXITS)]
    Anchor(Box<anchor::Anchor>),
    /// Relay stdin and stdout through a proxy, as a ProxyCommand of ssh_config(5)
    #[command(after_help = CONNECT_EXAMPLE)]
    Connect(Box<Connect>),
    /// Listen on this host until SIGTERM or SIGINT, and lead each connection to a name: for programs without a ProxyCommand
    #[command(after_help = FORWARD_EXAMPLE)]
    Forward(Box<Forward>),
    /// Print or install the block of ssh_config(5) that sends names through the proxy, or check the connection to a name
    #[command(after_help = CONFIG_EXAMPLE)]
    Config(Box<ConfigFlags>),
    /// Print the host keys that the proxy publishes for names, as lines of known_hosts
    #[command(after_help = KNOWN_HOSTS_EXAMPLE)]
    KnownHosts(Box<KnownHostsFlags>),
    /// List the names that you may reach through the proxy
    #[command(after_help = LS_EXAMPLE)]
    Ls(Box<LsFlags>),
    /// Report all faults of the client's file, and of the files that it names
    #[cfg(not(feature = "server"))]
    #[command(after_help = client_check::CHECK_EXAMPLE)]
    Check(client_check::Check),
    /// Make a ticket: 26 letters and digits instead of a token, for clients that cannot send one
    #[command(after_help = TICKET_EXAMPLE)]
    Ticket(ticket::Options),
    /// Print the completions of a shell
    Completions(Completions),
    /// Write the manual pages into a folder: for packages
    #[command(hide = true)]
    Manual(Manual),
}

impl Task {
    /// Runs the program. `given` returns its arguments.
    fn run(self, given: impl Fn() -> ArgMatches) -> anyhow::Result<ExitCode> {
        match self {
            #[cfg(feature = "server")]
            Self::Server(task) => server::run(*task),
            #[cfg(feature = "anchor")]
            Self::Anchor(options) => anchor::anchor(*options, given()),
            Self::Connect(options) => connect::connect(*options, given()),
            Self::Forward(options) => forward::forward(*options, given()),
            Self::KnownHosts(flags) => known_hosts::known_hosts(*flags, given()),
            Self::Ls(flags) => ls::ls(*flags, given()),
            #[cfg(not(feature = "server"))]
            Self::Check(options) => client_check::check(options),
            Self::Ticket(options) => ticket::make(&options),
            Self::Config(flags) => config::config(&flags, given()),
            Self::Completions(options) => completions::completions(&options, CommandLine::command()),
            Self::Manual(options) => completions::manual(&options, CommandLine::command()),
        }
    }
}

/// For `--help`.
const TICKET_EXAMPLE: &str = "\
A ticket of alice in the proxy's Secret. Each ticket has its own field manager, so that a later one does not remove it.
  switchboard ticket --user alice --namespace switchboard >alice.json
  kubectl apply --server-side --field-manager=switchboard-alice-1 -f alice.json

stdout has the Secret. The first line of stderr is the ticket alone, the last has the command that revokes it.

Exit status: 0 it was made, 1 it was not, 2 usage";

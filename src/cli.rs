//! The command line: its programs, and how an error ends one.

use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use switchboard::app::StartError;
use switchboard::app::logging::ParseError;

mod anchor;
mod check;
mod client_flags;
mod completions;
mod config;
mod connect;
mod drain;
mod overrides;
mod proxy;
mod serve;
mod start;
mod ticket;

use self::anchor::{ANCHOR_EXITS, Anchor};
use self::check::{CHECK_EXITS, Check};
use self::completions::{Completions, Manual};
use self::config::{CONFIG_EXAMPLE, ConfigFlags};
use self::connect::{CONNECT_EXAMPLE, Connect};
use self::drain::{DRAIN_EXITS, Drain};
use self::proxy::conceal;
use self::serve::{SERVE_EXITS, Serve};
use self::ticket::{TICKET_EXAMPLE, Ticket};

/// Runs the program that the arguments name.
pub(crate) fn run() -> ExitCode {
    let commands = CommandLine::try_parse().unwrap_or_else(|error| conceal(CommandLine::command(), error).exit());
    let result = match commands.task {
        Task::Serve(options) => serve::serve(options),
        Task::Check(options) => check::check(options),
        Task::Drain(options) => drain::drain(&options),
        Task::Anchor(options) => anchor::anchor(options),
        Task::Connect(options) => Ok(connect::connect(*options)),
        Task::Ticket(options) => Ok(ticket::ticket(options)),
        Task::Config(flags) => config::config(*flags),
        Task::Completions(options) => completions::completions(&options),
        Task::Manual(options) => completions::manual(&options),
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

/// An SSH ingress for Kubernetes: CONNECT in, SSH servers behind an allowlist.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct CommandLine {
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
    Connect(Box<Connect>),
    /// Print or install the block of ssh_config(5) that leads names through the proxy, or check the way to a name
    #[command(after_help = CONFIG_EXAMPLE)]
    Config(Box<ConfigFlags>),
    /// Make a ticket: 26 letters in place of a token, for clients that cannot carry one
    #[command(after_help = TICKET_EXAMPLE)]
    Ticket(Ticket),
    /// Keep sessions beside an SSH server, for clients that resume them on another connection, until SIGTERM or SIGINT
    #[command(after_help = ANCHOR_EXITS)]
    Anchor(Anchor),
    /// Ask the process on this host to drain, as SIGTERM does: for preStop hooks without a shell
    #[command(after_help = DRAIN_EXITS)]
    Drain(Drain),
    /// Print the completions of a shell
    Completions(Completions),
    /// Write the manual pages into a folder: for packages
    #[command(hide = true)]
    Manual(Manual),
}

/// Writes a line. A full disk or a reader that is gone changes no exit status: `eprintln!` would panic.
pub(crate) fn to_stderr(line: impl Display) {
    writeln!(std::io::stderr(), "{line}").unwrap_or_default();
}

/// The exit status of faulty arguments, and of a faulty configuration.
pub(crate) const USAGE: u8 = 2;

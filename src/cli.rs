//! The command line: a file for each program, with its arguments and its exit status.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

#[cfg(feature = "anchor")]
mod anchor;
#[cfg(not(feature = "server"))]
mod client_check;
mod client_file;
mod client_flags;
mod completions;
mod config;
mod connect;
mod misspelt_variables;
mod proxy;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "anchor")]
mod start;
mod ticket;

use self::completions::{Completions, Manual};
use self::config::{CONFIG_EXAMPLE, ConfigFlags};
use self::connect::{CONNECT_EXAMPLE, Connect};
use self::misspelt_variables::naming_the_variable;
use self::proxy::conceal;
use self::ticket::{TICKET_EXAMPLE, Ticket};

/// Runs the program that the arguments name.
pub(crate) fn run() -> ExitCode {
    let arguments = CommandLine::try_parse().unwrap_or_else(|error| {
        let error = naming_the_variable(CommandLine::command(), error);
        conceal(CommandLine::command(), error).exit()
    });
    match arguments.task {
        #[cfg(feature = "server")]
        Task::Server(task) => server::run(*task),
        #[cfg(feature = "anchor")]
        Task::Anchor(options) => anchor::anchor(options),
        Task::Connect(options) => connect::connect(*options),
        #[cfg(not(feature = "server"))]
        Task::Check(options) => ended(client_check::check(options)),
        Task::Ticket(options) => ticket::ticket(options),
        Task::Config(flags) => ended(config::config(*flags)),
        Task::Completions(options) => ended(completions::completions(&options)),
        Task::Manual(options) => ended(completions::manual(&options)),
    }
}

/// The exit status of a program; an error is said.
fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        to_stderr(format_args!("switchboard: {error:#}"));
        ExitCode::FAILURE
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
    #[cfg(feature = "server")]
    #[command(flatten)]
    Server(Box<server::Task>),
    /// Keep sessions beside an SSH server, for clients that resume them on another connection, until SIGTERM or SIGINT
    #[cfg(feature = "anchor")]
    #[command(after_help = anchor::ANCHOR_EXITS)]
    Anchor(anchor::Anchor),
    /// Carry stdin and stdout through a proxy: for ProxyCommand of ssh_config(5)
    #[command(after_help = CONNECT_EXAMPLE)]
    Connect(Box<Connect>),
    /// Print or install the block of ssh_config(5) that leads names through the proxy, or check the way to a name
    #[command(after_help = CONFIG_EXAMPLE)]
    Config(Box<ConfigFlags>),
    /// Report the faults of the client's file all at once, and of the files that it names
    #[cfg(not(feature = "server"))]
    #[command(after_help = client_check::CHECK_EXAMPLE)]
    Check(client_check::Check),
    /// Make a ticket: 26 letters in place of a token, for clients that cannot carry one
    #[command(after_help = TICKET_EXAMPLE)]
    Ticket(Ticket),
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

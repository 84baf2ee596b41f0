//! The command line: its programs.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod connect;
mod proxy;
#[cfg(feature = "server")]
mod server;
mod ticket;

use self::connect::{CONNECT_EXAMPLE, Connect};
use self::proxy::conceal;
use self::ticket::{TICKET_EXAMPLE, Ticket};

/// Runs the program that the arguments name.
pub(crate) fn run() -> ExitCode {
    let arguments = CommandLine::try_parse().unwrap_or_else(|error| conceal(CommandLine::command(), error).exit());
    match arguments.task {
        #[cfg(feature = "server")]
        Task::Server(task) => server::run(task),
        Task::Connect(options) => connect::connect(options),
        Task::Ticket(options) => ticket::ticket(options),
    }
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
    Server(server::Task),
    /// Carry stdin and stdout through a proxy: for ProxyCommand of ssh_config(5)
    #[command(after_help = CONNECT_EXAMPLE)]
    Connect(Connect),
    /// Make a ticket: 26 letters in place of a token, for clients that cannot carry one
    #[command(after_help = TICKET_EXAMPLE)]
    Ticket(Ticket),
}

//! The programs of the feature `server`.

use std::process::ExitCode;

use clap::Subcommand;
use switchboard::operator::drain_request;

mod check;
mod clients;
mod desk;
mod drain;
mod filter_flags;
mod import;
mod past;
mod replica_flags;
mod serve;
mod targets;
mod tunnels;

use self::check::{CHECK_EXITS, Check};
use self::desk::{DESK_EXITS, Desk};
use self::drain::DRAIN_EXITS;
use self::import::{IMPORT_EXITS, Import};
use self::replica_flags::OPERATOR_EXITS;
use self::serve::{SERVE_EXITS, Serve};

#[derive(Subcommand)]
pub(crate) enum Task {
    /// Run the proxy until SIGTERM or SIGINT; SIGHUP reloads TLS, access, the allowlist, the limits and ssh_only
    #[command(after_help = SERVE_EXITS)]
    Serve(Serve),
    /// Check a configuration file, and report all errors, warnings and notes at once
    #[command(after_help = CHECK_EXITS)]
    Check(Check),
    /// Begin the drain of the process on this host, as SIGTERM does: for preStop hooks without a shell
    #[command(after_help = DRAIN_EXITS)]
    Drain(drain_request::Options),
    /// Serve a page for operators on this computer: the tunnels, targets and refusals of all replicas
    #[command(after_help = DESK_EXITS)]
    Desk(Desk),
    /// Translate another gateway's files into kubectl commands or static targets, and report what has no counterpart
    #[command(after_help = IMPORT_EXITS, arg_required_else_help = true)]
    Import(Import),
    /// List, end and limit the open tunnels of all replicas
    #[command(after_help = OPERATOR_EXITS)]
    Tunnels(Box<tunnels::Tunnels>),
    /// List the targets of all replicas, or stop new tunnels to a target
    #[command(after_help = OPERATOR_EXITS)]
    Targets(targets::Targets),
    /// List the clients of all replicas, those with the most tunnels first, or block one
    #[command(after_help = OPERATOR_EXITS)]
    Clients(clients::Clients),
    /// List the refusals of the last hour on all replicas, the latest first
    #[command(after_help = OPERATOR_EXITS)]
    Refusals(past::RefusalArgs),
}

/// Runs a program of the server.
pub(crate) fn run(task: Task) -> anyhow::Result<ExitCode> {
    match task {
        Task::Serve(options) => serve::serve(options),
        Task::Check(options) => check::check(options),
        Task::Drain(options) => drain::drain(&options),
        Task::Desk(options) => desk::desk(options),
        Task::Import(options) => import::import(options),
        Task::Tunnels(options) => tunnels::tunnels(*options),
        Task::Targets(options) => targets::targets(options),
        Task::Clients(options) => clients::clients(options),
        Task::Refusals(options) => past::refusals(options),
    }
}

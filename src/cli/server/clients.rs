//! The arguments of `clients`, and of the lists of limits and blocks.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use switchboard::base::values::timeout;
use switchboard::daemon::admin::api::{Restriction, RestrictionKind, RestrictionRequest};
use switchboard::operator::replicas::{Query, Reason};
use switchboard::operator::tables::columns::escape;
use switchboard::operator::tables::listings::{restriction_subject, restriction_table};

use super::filter_flags::UserFlags;
use super::replica_flags::{OPERATOR_EXITS, Replies, confirm, rendered, run, status, status_unless_none};
use super::targets::{self, List};

/// The arguments of `clients`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Clients {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
}

#[derive(Subcommand)]
enum Action {
    /// List the clients, with their tunnels on all replicas
    #[command(after_help = OPERATOR_EXITS)]
    List(List),
    /// Refuse new tunnels of a user or a client address for some time, and end the open ones
    #[command(after_help = OPERATOR_EXITS)]
    Block(Block),
    /// End a block before its time
    #[command(after_help = OPERATOR_EXITS)]
    Unblock(Unblock),
    /// List the blocks
    #[command(after_help = OPERATOR_EXITS)]
    Blocks(List),
}

#[derive(Args)]
struct Block {
    #[command(flatten)]
    of: UserFlags,
    /// How long, or until the replica restarts
    #[arg(long = "for", value_name = "DURATION", value_parser = time)]
    time: String,
    /// The reason, which the user reads; also for the access log
    #[arg(long, value_name = "TEXT")]
    reason: Reason,
    /// Let the open tunnels go on
    #[arg(long)]
    keep: bool,
    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
    #[command(flatten)]
    replies: Replies,
}

#[derive(Args)]
struct Unblock {
    #[command(flatten)]
    of: UserFlags,
    #[command(flatten)]
    replies: Replies,
}

/// Does what the arguments say.
pub(crate) fn clients(options: Clients) -> anyhow::Result<ExitCode> {
    match options.action {
        None => targets::clients(&options.list),
        Some(Action::List(options)) => targets::clients(&options),
        Some(Action::Block(options)) => block(options),
        Some(Action::Unblock(options)) => unblock(options),
        Some(Action::Blocks(options)) => list(&options, RestrictionKind::Block),
    }
}

fn block(options: Block) -> anyhow::Result<ExitCode> {
    let Query { client, user, .. } = options.of.into_query();
    let request = RestrictionRequest {
        kind: RestrictionKind::Block,
        client,
        user,
        time: Some(options.time),
        reason: options.reason.into(),
        keeps_tunnels: options.keep,
        ..RestrictionRequest::default()
    };
    if !options.yes && !options.keep && !confirm("Block new tunnels and end the open ones?")? {
        return Ok(ExitCode::FAILURE);
    }
    restrict(&options.replies, &request, |of, row| {
        let tunnels = match options.keep {
            true => format!("{} tunnels go on", row.tunnels),
            false => format!("{} tunnels are ended", row.tunnels),
        };
        format!("{of} is blocked until {}: {tunnels}", escape(&row.until))
    })
}

fn unblock(options: Unblock) -> anyhow::Result<ExitCode> {
    let Query { client, user, .. } = options.of.into_query();
    let request = RestrictionRequest {
        kind: RestrictionKind::Block,
        client,
        user,
        ..RestrictionRequest::default()
    };
    lift(&options.replies, &request, "unblocked")
}

/// Adds a restriction on all replicas, and prints a line for each that `said` returns.
pub(crate) fn restrict(
    replies: &Replies,
    request: &RestrictionRequest,
    said: impl Fn(String, &Restriction) -> String,
) -> anyhow::Result<ExitCode> {
    let report = run(replies.replicas()?.restrict(request))?;
    replies.print(&report, || {
        let lines = report.changed.iter().map(|row| {
            let said = said(restriction_subject(&row.item), &row.item);
            format!("{}: {said}\n", row.replica)
        });
        lines.collect()
    })?;
    Ok(status(&report.replicas))
}

/// Ends a restriction on all replicas.
pub(crate) fn lift(replies: &Replies, request: &RestrictionRequest, verb: &str) -> anyhow::Result<ExitCode> {
    let report = run(replies.replicas()?.lift(request))?;
    replies.print(&report, || {
        let lines = report.changed.iter();
        lines.map(|row| format!("{verb} on {}\n", row.replica)).collect()
    })?;
    let missing = "switchboard: there is none for that";
    Ok(status_unless_none(report.changed.is_empty(), &report.replicas, missing))
}

/// Lists the limits or the blocks.
pub(crate) fn list(options: &List, kind: RestrictionKind) -> anyhow::Result<ExitCode> {
    let mut list = run(options.replies.replicas()?.list::<Restriction>(&Query::default()))?;
    list.items.retain(|row| row.item.kind == kind);
    list.total = list.items.len();
    let table = || rendered(&restriction_table(&list, options.columns.is_wide()));
    options.replies.print(&list, table)?;
    Ok(status(&list.replicas))
}

/// Checks a duration, which the proxy parses.
pub(crate) fn time(text: &str) -> Result<String, &'static str> {
    timeout(text).map(|_| text.to_owned())
}

//! The arguments of `targets` and `clients`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use switchboard::daemon::admin::api::{Client, Target};
use switchboard::operator::replicas::{self, Query, TargetName, json};
use switchboard::operator::tables::formatting;
use switchboard::operator::tables::listings::{client_table, target_table};

use super::replica_flags::{Columns, OPERATOR_EXITS, Reach, print, print_table, run, status};
use crate::cli::to_stderr;

/// The arguments of `targets`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Targets {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
}

#[derive(Subcommand)]
enum Action {
    /// List the targets, with their tunnels on all replicas
    #[command(after_help = OPERATOR_EXITS)]
    List(List),
    /// Let no new tunnel to a target begin, until it is uncordoned or the proxy restarts
    #[command(after_help = OPERATOR_EXITS)]
    Cordon(Cordon),
    /// Let tunnels to a target begin again
    #[command(after_help = OPERATOR_EXITS)]
    Uncordon(Cordon),
}

/// The arguments of lists that are shown whole.
#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    columns: Columns,
    /// Print JSON, with a row for each replica
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Args)]
struct Cordon {
    /// namespace/service, or static/NAME:PORT
    #[arg(value_name = "TARGET")]
    target: TargetName,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Does what the arguments say.
pub(crate) fn targets(options: Targets) -> anyhow::Result<ExitCode> {
    match options.action {
        None => list(options.list),
        Some(Action::List(options)) => list(options),
        Some(Action::Cordon(options)) => cordon(options, true),
        Some(Action::Uncordon(options)) => cordon(options, false),
    }
}

fn list(options: List) -> anyhow::Result<ExitCode> {
    let replicas = options.reach.replicas()?;
    let listed = run(async { Ok(replicas.list::<Target>(&Query::default()).await?) })?;
    match options.json {
        true => print(&(json(&listed) + "\n"))?,
        false => print_table(&target_table(&listed, options.columns.is_wide()))?,
    }
    Ok(status(&listed.replicas))
}

/// Lists the clients of all replicas.
pub(crate) fn clients(options: List) -> anyhow::Result<ExitCode> {
    let replicas = options.reach.replicas()?;
    let listed = run(async { Ok(replicas.list::<Client>(&Query::default()).await?) })?;
    match options.json {
        true => print(&(json(&listed) + "\n"))?,
        false => print_table(&client_table(&listed))?,
    }
    Ok(status(&listed.replicas))
}

fn cordon(options: Cordon, is_cordoned: bool) -> anyhow::Result<ExitCode> {
    let replicas = options.reach.replicas()?;
    let report = run(async { Ok(replicas.cordon(&options.target, is_cordoned).await?) })?;
    if options.json {
        print(&(json(&report) + "\n"))?;
    } else {
        for row in &report.changed {
            let (namespace, service) = (
                formatting::foreign(&row.item.namespace),
                formatting::foreign(&row.item.service),
            );
            let now = if row.item.is_cordoned {
                "is cordoned"
            } else {
                "takes new tunnels"
            };
            let tunnels = row.item.tunnels;
            print(&format!(
                "{namespace}/{service} {now} on {}, {tunnels} tunnels are open\n",
                row.replica
            ))?;
        }
    }
    let status = status(&report.replicas);
    if report.changed.is_empty() && report.replicas.iter().all(replicas::State::answers) {
        to_stderr(format_args!(
            "switchboard: no target {} is on the allowlist",
            options.target
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(status)
}

//! The arguments of `targets` and `clients`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use switchboard::daemon::admin::api::{Client, Target};
use switchboard::operator::replicas::{Query, TargetName};
use switchboard::operator::tables::columns;
use switchboard::operator::tables::listings::{client_table, target_table};
use tokio::time::sleep;

use super::replica_flags::{
    BETWEEN_LOOKS, Columns, OPERATOR_EXITS, Replies, rendered, run, status, status_unless_none,
};

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
    /// Stop new tunnels to a target, until the target is uncordoned or the proxy restarts
    #[command(after_help = OPERATOR_EXITS)]
    Cordon(Cordon),
    /// Allow new tunnels to a target again
    #[command(after_help = OPERATOR_EXITS)]
    Uncordon(Cordon),
}

/// The arguments of lists that are shown whole.
#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) columns: Columns,
    #[command(flatten)]
    pub(crate) replies: Replies,
}

#[derive(Args)]
struct Cordon {
    /// namespace/service, or NAME:PORT as clients request it
    #[arg(value_name = "TARGET")]
    target: TargetName,
    #[command(flatten)]
    replies: Replies,
}

/// Does what the arguments say.
pub(crate) fn targets(options: Targets) -> anyhow::Result<ExitCode> {
    match options.action {
        None => list(&options.list),
        Some(Action::List(options)) => list(&options),
        Some(Action::Cordon(options)) => cordon(&options, true),
        Some(Action::Uncordon(options)) => cordon(&options, false),
    }
}

fn list(options: &List) -> anyhow::Result<ExitCode> {
    let listed = run(options.replies.replicas()?.list::<Target>(&Query::default()))?;
    let table = || rendered(&target_table(&listed, options.columns.is_wide()));
    options.replies.print(&listed, table)?;
    Ok(status(&listed.replicas))
}

/// Lists the clients of all replicas: twice, because a rate is measured between two samples.
pub(crate) fn clients(options: &List) -> anyhow::Result<ExitCode> {
    let replicas = options.replies.replicas()?;
    let listed = run(async {
        let query = Query::default();
        replicas.list::<Client>(&query).await?;
        sleep(BETWEEN_LOOKS).await;
        replicas.list::<Client>(&query).await
    })?;
    options.replies.print(&listed, || rendered(&client_table(&listed)))?;
    Ok(status(&listed.replicas))
}

fn cordon(options: &Cordon, is_cordoned: bool) -> anyhow::Result<ExitCode> {
    let replicas = options.replies.replicas()?;
    let report = run(replicas.cordon(&options.target, is_cordoned))?;
    options.replies.print(&report, || {
        let lines = report.changed.iter().map(|row| {
            let [namespace, service] = [&row.item.namespace, &row.item.service].map(|name| columns::escape(name));
            let now = match row.item.is_cordoned {
                true => "is cordoned",
                false => "takes new tunnels",
            };
            let tunnels = row.item.tunnels;
            let replica = &row.replica;
            format!("{namespace}/{service} {now} on {replica}, {tunnels} tunnels are open\n")
        });
        lines.collect()
    })?;
    let missing = format!("switchboard: no target {} is on the allowlist", options.target);
    Ok(status_unless_none(report.changed.is_empty(), &report.replicas, missing))
}

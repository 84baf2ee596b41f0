//! The arguments of `targets` and `clients`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use switchboard::daemon::admin::api::{Client, Target, TargetDiagnosis};
use switchboard::operator::replicas::{FromReplica, MergedList, Query, TargetName};
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
    /// Say why a name is on the allowlist or not, and what keeps tunnels from its target
    #[command(after_help = OPERATOR_EXITS)]
    Why(TargetArgs),
    /// Stop new tunnels to a target, until the target is uncordoned or the proxy restarts
    #[command(after_help = OPERATOR_EXITS)]
    Cordon(TargetArgs),
    /// Allow new tunnels to a target again
    #[command(after_help = OPERATOR_EXITS)]
    Uncordon(TargetArgs),
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
struct TargetArgs {
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
        Some(Action::Why(options)) => why(&options),
        Some(Action::Cordon(options)) => cordon(&options, true),
        Some(Action::Uncordon(options)) => cordon(&options, false),
    }
}

fn list(options: &List) -> anyhow::Result<ExitCode> {
    let listed = run(options.replies.replicas()?.list::<Target>(&Query::default()))?;
    let table = || rendered(&target_table(&listed, options.columns.is_wide())) + &freshness(&listed);
    options.replies.print(&listed, table)?;
    Ok(status(&listed.replicas))
}

/// Returns the line below the table: whether the API server confirms the Services, or since when it does not.
fn freshness(list: &MergedList<Target>) -> String {
    let unconfirmed = list.items.iter().filter(|row| row.item.unconfirmed_since.is_some());
    // RFC 3339 sorts as text.
    match unconfirmed.min_by_key(|row| &row.item.unconfirmed_since) {
        Some(FromReplica { replica, item }) => {
            let since = columns::escape(item.unconfirmed_since.as_deref().unwrap_or_default());
            format!("not current: {replica} has had no answer of the API server since {since}\n")
        }
        None if list.items.iter().all(|row| row.item.namespace == "static") => String::new(),
        None => {
            let answering = list.replicas.iter().filter(|state| state.answers()).count();
            format!(
                "the list is current on {answering} of {} replicas\n",
                list.replicas.len()
            )
        }
    }
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

fn why(options: &TargetArgs) -> anyhow::Result<ExitCode> {
    let report = run(options.replies.replicas()?.diagnose_target(&options.target))?;
    options.replies.print(&report, || {
        let mut answers: Vec<(String, Vec<&str>)> = Vec::new();
        // Replicas mostly agree: what they say is printed once.
        for FromReplica { replica, item } in &report.changed {
            let text = diagnosis_text(item);
            match answers.iter_mut().find(|(known, _)| *known == text) {
                Some((_, replicas)) => replicas.push(replica),
                None => answers.push((text, vec![replica])),
            }
        }
        let text = answers
            .iter()
            .map(|(text, replicas)| format!("{}: {text}", replicas.join(", ")));
        text.collect()
    })?;
    Ok(status(&report.replicas))
}

/// Returns the sentences of a diagnosis, a line each.
fn diagnosis_text(item: &TargetDiagnosis) -> String {
    let listed = if item.is_listed { "is" } else { "is not" };
    let head = format!("{} {listed} on the allowlist\n", columns::escape(&item.target));
    let lines = item
        .evidence
        .iter()
        .map(|line| format!("  {}\n", columns::escape(line)));
    head + &lines.collect::<String>()
}

fn cordon(options: &TargetArgs, is_cordoned: bool) -> anyhow::Result<ExitCode> {
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

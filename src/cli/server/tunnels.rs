//! The arguments of `tunnels`, which lists, diagnoses, closes and limits tunnels.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use switchboard::daemon::admin::api::{CloseRequest, Rates, RestrictionKind, RestrictionRequest, Tunnel};
use switchboard::operator::replicas::{self, MergedList, Query, Reason, Replicas, Sort, TunnelSelector};
use switchboard::operator::tables::columns;
use switchboard::operator::tables::diagnoses::{diagnosis_summary, diagnosis_table};
use switchboard::operator::tables::listings::{fields, restriction_rates, tunnel_table};
use tokio::time::sleep;

use super::clients;
use super::filter_flags::{FilterFlags, PartyFlags};
use super::past;
use super::replica_flags::{
    BETWEEN_LOOKS, Columns, ListFlags, OPERATOR_EXITS, Replies, confirm, rendered, run, status, status_unless_none,
};
use super::targets;
use crate::cli::output::print;

/// The arguments of `tunnels`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Tunnels {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
}

#[derive(Subcommand)]
enum Action {
    /// List the open tunnels of all replicas
    #[command(after_help = OPERATOR_EXITS)]
    List(List),
    /// Show everything that is known about one tunnel
    #[command(after_help = OPERATOR_EXITS)]
    Show(ShowArgs),
    /// Diagnose why a tunnel is slow, or the tunnels of a node, target, client or user
    #[command(after_help = OPERATOR_EXITS)]
    Why(WhyArgs),
    /// List the tunnels that have ended in the last hour, the latest first
    #[command(after_help = OPERATOR_EXITS)]
    Ended(past::EndedArgs),
    /// Close tunnels and the sessions in them, by their ids, target, client or user
    #[command(after_help = OPERATOR_EXITS)]
    Close(Close),
    /// Move resumable sessions to other tunnels, such as those of another replica
    #[command(after_help = OPERATOR_EXITS)]
    Move(ChangeSelection),
    /// Set the rates of a tunnel until it ends, or of each tunnel of a user, client or target for some time
    #[command(after_help = OPERATOR_EXITS)]
    Limit(Limit),
    /// List the limits of users, clients and targets
    #[command(after_help = OPERATOR_EXITS)]
    Limits(targets::List),
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    filter: FilterFlags,
    /// Sort by bytes, rate, age or idle, the largest first; rates are measured for one second
    #[arg(long, value_name = "KEY", default_value = "age", hide_possible_values = true)]
    sort: Sort,
    #[command(flatten)]
    output: ListFlags,
}

#[derive(Args)]
struct ShowArgs {
    /// The id, as `tunnels` and the access log show it
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    replies: Replies,
}

#[derive(Args)]
struct WhyArgs {
    /// The id, as `tunnels` and the access log show it
    #[arg(value_name = "ID", required_unless_present_any = FILTERS, conflicts_with_all = FILTERS)]
    id: Option<String>,
    #[command(flatten)]
    filter: FilterFlags,
    /// Diagnose the N fastest, at most 64
    #[arg(long, value_name = "N", default_value_t = MAX_SAMPLES)]
    limit: usize,
    #[command(flatten)]
    columns: Columns,
    #[command(flatten)]
    replies: Replies,
}

#[derive(Args)]
struct Close {
    #[command(flatten)]
    selection: ChangeSelection,
    /// Refuse to resume the closed sessions for DURATION, on the replicas of their tunnels [default: 10m]
    #[arg(long = "for", value_name = "DURATION", value_parser = clients::time)]
    refused_for: Option<String>,
}

#[derive(Args)]
struct ChangeSelection {
    /// The ids, as `tunnels` and the access log show them
    #[arg(value_name = "ID", required_unless_present_any = FILTERS, conflicts_with_all = FILTERS)]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterFlags,
    /// The reason, for the access log and, if sessions end, for their users
    #[arg(long, value_name = "TEXT")]
    reason: Option<Reason>,
    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
    #[command(flatten)]
    replies: Replies,
}

#[derive(Args)]
struct Limit {
    /// The id, as `tunnels` and the access log show it
    #[arg(value_name = "ID", required_unless_present_any = PARTIES, conflicts_with_all = PARTIES)]
    id: Option<String>,
    #[command(flatten)]
    parties: PartyFlags,
    /// How long, or until the replica restarts
    #[arg(long = "for", value_name = "DURATION", value_parser = clients::time, conflicts_with = "id")]
    time: Option<String>,
    /// To the client: such as 5MiB/s, `unlimited`, or `default` for the target's own
    #[arg(long, value_name = "RATE", required_unless_present = "upload")]
    download: Option<String>,
    /// From the client
    #[arg(long, value_name = "RATE")]
    upload: Option<String>,
    #[command(flatten)]
    replies: Replies,
}

/// Does what the arguments say.
pub(crate) fn tunnels(options: Tunnels) -> anyhow::Result<ExitCode> {
    match options.action {
        None => list(options.list),
        Some(Action::List(options)) => list(options),
        Some(Action::Show(options)) => show(&options.replies, &options.replies.replicas()?, &options.id, ""),
        Some(Action::Why(options)) => why(options),
        Some(Action::Ended(options)) => past::ended(options),
        Some(Action::Close(Close { selection, refused_for })) => close(selection, false, refused_for),
        Some(Action::Move(selection)) => close(selection, true, None),
        Some(Action::Limit(options)) => limit(options),
        Some(Action::Limits(options)) => clients::list(&options, RestrictionKind::Limit),
    }
}

fn list(options: List) -> anyhow::Result<ExitCode> {
    let query = Query {
        sort: Some(options.sort),
        limit: options.output.limit,
        ..options.filter.into_query()
    };
    let replicas = options.output.replies.replicas()?;
    let list = run(list_tunnels(&replicas, &query))?;
    options.output.replies.print(&list, || {
        let table = tunnel_table(&list, options.sort, options.output.columns.is_wide());
        rendered(&table) + &summary(&list)
    })?;
    Ok(status(&list.replicas))
}

/// Returns the tunnels. For rates it lists them twice, because a rate is measured between two samples.
async fn list_tunnels(replicas: &Replicas, query: &Query) -> anyhow::Result<MergedList<Tunnel>> {
    let first = replicas.list::<Tunnel>(query).await?;
    if query.sort != Some(Sort::Rate) {
        return Ok(first);
    }
    sleep(BETWEEN_LOOKS).await;
    Ok(replicas.list(query).await?)
}

/// Returns the lines below the table: how many tunnels are open, and how many of those shown the restart of a replica moves or
/// cuts.
fn summary(list: &MergedList<Tunnel>) -> String {
    let answering: Vec<_> = list.replicas.iter().filter(|state| state.answers()).collect();
    let (shown, total, replicas) = (list.items.len(), list.total, list.replicas.len());
    let part = match shown < total {
        true => format!("; of the {shown} shown"),
        false => ":".to_owned(),
    };
    let cost = |name: &str| {
        let own = list.items.iter().filter(|row| row.replica == name);
        let (moved, cut): (Vec<_>, Vec<_>) = own.partition(|row| row.item.is_resumable);
        format!("moves {} and cuts {}", moved.len(), cut.len())
    };
    let head = format!(
        "{total} tunnels on {} of {replicas} replicas{part} a restart",
        answering.len()
    );
    match &*answering {
        [] => format!("0 of {replicas} replicas answer\n"),
        [one] if replicas == 1 => format!("{head} {}\n", cost(&one.replica)),
        several => {
            let lines = several
                .iter()
                .map(|of| format!("  of {} {}\n", of.replica, cost(&of.replica)));
            head + "\n" + &lines.collect::<String>()
        }
    }
}

fn why(options: WhyArgs) -> anyhow::Result<ExitCode> {
    let replicas = options.replies.replicas()?;
    if let Some(id) = options.id {
        return show(&options.replies, &replicas, &id, LOOK);
    }
    let query = Query {
        sort: Some(Sort::Rate),
        limit: Some(options.limit.clamp(1, MAX_LARGE_SAMPLES)),
        ..options.filter.into_query()
    };
    let (states, looks) = run(async {
        let list = list_tunnels(&replicas, &query).await?;
        anyhow::Ok((list.replicas, replicas.diagnose(list.items, LOOK).await?))
    })?;
    options.replies.print(&looks, || match looks.is_empty() {
        true => String::new(),
        false => rendered(&diagnosis_table(&looks, options.columns.is_wide())) + &diagnosis_summary(&looks),
    })?;
    Ok(status_unless_none(looks.is_empty(), &states, NOT_FOUND))
}

fn show(replies: &Replies, replicas: &Replicas, id: &str, path: &str) -> anyhow::Result<ExitCode> {
    let report = run(replicas.show(id, path))?;
    replies.print(&report.changed, || {
        let rows = report.changed.iter();
        rows.map(|row| fields(&row.replica, &row.item)).collect()
    })?;
    Ok(found(&report))
}

fn close(options: ChangeSelection, is_move: bool, refused_for: Option<String>) -> anyhow::Result<ExitCode> {
    // One runtime for all requests, because the API client needs the runtime in which it was created.
    run(close_asked(options, is_move, refused_for))
}

async fn close_asked(options: ChangeSelection, is_move: bool, refused_for: Option<String>) -> anyhow::Result<ExitCode> {
    let (verb, done, not_found) = match is_move {
        true => ("Move", "moved", NOT_RESUMABLE),
        false => ("End", "closed", NOT_FOUND),
    };
    let replicas = options.replies.replicas()?;
    let query = options.filter.into_query();
    let mut list = replicas.list::<Tunnel>(&query).await?;
    if !options.ids.is_empty() {
        list.items.retain(|row| options.ids.contains(&row.item.tunnel_id));
    }
    list.items.retain(|row| !is_move || row.item.is_resumable);
    if list.items.is_empty() {
        return Ok(status_unless_none(true, &list.replicas, not_found));
    }
    if !options.yes {
        print(rendered(&tunnel_table(&list, Sort::Age, false)))?;
        if !confirm(&format!("{verb} {} tunnels?", list.items.len()))? {
            return Ok(ExitCode::FAILURE);
        }
    }
    let selections = match options.ids.is_empty() {
        true => vec![TunnelSelector::Query(query)],
        false => options.ids.into_iter().map(TunnelSelector::Id).collect(),
    };
    let closing = CloseRequest {
        reason: options.reason.map(String::from).unwrap_or_default(),
        is_move,
        refused_for,
    };
    let mut ended = replicas::ClosedTunnels::default();
    for selection in &selections {
        ended.add(replicas.close(selection, &closing).await?);
    }
    options
        .replies
        .print(&ended, || describe_changes(&ended, done, &list))?;
    Ok(status_unless_none(ended.changed.is_empty(), &ended.replicas, not_found))
}

/// Returns a line for each tunnel that was closed or moved.
fn describe_changes(closed: &replicas::ClosedTunnels, verb: &str, list: &MergedList<Tunnel>) -> String {
    let lines = closed.changed.iter().map(|row| {
        let known = list
            .items
            .iter()
            .find(|known| known.item.tunnel_id == row.item.tunnel_id);
        let of = known.map(|known| {
            let (client, target) = (known.item.client_address, columns::escape(&known.target()));
            format!(" of {client} to {target}")
        });
        let id = columns::escape(&row.item.tunnel_id);
        format!("{verb} {id}{} on {}\n", of.unwrap_or_default(), row.replica)
    });
    lines.collect()
}

fn limit(options: Limit) -> anyhow::Result<ExitCode> {
    let Some(id) = options.id else {
        return limit_those(options);
    };
    let replicas = options.replies.replicas()?;
    let rates = Rates {
        download: options.download,
        upload: options.upload,
    };
    let report = run(replicas.limit(&id, &rates))?;
    options.replies.print(&report, || {
        let lines = report.changed.iter().map(|row| {
            let [download, upload] = [&row.item.download, &row.item.upload].map(|limit| columns::escape(&limit.rate));
            let id = columns::escape(&row.item.tunnel_id);
            format!("{id} on {}: download {download}, upload {upload}\n", row.replica)
        });
        lines.collect()
    })?;
    Ok(found(&report))
}

/// Limits the tunnels of a user, client or target. Without a rate left it ends their limit.
fn limit_those(options: Limit) -> anyhow::Result<ExitCode> {
    let Query {
        target, client, user, ..
    } = options.parties.into_query();
    let rates = [&options.download, &options.upload];
    let request = RestrictionRequest {
        kind: RestrictionKind::Limit,
        target,
        client,
        user,
        ..RestrictionRequest::default()
    };
    if rates.into_iter().flatten().all(|rate| rate == "default") {
        return clients::lift(&options.replies, &request, "not limited any more");
    }
    let request = RestrictionRequest {
        time: options.time,
        download: options.download,
        upload: options.upload,
        ..request
    };
    clients::restrict(&options.replies, &request, |of, row| {
        let (rates, until) = (restriction_rates(row), columns::escape(&row.until));
        format!("each tunnel of {of}: {rates} until {until}, {} are open", row.tunnels)
    })
}

/// Returns the exit status for one tunnel. If one replica has the tunnel, errors of other replicas do not matter.
fn found<T>(report: &replicas::ChangeResult<T>) -> ExitCode {
    if !report.changed.is_empty() {
        return ExitCode::SUCCESS;
    }
    status_unless_none(true, &report.replicas, NOT_FOUND);
    ExitCode::FAILURE
}

const NOT_FOUND: &str = "switchboard: no open tunnel is that";
const NOT_RESUMABLE: &str = "switchboard: no open tunnel with a resumable session is that";
/// The proxy samples a tunnel for 2 s, so a `--timeout` must be longer.
const LOOK: &str = "/diagnosis?over_ms=2000";
/// The filters that select tunnels instead of an id.
const FILTERS: [&str; 4] = ["target", "client", "user", "node"];
/// Those of limits.
const PARTIES: [&str; 3] = ["target", "client", "user"];
/// The default number of tunnels to diagnose, without `--limit`.
const MAX_SAMPLES: usize = 16;
const MAX_LARGE_SAMPLES: usize = 64;

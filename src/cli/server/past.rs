//! The arguments of `tunnels ended` and `refusals`: the past hour of all replicas.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use switchboard::daemon::admin::api::{EndedTunnel, PastRefusal};
use switchboard::operator::replicas::{Item, MergedList, Query};
use switchboard::operator::tables::columns::Table;
use switchboard::operator::tables::past::{ended_table, refusal_table};

use super::filter_flags::{FilterFlags, PartyFlags};
use super::replica_flags::{ListFlags, rendered, run, status};

/// The arguments of `tunnels ended`.
#[derive(Args)]
pub(crate) struct EndedArgs {
    #[command(flatten)]
    filter: FilterFlags,
    #[command(flatten)]
    output: ListFlags,
}

/// The arguments of `refusals`.
#[derive(Args)]
pub(crate) struct RefusalArgs {
    #[command(flatten)]
    filter: PartyFlags,
    #[command(flatten)]
    output: ListFlags,
}

/// Lists the tunnels that have ended.
pub(crate) fn ended(options: EndedArgs) -> anyhow::Result<ExitCode> {
    let EndedArgs { filter, output } = options;
    list::<EndedTunnel>(filter.into_query(), &output, |listed, is_wide| {
        (ended_table(listed, is_wide), format!("{} tunnels ended", listed.total))
    })
}

/// Lists the refusals.
pub(crate) fn refusals(options: RefusalArgs) -> anyhow::Result<ExitCode> {
    let RefusalArgs { filter, output } = options;
    list::<PastRefusal>(filter.into_query(), &output, |listed, is_wide| {
        let counts = listed
            .items
            .iter()
            .map(|row| row.item.count.saturating_add(row.item.others));
        let sum = counts.fold(0, u64::saturating_add);
        (refusal_table(listed, is_wide), format!("{sum} refusals"))
    })
}

/// Lists the past of all replicas. `show` returns the table, and the number of its events.
fn list<T: Item + Serialize>(
    query: Query,
    output: &ListFlags,
    show: impl FnOnce(&MergedList<T>, bool) -> (Table, String),
) -> anyhow::Result<ExitCode> {
    let query = Query {
        limit: output.limit,
        ..query
    };
    let listed = run(output.replies.replicas()?.list::<T>(&query))?;
    output.replies.print(&listed, || {
        let (table, count) = show(&listed, output.columns.is_wide());
        let since = listed.complete_since.as_deref().unwrap_or("an unknown time");
        let answering = listed.replicas.iter().filter(|state| state.answers()).count();
        let replicas = listed.replicas.len();
        rendered(&table) + &format!("{count} on {answering} of {replicas} replicas since {since}\n")
    })?;
    Ok(status(&listed.replicas))
}

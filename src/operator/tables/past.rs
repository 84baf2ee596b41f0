//! The tables of the tunnels that have ended, and of refusals.

use super::columns::{Column, Table, bytes, escape, span};
use crate::daemon::admin::api::{EndedTunnel, PastRefusal};
use crate::operator::replicas::merge::{FromReplica, MergedList};

/// Returns the table of tunnels that have ended.
pub fn ended_table(list: &MergedList<EndedTunnel>, is_wide: bool) -> Table {
    let row = |FromReplica { replica, item }: &FromReplica<EndedTunnel>| {
        let operator = if item.operator_reason.is_empty() { "" } else { ": " };
        vec![
            span(item.ago_ms),
            escape(&item.ended),
            item.client_address.to_string(),
            escape(&item.user_name),
            escape(&format!("{}/{}", item.target_namespace, item.target_service)),
            span(item.age_ms),
            escape(&format!("{}{operator}{}", item.sentence, item.operator_reason)),
            escape(&item.reason),
            escape(&item.closed_by),
            bytes(item.bytes_sent),
            bytes(item.bytes_received),
            escape(&item.upstream_node),
            escape(&item.tunnel_id),
            replica.clone(),
        ]
    };
    let rows: Vec<_> = list.items.iter().map(row).collect();
    Table::new(&ENDED_COLUMNS, &rows, is_wide)
}

/// Returns the table of refusals.
pub fn refusal_table(list: &MergedList<PastRefusal>, is_wide: bool) -> Table {
    let row = |FromReplica { replica, item }: &FromReplica<PastRefusal>| {
        let request = &item.request;
        let others = if item.others > 0 {
            format!("+{}", item.others)
        } else {
            String::new()
        };
        let user = match &*request.claimed_user {
            "" => escape(&request.user_name),
            claimed => format!("{}?", escape(claimed)),
        };
        let why = match &*request.authorization_reason {
            "" => &request.sentence,
            why => why,
        };
        vec![
            span(item.ago_ms),
            escape(&item.last),
            format!("{}{others}", item.count),
            request.client_address.to_string(),
            user,
            escape(&request.authority),
            escape(why),
            request.status.to_string(),
            escape(&request.reason),
            escape(&request.tunnel_id),
            replica.clone(),
        ]
    };
    let rows: Vec<_> = list.items.iter().map(row).collect();
    Table::new(&REFUSAL_COLUMNS, &rows, is_wide)
}

const ENDED_COLUMNS: [Column; 14] = [
    Column::number("AGO"),
    Column::text("ENDED").wide(),
    Column::name("CLIENT"),
    Column::name("USER"),
    Column::target("TARGET"),
    Column::number("LASTED"),
    Column::sentence("WHY"),
    Column::text("REASON").wide(),
    Column::text("BY").wide(),
    Column::number("DOWN").wide(),
    Column::number("UP").wide(),
    Column::text("NODE").wide(),
    Column::text("ID").wide(),
    Column::text("REPLICA").wide(),
];
const REFUSAL_COLUMNS: [Column; 11] = [
    Column::number("AGO"),
    Column::text("LAST").wide(),
    Column::number("COUNT"),
    Column::name("CLIENT"),
    Column::name("USER"),
    Column::target("ASKED FOR"),
    Column::sentence("WHY"),
    Column::number("STATUS").wide(),
    Column::text("REASON").wide(),
    Column::text("ID").wide(),
    Column::text("REPLICA").wide(),
];

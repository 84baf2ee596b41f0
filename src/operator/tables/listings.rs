//! The tables of tunnels, targets and clients, and the fields of one item.

use serde_json::Value;

use super::columns::{Column, Table, bytes, escape, span};
use crate::daemon::admin::api::{Client, Dial, Restriction, RestrictionKind, Sort, Target, Tunnel};
use crate::operator::replicas::merge::{FromReplica, MergedList};
use crate::operator::replicas::results::{AnchorRow, by_client, by_target};

/// Returns the table of tunnels in an order, with the columns of its key. Rates are sampled for the order by rates.
pub fn tunnel_table(list: &MergedList<Tunnel>, sort: Sort, is_wide: bool) -> Table {
    let is_one = list.replicas.len() < 2;
    // There is no room for all in 80 columns.
    let only = |has: bool, text: String| if has || is_wide { text } else { String::new() };
    let has_rates = sort == Sort::Rate;
    let time = |millis| only(matches!(sort, Sort::Age | Sort::Idle), span(millis));
    let moved = |count| only(sort == Sort::Bytes, bytes(count));
    let row = |row: &FromReplica<Tunnel>| {
        let FromReplica { replica, item } = row;
        let rate = |rate: u64| if has_rates { bytes(rate) } else { String::new() };
        vec![
            escape(&item.tunnel_id),
            if is_one { String::new() } else { replica.clone() },
            item.client_address.to_string(),
            escape(&item.user_name),
            escape(&row.target()),
            time(item.age_ms),
            time(item.idle_ms),
            moved(item.bytes_sent),
            moved(item.bytes_received),
            rate(item.sent_per_second),
            rate(item.received_per_second),
            way(item),
            limits(item),
            item.upstream_address
                .map(|address| address.to_string())
                .unwrap_or_default(),
            escape(&item.upstream_node),
            escape(&item.upstream_anchor),
            escape(&item.client_software),
        ]
    };
    Table::new(
        &TUNNEL_COLUMNS,
        &list.items.iter().map(row).collect::<Vec<_>>(),
        is_wide,
    )
}

/// Returns the client's protocols, such as `h2+tls+resume` for a resumable session.
fn way(tunnel: &Tunnel) -> String {
    let mut way = match &*tunnel.http_version {
        "" => "ssh".to_owned(),
        version => format!("h{}", escape(version)),
    };
    if !tunnel.tls_version.is_empty() {
        way += "+tls";
    }
    if tunnel.is_resumable {
        way += "+resume";
    }
    way
}

/// Returns the limits of a tunnel; empty without any. An asterisk marks one set by an operator.
fn limits(tunnel: &Tunnel) -> String {
    let [download, upload] = [&tunnel.download, &tunnel.upload].map(|limit| {
        let own = if limit.is_own { "*" } else { "" };
        format!("{}{own}", escape(&limit.rate))
    });
    match (&*download, &*upload) {
        ("unlimited" | "", "unlimited" | "") => String::new(),
        _ => format!("{download} {upload}"),
    }
}

/// Returns the table of targets, each once.
pub fn target_table(list: &MergedList<Target>, is_wide: bool) -> Table {
    let targets = list.items.iter().map(|of| (&*of.replica, &of.item));
    let rows = by_target(targets).into_iter().map(|row| {
        let cordoned = match row.cordoned_by.len() {
            0 => String::new(),
            _ if row.is_cordoned => "yes".to_owned(),
            some => format!("on {some} of {}", row.replicas),
        };
        vec![
            escape(&format!("{}/{}", row.namespace, row.service)),
            format!("{}/{}", row.endpoints_ready, row.endpoints),
            row.tunnels.to_string(),
            cordoned,
            row.last_dial.as_ref().map(dial).unwrap_or_default(),
            escape(&row.unconfirmed_since.unwrap_or_default()),
            escape(&row.nodes.join(",")),
            escape(&row.anchors.iter().map(anchor).collect::<Vec<_>>().join(", ")),
            escape(&row.remarks.join("; ")),
        ]
    });
    Table::new(&TARGET_COLUMNS, &rows.collect::<Vec<_>>(), is_wide)
}

/// Returns the result of a dial, and its age.
fn dial(dial: &Dial) -> String {
    let (result, code) = match &*dial.error {
        "" => ("connected", String::new()),
        // An older replica has no sentence.
        error if dial.sentence.is_empty() => (error, String::new()),
        error => (&*dial.sentence, format!(" ({})", escape(error))),
    };
    let age = humantime::parse_rfc3339_weak(&dial.at)
        .ok()
        .and_then(|at| at.elapsed().ok());
    let millis = age.unwrap_or_default().as_millis();
    let ago = span(u64::try_from(millis).unwrap_or(u64::MAX));
    format!("{} {ago} ago{code}", escape(result))
}

fn anchor(row: &AnchorRow) -> String {
    let standby = if row.is_standby { ", standby" } else { "" };
    format!(
        "{}@{} ({} connected{standby})",
        row.user_name, row.address, row.connections
    )
}

/// Returns the table of clients, each pair of address and user once.
pub fn client_table(list: &MergedList<Client>) -> Table {
    let row = |client: Client| {
        vec![
            client.address.to_string(),
            escape(&client.user),
            client.tunnels.to_string(),
            bytes(client.bytes_sent),
            bytes(client.bytes_received),
            bytes(client.sent_per_second),
            bytes(client.received_per_second),
            span(client.idle_ms),
        ]
    };
    let rows: Vec<_> = by_client(list).into_iter().map(row).collect();
    Table::new(&CLIENT_COLUMNS, &rows, false)
}

/// Returns the table of restrictions.
pub fn restriction_table(list: &MergedList<Restriction>, is_wide: bool) -> Table {
    let is_one = list.replicas.len() < 2;
    let row = |FromReplica { replica, item }: &FromReplica<Restriction>| {
        let effect = match item.kind {
            RestrictionKind::Block => String::new(),
            RestrictionKind::Limit => restriction_rates(item),
        };
        vec![
            restriction_subject(item),
            effect,
            span(item.left_ms),
            item.tunnels.to_string(),
            escape(&item.reason),
            if is_one { String::new() } else { replica.clone() },
        ]
    };
    let rows: Vec<_> = list.items.iter().map(row).collect();
    Table::new(&RESTRICTION_COLUMNS, &rows, is_wide)
}

/// Returns whom a restriction is for, such as `user alice`.
pub fn restriction_subject(item: &Restriction) -> String {
    let client = item.client_address.map(|client| client.to_string()).unwrap_or_default();
    let parts = [("user", &item.user_name), ("client", &client), ("target", &item.target)];
    let parts = parts.iter().filter(|(_, text)| !text.is_empty());
    let parts = parts.map(|(kind, text)| format!("{kind} {}", escape(text)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns the rates of a limit.
pub fn restriction_rates(item: &Restriction) -> String {
    let parts = [("download", &item.download), ("upload", &item.upload)];
    let parts = parts.iter().filter(|(_, rate)| !rate.is_empty());
    let parts = parts.map(|(direction, rate)| format!("{direction} {}", escape(rate)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns the fields of an item of the API, one per line, nested ones as `a.b`.
pub fn fields(replica: &str, thing: &Value) -> String {
    let mut lines = vec![("replica".to_owned(), replica.to_owned())];
    flatten("", thing, &mut lines);
    // A verdict comes first, and its evidence next.
    lines.sort_by_key(|(name, _)| match &**name {
        "replica" | "verdict" => 0,
        evidence if evidence.starts_with("evidence.") => 1,
        _ => 2,
    });
    let room = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    lines
        .into_iter()
        .map(|(name, value)| format!("{name:room$}  {value}").trim_end().to_owned() + "\n")
        .collect()
}

fn flatten(name: &str, value: &Value, lines: &mut Vec<(String, String)>) {
    let inner = |inner: &str| match name {
        "" => escape(inner),
        _ => format!("{name}.{}", escape(inner)),
    };
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| flatten(&inner(key), value, lines)),
        Value::Array(values) => {
            let numbered = values.iter().enumerate();
            numbered.for_each(|(at, value)| flatten(&inner(&(at + 1).to_string()), value, lines));
        }
        Value::String(text) => lines.push((name.to_owned(), escape(text))),
        Value::Null => lines.push((name.to_owned(), String::new())),
        Value::Bool(_) | Value::Number(_) => lines.push((name.to_owned(), value.to_string())),
    }
}

const RESTRICTION_COLUMNS: [Column; 6] = [
    Column::name("OF"),
    Column::text("RATES"),
    Column::number("LEFT"),
    Column::number("TUNNELS"),
    Column::sentence("REASON"),
    Column::text("REPLICA").wide(),
];
const TUNNEL_COLUMNS: [Column; 17] = [
    Column::text("ID"),
    Column::text("REPLICA").wide(),
    Column::name("CLIENT"),
    Column::name("USER"),
    Column::target("TARGET"),
    Column::number("AGE"),
    Column::number("IDLE"),
    Column::number("DOWN"),
    Column::number("UP"),
    Column::number("DOWN/S"),
    Column::number("UP/S"),
    Column::text("VIA").wide(),
    Column::text("LIMITS").wide(),
    Column::text("UPSTREAM").wide(),
    Column::text("NODE").wide(),
    Column::text("ANCHOR").wide(),
    Column::text("SOFTWARE").wide(),
];
const TARGET_COLUMNS: [Column; 9] = [
    Column::target("TARGET"),
    Column::number("READY"),
    Column::number("TUNNELS"),
    Column::text("CORDONED"),
    Column::sentence("LAST DIAL"),
    Column::text("NOT CONFIRMED SINCE").wide(),
    Column::text("NODE").wide(),
    Column::sentence("ANCHORS"),
    Column::sentence("REMARKS"),
];
const CLIENT_COLUMNS: [Column; 8] = [
    Column::name("CLIENT"),
    Column::name("USER"),
    Column::number("TUNNELS"),
    Column::number("DOWN"),
    Column::number("UP"),
    Column::number("DOWN/S"),
    Column::number("UP/S"),
    Column::number("IDLE"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_fields_of_a_thing_are_lines_that_a_terminal_can_show() {
        let thing = json!({"a": "x\u{1b}", "inner": {"b": 1, "list": [true, null]}});
        assert_eq!(
            fields("one", &thing),
            "replica       one\na             x\\u{1b}\ninner.b       1\ninner.list.1  true\ninner.list.2\n"
        );
        let diagnosis = json!({"bytes": 1, "evidence": ["why"], "verdict": "client"});
        assert_eq!(
            fields("one", &diagnosis),
            "replica     one\nverdict     client\nevidence.1  why\nbytes       1\n"
        );
    }
}

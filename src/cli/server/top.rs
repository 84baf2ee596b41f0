//! The arguments of `top`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use switchboard::daemon::admin::api::Tunnel;
use switchboard::operator::replicas::{Query, Sort, json};
use switchboard::operator::tables::listings::tunnel_table;
use switchboard::operator::top;
use tokio::time::sleep;

use super::replica_flags::{Reach, print, print_table, run, status};

/// The arguments of `top`.
#[derive(Args)]
pub(crate) struct Top {
    /// The largest first: bytes, rate, age or idle
    #[arg(long, value_name = "KEY", default_value = "rate")]
    sort: Sort,
    /// Ask each replica once in this time
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "2s")]
    interval: Duration,
    /// Print the tunnels once, after a look of a second at their rates
    #[arg(long)]
    once: bool,
    /// The same as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Shows the tunnels.
pub(crate) fn top(options: Top) -> anyhow::Result<ExitCode> {
    let query = Query {
        sort: Some(options.sort),
        ..Query::default()
    };
    let replicas = options.reach.replicas()?;
    if options.once || options.json {
        let listed = run(async {
            replicas.list::<Tunnel>(&query).await?;
            sleep(BETWEEN_LOOKS).await;
            Ok(replicas.list::<Tunnel>(&query).await?)
        })?;
        match options.json {
            true => print(&(json(&listed) + "\n"))?,
            false => print_table(tunnel_table(&listed, true))?,
        }
        return Ok(status(&listed.replicas));
    }
    let interval = options.interval.max(SHORTEST_INTERVAL);
    let ended = run(async { Ok(top::show(Arc::new(replicas), query, interval).await?) })?;
    // As a shell tells of a process that a signal has ended.
    let code = ended.map_or(0, |signal| 128 + u8::try_from(signal).unwrap_or_default());
    Ok(ExitCode::from(code))
}

/// For `--help`.
pub(crate) const TOP_KEYS: &str = "\
Keys: up and down select, b r a i sort by bytes, rate, age or idle time, / filters by what is typed, x ends the selected \
tunnel after a question, q quits
Exit status: 0 quit, 1 there is no terminal, or with --once no replica answers, 2 usage, 3 with --once some replicas do not \
answer, 128 and the number of a signal that ended it";
/// The proxy keeps a rate for a second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1100);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

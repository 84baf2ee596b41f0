//! `drain`: its request to the process, and the answer as text.

use std::process::ExitCode;

use switchboard::daemon::admin::DrainStatus;
use switchboard::operator::drain_request::{self, Options, ReplicaAnswer};

use super::replica_flags::run;
use crate::cli::output::print;

/// Asks the process to drain, and prints its progress.
pub(crate) fn drain(options: &Options) -> anyhow::Result<ExitCode> {
    let (state, code) = match run(drain_request::drain(options))? {
        ReplicaAnswer::Draining(progress) => (describe(&progress), ExitCode::SUCCESS),
        ReplicaAnswer::Ended => ("ended".to_owned(), ExitCode::SUCCESS),
        ReplicaAnswer::TimedOut(progress) => (describe(&progress), ExitCode::from(DRAIN_CUT)),
    };
    print(state + "\n")?;
    Ok(code)
}

fn describe(status: &DrainStatus) -> String {
    let DrainStatus {
        phase,
        tunnels,
        resumable,
        connections,
    } = status;
    let cost = match resumable.filter(|_| *tunnels > 0) {
        None => String::new(),
        Some(resumable) => format!(" (moves {resumable}, cuts {})", tunnels.saturating_sub(resumable)),
    };
    format!("{phase}: {tunnels} tunnels{cost}, {connections} connections")
}

/// For `--help`.
pub(crate) const DRAIN_EXITS: &str = "\
Exit status: 0 the process drains (with --wait: at most N tunnels are left, or the process has ended), 1 the process \
cannot be reached, or refuses, 2 usage, 3 more than N were left after --timeout";
/// The exit status of `serve` that has cut tunnels, and of `drain` whose timeout came with too many tunnels left.
pub(crate) const DRAIN_CUT: u8 = 3;

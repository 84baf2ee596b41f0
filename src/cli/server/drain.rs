//! The arguments of `drain`, its question to the process, and the answer as text.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use switchboard::daemon::admin::Progress;
use switchboard::operator::drain_request::{self, Answer, Wait};

use super::replica_flags::run;
use crate::cli::start::address;

/// The arguments of `drain`.
#[derive(Args)]
pub(crate) struct Drain {
    /// The admin port of the process
    #[arg(
        long,
        env = "SWITCHBOARD_ADMIN",
        value_name = "ADDR",
        value_parser = address,
        default_value = "127.0.0.1:9090"
    )]
    admin: SocketAddr,
    /// Return when the tunnels of the process have ended
    #[arg(long)]
    wait: bool,
    /// Return when no more than N tunnels are left that would be cut: resumable ones do not count
    #[arg(long, value_name = "N", default_value_t = 0, requires = "wait")]
    at_most: u32,
    /// Wait no longer than this, such as 50m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, requires = "wait")]
    timeout: Option<Duration>,
}

/// Asks the process, and prints where its drain is.
pub(crate) fn drain(options: &Drain) -> anyhow::Result<ExitCode> {
    let wait = options.wait.then_some(Wait {
        at_most: options.at_most,
        timeout: options.timeout,
    });
    let admin = options.admin;
    let (state, code) = match run(async { Ok(drain_request::drain(&drain_request::Options { admin, wait }).await?) })? {
        Answer::Draining(progress) => (describe(&progress), ExitCode::SUCCESS),
        Answer::Ended => ("ended".to_owned(), ExitCode::SUCCESS),
        Answer::TimedOut(progress) => (describe(&progress), ExitCode::from(DRAIN_CUT)),
    };
    writeln!(std::io::stdout(), "{state}")?;
    Ok(code)
}

fn describe(progress: &Progress) -> String {
    let Progress {
        phase,
        tunnels,
        resumable,
        connections,
    } = progress;
    let resumable = match resumable {
        None | Some(0) => String::new(),
        Some(resumable) => format!(" ({resumable} resumable)"),
    };
    format!("{phase}: {tunnels} tunnels{resumable}, {connections} connections")
}

/// For `--help`.
pub(crate) const DRAIN_EXITS: &str = "\
Exit status: 0 the process drains, with --wait no more than N tunnels are left or it has ended, 1 it cannot be asked, \
2 usage, 3 more were left after --timeout";
/// The exit status of a process that had to cut tunnels, or has more left than it may.
pub(crate) const DRAIN_CUT: u8 = 3;

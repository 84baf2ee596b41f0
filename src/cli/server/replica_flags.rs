//! The arguments by which the programs of operators find the replicas, and the messages about those that do not answer.

use std::env;
use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _, stdin};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use switchboard::base::platform::{mark_vital, start_runtime};
use switchboard::base::values::{address, timeout};
use switchboard::kubernetes::PodSelector;
use switchboard::operator::replicas::{ReplicaStatus, Replicas, Source, json};
use switchboard::operator::tables::columns;
use switchboard::operator::tables::columns::{Table, terminal_width};

use tokio::runtime::Builder;

use crate::cli::output::{print, to_stderr};

/// Where the replicas are.
#[derive(Args)]
pub(crate) struct ReplicaFlags {
    /// The admin port of a replica, which answers on its own host only (repeatable) [default: SWITCHBOARD_ADMIN or
    /// 127.0.0.1:9090]
    #[arg(
        long,
        value_name = "ADDR",
        value_parser = address,
        value_delimiter = ',',
        conflicts_with_all = ["namespace", "selector", "context", "kubeconfig", "pod_port"]
    )]
    admin: Vec<SocketAddr>,
    /// Wait at most this long for a replica's answer
    #[arg(long, value_name = "DURATION", value_parser = timeout, default_value = "5s")]
    timeout: Duration,
    #[command(
        flatten,
        next_help_heading = "In a cluster, each pod is reached by a port-forward, with your permission create pods/portforward"
    )]
    cluster: PodSelector,
}

/// The location of the replicas, and the format of the output.
#[derive(Args)]
pub(crate) struct Replies {
    /// Print JSON, with the replica of each row
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    replicas: ReplicaFlags,
}

impl Replies {
    /// Returns the replicas that the arguments name.
    pub(crate) fn replicas(&self) -> anyhow::Result<Replicas> {
        self.replicas.replicas()
    }

    /// Prints a value as JSON, or the text that says the same.
    pub(crate) fn print(&self, value: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        print(if self.json { json(value) + "\n" } else { text() })
    }
}

/// The columns of a table.
#[derive(Args)]
pub(crate) struct Columns {
    /// `wide`: print all columns, regardless of the terminal's width
    #[arg(long, short, value_name = "FORM")]
    output: Option<Output>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Wide,
}

/// The arguments of lists of which a part may be shown.
#[derive(Args)]
pub(crate) struct ListFlags {
    /// Show at most N
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    #[command(flatten)]
    pub(crate) columns: Columns,
    #[command(flatten)]
    pub(crate) replies: Replies,
}

impl Columns {
    /// Returns whether all columns are printed.
    pub(crate) fn is_wide(&self) -> bool {
        matches!(self.output, Some(Output::Wide))
    }
}

impl ReplicaFlags {
    /// Returns the replicas that the arguments name.
    pub(crate) fn replicas(&self) -> anyhow::Result<Replicas> {
        let source = if self.cluster != PodSelector::default() {
            Source::Cluster(self.cluster.clone())
        } else if self.admin.is_empty() {
            Source::Addresses(usual_addresses()?)
        } else {
            Source::Addresses(self.admin.clone())
        };
        Ok(Replicas::new(source, self.timeout))
    }
}

/// Returns the default addresses. The variable is not the `env` of `--admin`: it would conflict with a cluster's flags.
fn usual_addresses() -> anyhow::Result<Vec<SocketAddr>> {
    let text = env::var("SWITCHBOARD_ADMIN").unwrap_or_else(|_| "127.0.0.1:9090".to_owned());
    let addresses = text.split(',').map(|address| {
        let address = address.trim();
        address
            .parse()
            .with_context(|| format!("SWITCHBOARD_ADMIN: {address:?} is not an address with a port"))
    });
    addresses.collect()
}

/// Runs a command that waits for replicas. A credential plugin that hangs does not delay the command's end.
pub(crate) fn run<T, E>(work: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
where
    anyhow::Error: From<E>,
{
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).on_thread_park(mark_vital);
    let runtime = start_runtime(&mut builder, 1)?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(result?)
}

/// Prints which replicas have not answered. Returns the exit status: 1 if none has, 3 if some have not.
pub(crate) fn status(replicas: &[ReplicaStatus]) -> ExitCode {
    for ReplicaStatus { replica, error } in replicas {
        if let Some(error) = error {
            to_stderr(format_args!("switchboard: {replica}: {}", columns::escape(error)));
        }
    }
    match replicas.iter().filter(|state| !state.answers()).count() {
        0 if replicas.is_empty() => {
            to_stderr("switchboard: there are no replicas");
            ExitCode::FAILURE
        }
        0 => ExitCode::SUCCESS,
        failed if failed == replicas.len() => ExitCode::FAILURE,
        _ => ExitCode::from(PARTIAL),
    }
}

/// Like [`status`], but prints `missing` and returns 1 if nothing was found and every replica has answered.
pub(crate) fn status_unless_none(is_none: bool, replicas: &[ReplicaStatus], missing: impl Display) -> ExitCode {
    let status = status(replicas);
    if is_none && !replicas.is_empty() && replicas.iter().all(ReplicaStatus::answers) {
        to_stderr(missing);
        return ExitCode::FAILURE;
    }
    status
}

/// Returns a table that fits the terminal.
pub(crate) fn rendered(table: &Table) -> String {
    table.render(terminal_width())
}

/// Asks a question on the terminal; anything but `y`, `Y` or `yes` is a no.
pub(crate) fn confirm(question: &str) -> anyhow::Result<bool> {
    if !stdin().is_terminal() {
        bail!("there is no terminal for the question {question:?}: say --yes");
    }
    let mut terminal = std::io::stderr();
    write!(terminal, "{question} [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// For `--help`.
pub(crate) const OPERATOR_EXITS: &str = "\
Exit status: 0 done, 1 nothing was found, or no replica answers, 2 usage, 3 some replicas do not answer";
/// The proxy measures a rate over a second at least.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(1100);
/// The exit status where some replicas have not answered.
const PARTIAL: u8 = 3;

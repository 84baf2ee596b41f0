//! The arguments by which the programs of operators find the replicas, and what they say of those that do not answer.

use std::env;
use std::io::{IsTerminal as _, Write as _, stdin, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use switchboard::kubernetes::PodSearch;
use switchboard::operator::replicas::{Replicas, Source, State};
use switchboard::operator::tables::columns::{Table, terminal_width};
use switchboard::operator::tables::formatting;

use crate::cli::start::address;
use crate::cli::to_stderr;

/// Where the replicas are.
#[derive(Args)]
pub(crate) struct Reach {
    /// The admin port of a replica, which answers on its own host only (repeatable) [default: SWITCHBOARD_ADMIN or
    /// 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    admin: Vec<SocketAddr>,
    /// Wait no longer for the answer of a replica
    #[arg(long, value_name = "DURATION", value_parser = deadline, default_value = "5s")]
    timeout: Duration,
    #[command(
        flatten,
        next_help_heading = "In a cluster: each pod by a port that the API server forwards, with your right to pods/portforward"
    )]
    cluster: Cluster,
}

/// The columns of a table.
#[derive(Args)]
pub(crate) struct Columns {
    /// `wide`: print all columns, however wide the terminal is
    #[arg(long, short, value_name = "FORM")]
    output: Option<Output>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Wide,
}

impl Columns {
    /// Returns whether all of them are printed.
    pub(crate) fn is_wide(&self) -> bool {
        matches!(self.output, Some(Output::Wide))
    }
}

#[derive(Args)]
struct Cluster {
    /// The pods of this namespace [default: that of the context]
    #[arg(long, short = 'n', value_name = "NAME", conflicts_with = "admin")]
    namespace: Option<String>,
    /// The pods with these labels [default: app.kubernetes.io/name=switchboard]
    #[arg(long, short = 'l', value_name = "LABELS", conflicts_with = "admin")]
    selector: Option<String>,
    /// Ask the API server of this context, not of the current one
    #[arg(long, value_name = "NAME", conflicts_with = "admin")]
    context: Option<String>,
    /// Ask the API server of this kubeconfig [default: KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    kubeconfig: Option<PathBuf>,
    /// The admin port of the pods [default: the container port named metrics or admin, or else 9090]
    #[arg(long, value_name = "PORT", conflicts_with = "admin", value_parser = clap::value_parser!(u16).range(1..))]
    pod_port: Option<u16>,
}

impl Cluster {
    fn is_named(&self) -> bool {
        let Self {
            namespace,
            selector,
            context,
            kubeconfig,
            pod_port,
        } = self;
        namespace.is_some() || selector.is_some() || context.is_some() || kubeconfig.is_some() || pod_port.is_some()
    }
}

impl Reach {
    /// The replicas that the arguments name.
    pub(crate) fn replicas(self) -> anyhow::Result<Replicas> {
        let Self {
            admin,
            timeout,
            cluster,
        } = self;
        let source = if cluster.is_named() {
            Source::Cluster(PodSearch {
                kubeconfig: cluster.kubeconfig,
                context: cluster.context,
                namespace: cluster.namespace,
                selector: cluster.selector.unwrap_or_else(|| USUAL_SELECTOR.to_owned()),
                port: cluster.pod_port,
            })
        } else if admin.is_empty() {
            Source::Addresses(usual_addresses()?)
        } else {
            Source::Addresses(admin)
        };
        Ok(Replicas::new(source, timeout))
    }
}

/// Not as the environment of the argument: it would conflict with those of a cluster.
fn usual_addresses() -> anyhow::Result<Vec<SocketAddr>> {
    let text = env::var("SWITCHBOARD_ADMIN").unwrap_or_else(|_| "127.0.0.1:9090".to_owned());
    let addresses = text.split(',').map(|address| {
        let address = address.trim();
        address
            .parse()
            .with_context(|| format!("SWITCHBOARD_ADMIN: {address:?} is no address with a port"))
    });
    addresses.collect()
}

fn deadline(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(deadline) if !deadline.is_zero() => Ok(deadline),
        Ok(_) => Err("expected more than 0s".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs a program that waits for replicas. A program of a kubeconfig that hangs does not delay its end.
pub(crate) fn run<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

/// Says which replicas have not answered. The exit status: 1 if none has, 3 if some have not.
pub(crate) fn status(replicas: &[State]) -> ExitCode {
    for State { replica, error } in replicas {
        if let Some(error) = error {
            to_stderr(format_args!("switchboard: {replica}: {}", formatting::foreign(error)));
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

/// Prints a table that fits the terminal.
pub(crate) fn print_table(table: &Table) -> anyhow::Result<()> {
    print(&table.render(terminal_width()))
}

/// Prints a text. A reader that is gone, as `head` is, has read what it wanted.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Asks a question on the terminal; anything but `y` or `yes` is a no.
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
/// The labels of the chart and of the kustomization.
const USUAL_SELECTOR: &str = "app.kubernetes.io/name=switchboard";
/// The exit status where some replicas have not answered.
const PARTIAL: u8 = 3;

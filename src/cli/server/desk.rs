//! The arguments of `desk`, and its end by a signal.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use switchboard::desk::{self, Opening};
use switchboard::kubernetes::PodSearch;
use switchboard::operator::Source;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::to_stderr;

/// The arguments of `desk`.
#[derive(Args)]
pub(crate) struct Desk {
    /// The admin port of a replica; several of them are several replicas
    #[arg(long, env = "SWITCHBOARD_ADMIN", value_name = "ADDR", value_delimiter = ',')]
    admin: Vec<SocketAddr>,
    /// The namespace of the replicas, whose admin ports the API server forwards; the default is the context's
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "admin")]
    namespace: Option<String>,
    /// The labels of the replicas' pods
    #[arg(long, value_name = "LABELS", conflicts_with = "admin")]
    selector: Option<String>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "CONTEXT", conflicts_with = "admin")]
    context: Option<String>,
    /// Where the page listens, on loopback; port 0 is any free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Open the page in the browser, by xdg-open
    #[arg(long)]
    open: bool,
}

/// Serves the page until SIGINT or SIGTERM.
pub(crate) fn desk(options: Desk) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(serve(options))
}

async fn serve(options: Desk) -> anyhow::Result<ExitCode> {
    let (mut interrupted, mut ended) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let source = match options.admin.is_empty() {
        false => Source::Addresses(options.admin),
        true => Source::Cluster(PodSearch {
            kubeconfig: None,
            context: options.context,
            namespace: options.namespace,
            selector: options.selector.unwrap_or_default(),
            port: None,
        }),
    };
    let desk = desk::Desk::start(options.listen, source)?;
    // The address is the output of the program. A reader that is gone is no reason to end.
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", desk.url)
        .and_then(|()| stdout.flush())
        .unwrap_or_default();
    to_stderr(
        "The address has a secret: with it, these replicas' tunnels can be seen and ended. Ctrl-C ends the page.",
    );
    let opening = options.open.then(|| Opening::of(&desk.url));
    if let Some(Err(error)) = &opening {
        to_stderr(format_args!(
            "switchboard: cannot open a browser, open the address yourself: {error}"
        ));
    }
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = ended.recv() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// For `--help`.
pub(crate) const DESK_EXITS: &str = "\
Exit status: 0 ended by a signal, 1 the page cannot be served, 2 usage";

//! The arguments of `desk`, and its end by a signal.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use switchboard::base::values::address;
use switchboard::operator::desk::{self, BrowserLaunch};

use super::replica_flags::{ReplicaFlags, run};
use crate::cli::output::{print, to_stderr};
use crate::cli::start::stopped;

/// The arguments of `desk`.
#[derive(Args)]
pub(crate) struct Desk {
    /// Serve the page at this loopback address; port 0 is any free port
    #[arg(long, value_name = "ADDR", value_parser = address, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Open the page in the browser with xdg-open
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    replicas: ReplicaFlags,
}

/// Serves the page until SIGINT or SIGTERM.
pub(crate) fn desk(options: Desk) -> anyhow::Result<ExitCode> {
    run(serve(options))
}

async fn serve(options: Desk) -> anyhow::Result<ExitCode> {
    let stopped = stopped()?;
    let desk = desk::Desk::start(options.listen, options.replicas.replicas()?)?;
    // The address is the output of the program.
    print(format!("{}\n", desk.url))?;
    to_stderr(
        "the address has a secret, with which these replicas' tunnels can be seen and ended; Ctrl-C ends the page",
    );
    let opening = options.open.then(|| BrowserLaunch::new(&desk.url));
    if let Some(Err(error)) = &opening {
        to_stderr(format_args!(
            "switchboard: cannot open a browser, open the address yourself: {error}"
        ));
    }
    stopped.await;
    Ok(ExitCode::SUCCESS)
}

/// For `--help`.
pub(crate) const DESK_EXITS: &str = "\
Exit status: 0 ended by a signal, 1 the page cannot be served, 2 usage";

//! The life of a ProxyCommand: from ssh's bytes to the proxy and back.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use tokio::runtime::{Builder, Runtime};

use self::stdio::Stdio;
use super::options::Options;
use super::stderr;
use crate::base::platform::start_runtime;
use crate::base::text::chain;
use crate::uplink::error::ClientError;

pub(crate) mod attempt;
pub(crate) mod end_notice;
pub(crate) mod in_band;
mod relay;
mod retry_after;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod signals;
pub(crate) mod stdio;

/// Runs the tunnel between the process's own stdin and stdout. A failure is reported in band if ssh reads stdout and
/// has read nothing yet; otherwise, and with [`Options::verbose`], in one line on stderr.
///
/// The exit code is 0 after a graceful close, 2 after an error of usage, and otherwise 1. A read of stdin may still be
/// pending on a thread that cannot be cancelled, so the caller must return from `main` or exit at once. After a SIGHUP
/// the tunnel has 1 s to close, and a failure is not reported: ssh has exited. The process's stdout is `/dev/null` from
/// here on: the tunnel owns the real one.
pub fn command(options: &Options) -> ExitCode {
    let stdio = match stdio::take_stdout() {
        Ok(stdout) => Stdio {
            stdin: stdio::Input::default(),
            stdout,
            interactive: io::stdin().is_terminal(),
            ends_with_target: false,
            is_abandoned: None,
        },
        Err(error) => return report(options, &relay::unwritable(error)),
    };
    let mut stdio = in_band::wrap(stdio);
    stdio.is_abandoned = Some(|stdout| stdout.stream.is_abandoned());
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return report(options, &error),
    };
    let streams = &mut stdio;
    let run = move |exit| async move {
        match Box::pin(run::run(options, streams, exit, &mut run::ProxyAccess::default())).await {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) if in_band::disconnect_ssh(streams, &error, &options.target).await && !options.verbose => {
                Ok(ExitCode::from(error.exit_code()))
            }
            Err(error) => Err(error),
        }
    };
    let ended = runtime.block_on(signals::run_with_signals(run));
    // Dropping the runtime would wait for a read of stdin that may never return.
    runtime.shutdown_background();
    match ended {
        Some(Ok(code)) => code,
        // `stdio` still holds stdout open: ssh exits when stdout ends, and the report would come too late.
        Some(Err(error)) => report(options, &error),
        None => ExitCode::FAILURE,
    }
}

/// Returns the event loop, which runs on the main thread alone.
pub(in crate::client) fn runtime() -> Result<Runtime, ClientError> {
    let built = start_runtime(&mut Builder::new_current_thread(), DESCRIPTORS);
    built.map_err(|error| ClientError::Never(error.into()))
}

/// Reports a failure on stderr, and returns the exit status.
pub(in crate::client) fn report(options: &Options, error: &ClientError) -> ExitCode {
    stderr::last_line(&sentence(options, error));
    ExitCode::from(error.exit_code())
}

/// Returns a failure with its target: with an ssh_config(5) alias the user does not see the value of `%h`.
pub(in crate::client) fn sentence(options: &Options, error: &ClientError) -> String {
    let (line, target) = (chain(error), options.target.as_str());
    // An invalid target is not printed: a password with a space splits into arguments, and this may be one.
    match line.contains(target) || matches!(error, ClientError::Target(_)) {
        true => line,
        false => format!("{target}: {line}"),
    }
}

/// A connection to the proxy, a file or a socket of the resolver, and the pipes of stdin and stdout.
const DESCRIPTORS: usize = 4;

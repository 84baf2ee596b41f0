//! `check`: reads a configuration as `serve` or `connect` would, and prints its faults, or the schema.

use std::env;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{TryRecvError, channel};

use clap::Args;
use clap::error::ErrorKind;
use switchboard::base::follow::{READ_TIMEOUT, ReadFailure};
use switchboard::daemon::logging::Format;
use switchboard::daemon::threads::run_within;
use switchboard::proxy::config::{Config, LoadedConfig, Overrides, Purpose, Report};

use crate::cli::client_file;
use crate::cli::output::{USAGE, print, to_stderr};

/// The arguments of `check`.
#[derive(Args)]
pub(crate) struct Check {
    /// The file, or `-` for standard input. Without one: --config, or else SWITCHBOARD_CONFIG
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// The file, as `serve` takes it
    // Without `env`: a variable of the pod would contradict a FILE.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    /// Format of the report: lines on stderr, or a JSON object on stdout
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Check the file of the client instead, by default ~/.config/switchboard/config.yaml, and the files that it names
    #[arg(long, conflicts_with_all = ["config", "format", "schema"])]
    client: bool,
    /// Print the format of the file as JSON Schema instead, for editors and for the schema of the Helm chart
    #[arg(long)]
    schema: bool,
}

/// Prints what is wrong with the file, or the schema.
pub(crate) fn check(options: Check) -> anyhow::Result<ExitCode> {
    if options.schema {
        print(format!("{:#}\n", Config::schema()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.client {
        return client_file::check(options.file);
    }
    let by_environment = || env::var_os("SWITCHBOARD_CONFIG").filter(|file| !file.is_empty());
    let file = options.file.or(options.config);
    let Some(file) = file.or_else(|| by_environment().map(PathBuf::from)) else {
        let missing = "no file to check: give FILE, --config FILE or SWITCHBOARD_CONFIG";
        return Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, missing).into());
    };
    let is_stdin = file == Path::new("-");
    let loaded = load_to_check(&file, options.overrides)?;
    let is_ok = loaded.is_ok();
    let report: Report = loaded.map_or_else(|faults| faults, |loaded| loaded.report);
    match options.format {
        Format::Json => print(format!("{:#}\n", report.json()))?,
        Format::Text => {
            report.lines().for_each(to_stderr);
            if is_ok {
                let name = if is_stdin { STDIN.into() } else { file.to_string_lossy() };
                print(format!("{name}: ok\n"))?;
            }
        }
    }
    Ok(if is_ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(USAGE)
    })
}

/// Reads a configuration and the files that it names, with the deadline of `serve`. Piped input has none.
fn load_to_check(file: &Path, overrides: Overrides) -> anyhow::Result<Result<LoadedConfig, Report>> {
    let (mut piped, is_stdin) = (Vec::new(), file == Path::new("-"));
    if is_stdin {
        // A byte more than is accepted, which is an error below.
        let read = std::io::stdin().lock().take(MAX_INPUT).read_to_end(&mut piped);
        if let Err(error) = read {
            return Ok(Err(Report::unreadable(STDIN, format!("cannot be read: {error}"))));
        }
    }
    let (sender, loaded) = channel();
    let path = file.to_owned();
    run_within(READ_TIMEOUT, move || {
        let loaded = match is_stdin {
            true => LoadedConfig::from_reader(STDIN, &*piped, &overrides, Purpose::Check),
            false => LoadedConfig::from_file(Some(&path), &overrides, Purpose::Check),
        };
        // An error: the deadline has passed, and the process ends.
        sender.send(loaded).unwrap_or_default();
    });
    match loaded.try_recv() {
        Ok(loaded) => Ok(loaded),
        Err(TryRecvError::Empty) => {
            let name = if is_stdin { STDIN.into() } else { file.to_string_lossy() };
            Ok(Err(Report::unreadable(&name, format!("was {}", ReadFailure::Late))))
        }
        Err(TryRecvError::Disconnected) => anyhow::bail!("cannot start a thread"),
    }
}

/// For `--help`.
pub(crate) const CHECK_EXITS: &str = "\
Exit status: 0 `serve` accepts the configuration, perhaps with warnings and notes, 2 usage, or the file has \
errors or cannot be read";
const STDIN: &str = "<stdin>";
/// Bytes read of stdin: one more than a configuration may have.
const MAX_INPUT: u64 = (1 << 20) + 1;

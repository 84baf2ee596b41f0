//! `check` of the client's file: `check --client` in the build with the proxy, `check` in a build without it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use switchboard::client::configuration::{self, Configuration};
use switchboard::client::proxy_settings::variable;

use crate::cli::output::{print, to_stderr};

/// Prints what is wrong with the client's file, and with the files that it names.
pub(crate) fn check(file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let file = file
        .or_else(|| variable("SWITCHBOARD_CLIENT_CONFIG").map(PathBuf::from))
        .or_else(configuration::default_path);
    let Some(file) = file else {
        let missing = "no file to check: give FILE or SWITCHBOARD_CLIENT_CONFIG, as there is no home folder";
        return Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, missing).into());
    };
    let report = Configuration::check(&file)?;
    report.lines().for_each(to_stderr);
    print(format!("{}: ok\n", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

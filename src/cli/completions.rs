//! `completions` and `manual`: files for shells and man(1), generated from the command line.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use super::output::print;

/// The arguments of `completions`.
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// The arguments of `manual`.
#[derive(Args)]
pub(crate) struct Manual {
    /// The folder, which is made if it is missing
    folder: PathBuf,
}

/// Prints the completions of a shell.
pub(crate) fn completions(options: &Completions, mut command: Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, NAME, &mut script);
    print(script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a manual page for the program, and one for each subcommand.
pub(crate) fn manual(options: &Manual, command: Command) -> anyhow::Result<ExitCode> {
    let folder = &options.folder;
    let cannot = || format!("cannot write into {}", folder.display());
    fs::create_dir_all(folder).with_context(cannot)?;
    clap_mangen::generate_to(command.name(NAME), folder).with_context(cannot)?;
    Ok(ExitCode::SUCCESS)
}

const NAME: &str = "switchboard";

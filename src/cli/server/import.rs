//! `import`: translates the files of another gateway.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use switchboard::operator::import::{self, Extent, Frp, Input, Options};
use switchboard::proxy::config::Report;

use crate::cli::output::{USAGE, print, to_stderr};

/// The arguments of `import`.
#[derive(Args)]
pub(crate) struct Import {
    #[command(subcommand)]
    source: Source,
}

#[derive(Subcommand)]
enum Source {
    /// Istio's EnvoyFilters whose routes terminate CONNECT, such as those of `kubectl get envoyfilter -A -o yaml`
    Envoyfilter {
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        options: Options,
    },
    /// Proxies of frpc with type tcpmux, in TOML, YAML or JSON
    Frpc {
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        frp: Frp,
    },
}

#[derive(Args)]
struct Files {
    /// The files; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

impl Files {
    /// Reads all files.
    fn read(&self) -> Result<Vec<Input>, Report> {
        let read = |file: &PathBuf| {
            let unreadable = |error| Report::unreadable(&file.to_string_lossy(), format!("cannot be read: {error}"));
            Input::read(file).map_err(unreadable)
        };
        self.files.iter().map(read).collect()
    }
}

/// Prints the translation on stdout, and on stderr what has none.
pub(crate) fn import(arguments: Import) -> anyhow::Result<ExitCode> {
    let imported = match arguments.source {
        Source::Envoyfilter { files, options } => import::envoyfilter(&files.read()?, &options),
        Source::Frpc { files, options, frp } => import::frpc(&files.read()?, &options, &frp),
    };
    imported.diagnostics.iter().for_each(to_stderr);
    print(imported.text)?;
    Ok(match imported.extent {
        Extent::Whole => ExitCode::SUCCESS,
        Extent::Part => ExitCode::FAILURE,
        Extent::Unreadable => ExitCode::from(USAGE),
    })
}

/// For `--help`.
pub(crate) const IMPORT_EXITS: &str = "\
Nothing is changed: read the printed lines, then run them or add them to the configuration.

Exit status: 0 all was translated, 1 something was left out, which stderr names by FILE:LINE:COLUMN, 2 usage, or a file \
that cannot be read";

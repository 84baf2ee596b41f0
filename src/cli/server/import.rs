//! `import`: prints what the files of another gateway become.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum};
use switchboard::operator::import::{self, Extent, Frp, Imported, Input, Options};

use crate::cli::server::{USAGE, to_stderr};

/// The arguments of `import`.
#[derive(Args)]
pub(crate) struct Import {
    #[command(subcommand)]
    source: Source,
}

#[derive(Subcommand)]
enum Source {
    /// EnvoyFilters of Istio whose routes end a CONNECT, such as those of `kubectl get envoyfilter -A -o yaml`
    Envoyfilter {
        #[command(flatten)]
        common: Common,
    },
    /// Proxies of frpc of the type tcpmux, in TOML, YAML or JSON
    Frpc {
        #[command(flatten)]
        common: Common,
        /// A port that clients ask for, which frp does not look at (repeatable; 22 without one)
        #[arg(long = "port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
        ports: Vec<u16>,
        /// The subDomainHost of frps, for proxies with a subdomain
        #[arg(long, value_name = "DOMAIN", value_parser = NonEmptyStringValueParser::new())]
        subdomain_host: Option<String>,
        /// The domain behind SERVICE.NAMESPACE in names of Services, for kubectl lines (repeatable)
        #[arg(long = "public-suffix", value_name = "DOMAIN", value_parser = NonEmptyStringValueParser::new())]
        public_suffixes: Vec<String>,
        /// The address of frpc's host, in place of its own loopback, for static targets
        #[arg(long, value_name = "IP")]
        frpc_host: Option<IpAddr>,
    },
}

/// What every source takes.
#[derive(Args)]
struct Common {
    /// The files; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// What is printed: lines of kubectl, or the section `allowlist` of a configuration file
    #[arg(long, value_name = "FORMAT", default_value = "kubectl")]
    format: Format,
    /// `allowlist.kubernetes.cluster_domain` of the proxy
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// `allowlist.kubernetes.alias_port` of the proxy
    #[arg(long, value_name = "PORT", default_value = "22", value_parser = clap::value_parser!(u16).range(1..))]
    alias_port: u16,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Kubectl,
    Static,
}

/// Prints the translation on stdout, and on stderr what has none.
pub(crate) fn import(options: Import) -> anyhow::Result<ExitCode> {
    let (common, frp, translate): (_, _, fn(&[Input], &Options) -> Imported) = match options.source {
        Source::Envoyfilter { common } => (common, Frp::default(), import::envoyfilter),
        Source::Frpc {
            common,
            ports,
            subdomain_host,
            public_suffixes,
            frpc_host,
        } => {
            let frp = Frp {
                ports,
                subdomain_host: subdomain_host.as_deref().map(domain),
                public_suffixes: public_suffixes.iter().map(|suffix| domain(suffix)).collect(),
                host: frpc_host,
            };
            (common, frp, import::frpc)
        }
    };
    let mut inputs = Vec::new();
    for file in &common.files {
        match Input::read(file) {
            Ok(input) => inputs.push(input),
            Err(error) => {
                let name = file.to_string_lossy();
                to_stderr(format_args!("{}: error: cannot be read: {error}", name.escape_debug()));
                return Ok(ExitCode::from(USAGE));
            }
        }
    }
    let options = Options {
        format: match common.format {
            Format::Kubectl => import::Format::Kubectl,
            Format::Static => import::Format::Static,
        },
        cluster_domain: domain(&common.cluster_domain),
        alias_port: common.alias_port,
        frp,
    };
    let imported = translate(&inputs, &options);
    imported.remarks.iter().for_each(to_stderr);
    if let Err(error) = std::io::stdout().lock().write_all(imported.text.as_bytes())
        && error.kind() != ErrorKind::BrokenPipe
    {
        return Err(error.into());
    }
    Ok(match imported.extent {
        Extent::Whole => ExitCode::SUCCESS,
        Extent::Part => ExitCode::FAILURE,
        Extent::Unreadable => ExitCode::from(USAGE),
    })
}

/// A domain as names are compared: lower case, without dots at its ends.
fn domain(text: &str) -> Box<str> {
    text.trim_matches('.').to_ascii_lowercase().into()
}

pub(crate) const IMPORT_EXITS: &str = "\
Nothing is changed: read the printed lines, then run them or add them to the configuration.

Exit status: 0 all was translated, 1 something was left out, which stderr names by FILE:LINE:COLUMN, 2 usage, or a file \
that cannot be read";

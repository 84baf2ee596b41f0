//! The arguments of `import`: settings that the files do not have.

use std::net::IpAddr;

use clap::{Args, ValueEnum};

use crate::base::values;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// `kubectl label` and `kubectl annotate` for each Service.
    #[value(help = None::<&str>)]
    Kubectl,
    /// The section `allowlist.static` of a configuration file.
    #[value(help = None::<&str>)]
    Static,
}

/// The arguments for all files: the format of the output, and how the proxy is configured.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The output: kubectl commands, or the section `allowlist` of a configuration file
    #[arg(long, value_name = "FORMAT", default_value = "kubectl")]
    pub format: Format,
    /// `allowlist.kubernetes.cluster_domain` of the proxy
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", value_parser = values::domain)]
    pub cluster_domain: Box<str>,
    /// `allowlist.kubernetes.alias_port` of the proxy
    #[arg(long, value_name = "PORT", default_value = "22", value_parser = values::port)]
    pub alias_port: u16,
}

/// The arguments for frpc's files.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Frp {
    /// A port that clients request, which frp ignores (repeatable; 22 without one)
    #[arg(long = "port", value_name = "PORT", value_parser = values::port)]
    pub ports: Vec<u16>,
    /// The subDomainHost of frps, for proxies with a subdomain
    #[arg(long, value_name = "DOMAIN", value_parser = values::domain)]
    pub subdomain_host: Option<Box<str>>,
    /// The domain after SERVICE.NAMESPACE in names of Services, for kubectl commands (repeatable)
    #[arg(long = "public-suffix", value_name = "DOMAIN", value_parser = values::domain)]
    pub public_suffixes: Vec<Box<str>>,
    /// The address of frpc's host instead of loopback, for static targets
    #[arg(long = "frpc-host", value_name = "IP")]
    pub host: Option<IpAddr>,
}

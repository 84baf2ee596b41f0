//! `import`: reads the configuration of a gateway that switchboard replaces, and prints the same names as labels and
//! annotations of Services, or as static targets.
//!
//! What is printed is made of values that were parsed, never of a text of the file: names that are no names are refused, so
//! no printed line can run anything else than `kubectl`. What may restrict and has no counterpart keeps its name off the
//! list: the result never leads further than the file did.

use std::net::IpAddr;

pub use self::envoyfilter::envoyfilter;
pub use self::frpc::frpc;
pub use self::input::Input;
use self::remarks::Remarks;

mod cluster_names;
mod document;
mod entry;
pub mod envoyfilter;
pub mod frpc;
mod input;
mod kubectl;
mod remarks;
mod static_list;

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `kubectl label` and `kubectl annotate` for each Service.
    Kubectl,
    /// The section `allowlist.static` of a configuration file.
    Static,
}

/// What the files do not say: how the proxy is configured, and what the imported names mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is printed.
    pub format: Format,
    /// `allowlist.kubernetes.cluster_domain` of the proxy.
    pub cluster_domain: Box<str>,
    /// `allowlist.kubernetes.alias_port` of the proxy.
    pub alias_port: u16,
    /// What only frp needs.
    pub frp: Frp,
}

/// What an frpc file does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frp {
    /// The ports that clients ask for: frp does not look at them. Without one: 22.
    pub ports: Vec<u16>,
    /// `subDomainHost` of frps.
    pub subdomain_host: Option<Box<str>>,
    /// The domains behind `SERVICE.NAMESPACE` in the names of Services.
    pub public_suffixes: Vec<Box<str>>,
    /// The address of the host of frpc, in place of its own loopback.
    pub host: Option<IpAddr>,
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What is printed on stdout.
    pub text: String,
    /// What is printed on stderr: `FILE:LINE:COLUMN: severity: message`.
    pub remarks: Vec<String>,
    /// How much was translated.
    pub extent: Extent,
}

/// How much of the files was translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Not all: the remarks name what is left out.
    Part,
    /// A file could not be read, or is not of its format.
    Unreadable,
}

impl Imported {
    fn new(text: String, remarks: Remarks) -> Self {
        let extent = remarks.extent();
        Self {
            text,
            remarks: remarks.into_lines(),
            extent,
        }
    }
}

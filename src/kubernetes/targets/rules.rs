//! The operator's rules for all Services, which turn objects of the cluster into targets.

use super::guards::Guards;
use crate::kubernetes::objects::annotations::SwitchedOn;
use crate::kubernetes::options::Options;
use crate::tunnel::limits::Limits;

/// The rules. They may change while the cluster is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The port that leads to every Service, beside its own.
    pub(crate) alias_port: u16,
    /// The addresses that may be dialled.
    pub(crate) guards: Guards,
    /// The limits of tunnels and targets.
    pub(crate) limits: Limits,
    /// Whether only Services of known Namespaces are eligible, because there is a selector of Namespaces.
    pub(crate) selects_namespaces: bool,
    /// Whether a port asks clients for certificates.
    pub(crate) knows_clients: bool,
    /// Whether users are proved.
    pub(crate) knows_users: bool,
    /// What Services may ask for only where the operator has switched it on.
    pub(crate) switched_on: SwitchedOn,
}

impl Rules {
    /// The rules of these settings.
    pub(crate) fn new(options: &Options, limits: &Limits) -> Self {
        Self {
            alias_port: options.alias_port,
            guards: Guards::new(&options.allowed_cidrs),
            limits: *limits,
            selects_namespaces: options.namespace_selector.is_some(),
            knows_clients: options.knows_clients,
            knows_users: options.knows_users,
            switched_on: SwitchedOn {
                wake: options.wakes,
                report_activity: options.reports_activity,
            },
        }
    }
}

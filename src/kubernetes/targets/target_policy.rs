//! The operator's rules for turning Services into targets.

use super::address_filter::AddressFilter;
use crate::kubernetes::options::Options;
use crate::tunnel::limits::Limits;

/// The rules. They may change at runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetPolicy {
    /// The settings of the cluster.
    pub(crate) options: Options,
    /// The addresses that may be dialled.
    pub(crate) guards: AddressFilter,
    /// The limits of tunnels and targets.
    pub(crate) limits: Limits,
}

impl TargetPolicy {
    /// Creates the rules of these settings.
    pub(crate) fn new(options: &Options, limits: &Limits) -> Self {
        Self {
            options: options.clone(),
            guards: AddressFilter::new(&options.allowed_cidrs),
            limits: *limits,
        }
    }
}

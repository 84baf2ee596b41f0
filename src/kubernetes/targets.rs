//! From the objects of the cluster to the targets of the allowlist.

pub(crate) mod controller;
mod endpoints;
mod guards;
mod join;
mod mass_removal_guard;
mod reconciler;
mod remarks;
mod snapshot;
mod source;
mod target_policy;

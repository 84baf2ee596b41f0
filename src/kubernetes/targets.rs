//! Turns the objects of the cluster into the targets of the allowlist.

mod address_filter;
pub(crate) mod controller;
mod endpoints;
mod join;
mod mass_removal_hold;
mod notices;
mod reconciler;
mod remarks;
mod snapshot;
mod source;

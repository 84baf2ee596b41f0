//! From the objects of the cluster to the targets of the allowlist.

pub(crate) mod controller;
mod endpoints;
mod guards;
mod join;
mod reconciler;
mod remarks;
mod rules;
mod shrink_guard;
mod snapshot;
mod source;

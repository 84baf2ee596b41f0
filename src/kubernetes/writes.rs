//! Writes to the cluster, each only where it is switched on.

pub(crate) mod activity_reports;
pub(crate) mod event_recorder;
pub(crate) mod workload_starter;

//! The writes to the cluster: each is off unless its option is set.

pub(crate) mod activity_reports;
pub(crate) mod event_recorder;
pub(crate) mod workload_starter;

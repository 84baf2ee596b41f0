//! Requests to the API server, watches, and the way through its outages.

pub(crate) mod failure;
pub(crate) mod follower;
pub(crate) mod list_watch;
pub(crate) mod outage;
pub(crate) mod reconnecting;
pub(crate) mod requests;
pub(crate) mod thread;

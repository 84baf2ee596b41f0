//! Requests to the API server, watches, and its outages.

pub(crate) mod api_client;
mod connection;
pub(crate) mod failure;
pub(crate) mod json_stream;
pub(crate) mod list_watch;
pub(crate) mod outage;
pub(crate) mod requests;
pub(crate) mod thread;
pub(crate) mod watcher;

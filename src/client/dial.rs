//! The way to the proxy: addresses, TLS, the request and its answer.

pub(crate) mod deadline;
pub(crate) mod dialing;
pub(crate) mod forward;
pub(crate) mod head;
pub(crate) mod route;
pub(crate) mod tls;
pub(crate) mod transport;
pub(crate) mod url;

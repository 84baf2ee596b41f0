//! The connection to the proxy: addresses, TLS, the request and its answer. Connections to other servers.

pub(crate) mod deadline;
pub(crate) mod dialer;
pub(crate) mod forward;
pub(crate) mod head;
pub(crate) mod io;
pub(crate) mod proxy_connection;
pub(crate) mod server;
mod socks;
pub(crate) mod tls;
pub(crate) mod url;
pub(crate) mod websocket;

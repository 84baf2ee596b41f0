//! The proxy: the life of a connection, and what starts, watches and stops it.

mod admin;
pub mod anchors;
pub mod config;
pub mod connection;
pub mod exchange;
pub mod http;
pub mod metrics;
pub mod open_tunnels;
pub mod record;
pub mod serve;

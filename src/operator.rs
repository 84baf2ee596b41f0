//! The programs of operators: requests to all replicas at once, tables, `desk`, and `import` of other gateways' files.

pub mod desk;
pub mod drain_request;
pub mod import;
pub mod replicas;
pub mod tables;

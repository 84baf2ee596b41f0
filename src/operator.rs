//! The programs of operators: all replicas asked at once, tables, `top`, `desk`, and `import` of other gateways' files.

pub mod desk;
pub mod import;
pub mod replicas;
pub mod tables;
pub mod top;

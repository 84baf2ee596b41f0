//! Users and their permissions, as the cluster knows them.

pub(crate) mod rbac;
pub(crate) mod reviews;
pub(crate) mod tickets;

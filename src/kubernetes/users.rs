//! Users and their permissions, as the cluster knows them.

pub(crate) mod rbac_watch;
pub(crate) mod reviews;
pub(crate) mod secrets;

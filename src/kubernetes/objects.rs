//! The objects of the cluster as they are read, and the annotations of Services.

pub(crate) mod annotations;
pub(crate) mod decode;
pub(crate) mod model;

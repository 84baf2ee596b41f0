//! The files about users, and their public keys in a Secret: of each, the last valid contents are in effect.

pub(super) mod followed_file;
pub mod passwords;
pub mod ssh_authorities;

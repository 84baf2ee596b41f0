//! Values, texts, files, YAML and the system, for every part. It knows neither networks nor tunnels.

pub mod authority;
#[cfg(feature = "anchor")]
pub(crate) mod boxed;
pub(crate) mod file;
#[cfg(feature = "server")]
pub(crate) mod fnv;
#[cfg(feature = "anchor")]
pub mod follow;
pub(crate) mod json;
pub mod platform;
pub(crate) mod random;
pub mod secret;
pub(crate) mod text;
pub mod units;
pub mod values;
pub(crate) mod yaml;

//! The parts of every tunnel, whichever program carries it: dial, limits, relay, drain, outcome and metrics.

pub mod dial;
pub mod direction;
pub mod drain;
pub mod exposition;
pub mod host_key_files;
pub mod http2;
pub mod limits;
pub mod outcome;
pub mod proxy_header;
pub mod relay;
#[cfg(feature = "server")]
pub mod ssh;
#[cfg(feature = "server")]
pub mod stream;
#[cfg(feature = "server")]
pub mod target_metrics;

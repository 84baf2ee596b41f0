//! `import`: reads the configuration of a gateway that switchboard replaces, and prints the same names as labels and
//! annotations of Services, or as static targets.
//!
//! Printed lines consist of parsed values, never of raw text of the file: invalid names are refused, so no printed line can
//! run anything but `kubectl`. A name with an option that may restrict and has no counterpart is not printed. An option
//! of the whole gateway is only reported, as it stays with the gateway.

pub use self::diagnostics::{Extent, ImportResult};
pub use self::envoyfilter::envoyfilter;
pub use self::frpc::frpc;
pub use self::input::Input;
pub use self::options::{Format, Frp, Options};

mod cluster_names;
mod diagnostics;
mod document;
mod entry;
pub mod envoyfilter;
pub mod frpc;
mod input;
mod kubectl;
mod options;
mod static_list;

//! `import`: reads the configuration of a gateway that switchboard replaces, and prints the same names as labels and
//! annotations of Services, or as static targets.
//!
//! Printed lines are made of values that were parsed, never of a text of the file: names that are no names are refused, so
//! no printed line can run anything else than `kubectl`. What may restrict and has no counterpart keeps its name off the
//! list: the result never leads further than the file did.

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

//! The client of the API server: Services become the allowlist, users and their rights are asked for.
//!
//! A `source` is one kind of object in one namespace. For each source a `watcher` lists and watches its objects,
//! which are decoded into the `model`. The `reconciler` takes the events of all sources, joins the objects into
//! targets (`join`), and updates the allowlist, the metrics and the snapshot file. The `controller` runs them on a
//! thread of their own, so that decoding a long list delays no tunnel.
//!
//! A failure of the API server changes nothing: a target stays on the allowlist until the cluster says otherwise.
//!
//! Where the operator has switched it on, the `workload_starter` starts workloads that are asked for, `activity_reports` tells
//! Notebooks that they are used, and the `event_recorder` writes Events about Services.
//!
//! Apart from all this, `reviews` asks which user a token proves and what a user may do, and `rbac` tells when the
//! answers may have changed; `tickets` follows the tickets that are made in the
//! cluster, and `replicas` the pods of the proxy's own Service. `pods` is for the programs of operators: it finds the pods of a proxy, and forwards a port of each.

mod api;
pub(crate) mod files;
pub(crate) mod objects;
mod options;
mod pods;
mod replicas;
mod targets;
mod users;
mod writes;

pub(crate) use self::api::requests::{encoded, report_cluster};
pub use self::api::thread::BackgroundRuntime;
pub use self::api::watcher::WatchContext;
pub use self::options::Options;
pub use self::pods::PodSelector;
pub(crate) use self::pods::{Pod, Pods, PortForward};
pub use self::replicas::watch_replicas;
pub use self::targets::controller::Controller;
pub use self::users::rbac::watch_rbac;
pub use self::users::reviews::ApiReviewer;
pub use self::users::tickets::watch_tickets;

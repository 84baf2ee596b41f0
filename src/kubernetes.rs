//! The client of the API server: Services and labelled pods become the allowlist, users and their rights are asked for.
//!
//! A `source` is one kind of object, in one namespace or in all. For each source a `watcher` lists and watches the
//! objects, and decodes them into the `model`. The `reconciler` takes the events of all sources, joins the objects into
//! targets (`join`), and updates the allowlist, the metrics and the snapshot file. The `controller` runs the watchers
//! and the reconciler on a thread of their own, so that decoding a long list delays no tunnel.
//!
//! A failure of the API server changes nothing: a target stays on the allowlist until the cluster says otherwise.
//!
//! Three writers are off by default: `workload_starter` starts workloads for requests, `activity_reports` notes in
//! them when they were used, and `event_recorder` writes Events about Services.
//!
//! `reviews` requests from the API server the user of a token and the decisions about a user. `rbac` reports that
//! decisions may have changed. `secrets` watches the Secrets of tickets and keys, and `replicas` the pods of the proxy's own
//! Service. `pods` is for the programs of operators: it finds the pods of a proxy, and forwards a port of each.

mod api;
pub(crate) mod files;
pub mod metrics;
pub(crate) mod objects;
mod options;
mod proxy_pods;
mod replicas;
mod targets;
mod users;
mod writes;

pub(crate) use self::api::requests::{encoded, report_cluster};
pub use self::api::thread::BackgroundRuntime;
pub use self::api::watcher::WatchContext;
pub use self::options::{Options, PodOptions, WorkloadKind};
pub use self::proxy_pods::PodSelector;
pub(crate) use self::proxy_pods::{Pod, Pods, PortForward};
pub use self::replicas::watch_replicas;
pub use self::targets::controller::Controller;
pub use self::users::rbac_watch::watch_rbac;
pub use self::users::reviews::ApiReviewer;
pub use self::users::secrets::{SecretTable, watch_secret};

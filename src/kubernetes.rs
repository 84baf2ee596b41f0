//! Keeps the allowlist equal to the Services of a Kubernetes cluster.
//!
//! A [`source`] is one kind of object in one namespace. For each source a [`reflector`] lists and watches its objects,
//! and decodes them into the [`model`]. The [`reconciler`] takes the events of all reflectors, joins the objects into
//! targets ([`join`]), and updates the allowlist, the metrics and the snapshot file. The [`controller`] runs them on a
//! thread of their own, so that decoding a long list delays no tunnel.
//!
//! A failure of the API server changes nothing: a target stays on the allowlist until the cluster says otherwise.
//!
//! Where the operator has switched it on, the [`waker`] starts workloads that are asked for, [`activity_reports`] tells
//! Notebooks that they are used, and the [`recorder`] writes Events about Services.
//!
//! Apart from all this, [`reviews`] asks which user a token proves and what a user may do, and [`rbac`] tells when the
//! answers may have changed; [`tickets`] follows the tickets that are made in the
//! cluster. [`pods`] is for the programs of operators: it finds the pods of a proxy, and forwards a port of each.

mod activity_reports;
mod annotations;
mod api;
mod controller;
mod decode;
mod endpoints;
mod failure;
pub(crate) mod files;
mod follower;
mod guards;
mod join;
pub(crate) mod label_selector;
mod link;
mod model;
mod options;
mod outage;
mod pods;
mod rbac;
mod reconciler;
mod recorder;
mod reflector;
mod reviews;
mod rules;
mod shrink;
mod snapshot;
mod source;
mod thread;
mod tickets;
mod waker;
mod wire;

pub(crate) use self::api::{encoded, report_cluster};
pub use self::controller::Controller;
pub use self::follower::Origin;
pub use self::options::Options;
pub use self::pods::PodSearch;
pub(crate) use self::pods::{Forward, Pod, Pods};
pub use self::rbac::RbacWatch;
pub use self::reviews::ApiReviewer;
pub use self::tickets::TicketWatch;

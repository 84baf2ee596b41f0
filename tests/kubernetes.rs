//! The real binary follows a Kubernetes API server through everything that can go wrong with one.
//!
//! Each test has a network of its own (see `kubernetes/lab.rs`), and in it a proxy, pods and a fake API server that
//! does what the scenario says. The scenarios of `kubernetes/shapes.rs` and `kubernetes/changes.rs` need nobody to fail,
//! and run against a real API server too: `make test-kubernetes KUBECONFIG=…`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of a test fails the test"
)]

#[path = "kubernetes/afar.rs"]
mod afar;
#[path = "kubernetes/api.rs"]
mod api;
#[path = "kubernetes/changes.rs"]
mod changes;
#[path = "kubernetes/cluster.rs"]
mod cluster;
#[path = "kubernetes/guards.rs"]
mod guards;
#[path = "kubernetes/history.rs"]
mod history;
#[path = "kubernetes/lab.rs"]
mod lab;
#[path = "kubernetes/live.rs"]
mod live;
#[path = "kubernetes/objects.rs"]
mod objects;
#[path = "kubernetes/outages.rs"]
mod outages;
#[path = "kubernetes/pods.rs"]
mod pods;
#[path = "kubernetes/proxy.rs"]
mod proxy;
#[path = "kubernetes/shapes.rs"]
mod shapes;
#[path = "kubernetes/stage.rs"]
mod stage;
#[path = "kubernetes/told.rs"]
mod told;
#[path = "kubernetes/trust.rs"]
mod trust;
#[path = "kubernetes/uplink.rs"]
mod uplink;
#[path = "kubernetes/vanished.rs"]
mod vanished;

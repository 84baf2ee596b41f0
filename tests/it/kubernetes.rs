//! The real binary follows a Kubernetes API server through everything that can go wrong with one.
//!
//! Each test has a network of its own (see `kubernetes/lab.rs`), and in it a proxy, pods and a fake API server that
//! does what the scenario says. The scenarios of `kubernetes/shapes.rs`, `kubernetes/changes.rs`,
//! `kubernetes/kinds.rs`, `kubernetes/labelled_pods.rs`, `kubernetes/permissions.rs` and `kubernetes/rights.rs` need no failure, and run against a real API server too: `make test-kubernetes KUBECONFIG=…`.
//! The one of `kubernetes/restarts.rs` kills a real one: `make test-restarts KUBE=…`.
mod access;
mod api;
mod changes;
mod cluster;
mod dial_in;
mod forbidden;
mod guards;
mod history;
mod host_keys;
mod import;
mod kinds;
pub(crate) mod lab;
mod labelled_pods;
mod live;
mod nodes;
mod objects;
mod outages;
mod permissions;
mod pods;
mod proxy;
mod rbac;
mod reloads;
mod restarts;
mod reviews;
mod rights;
mod send_proxy_protocol;
mod shapes;
#[cfg(feature = "jump")]
mod ssh_keys;
mod stage;
mod tickets;
mod trust;
mod uplink;
mod users;
mod vanished;
mod why;
mod writes;

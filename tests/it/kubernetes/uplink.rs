//! The way from a test's own network to the API server that `SWITCHBOARD_TEST_KUBECONFIG` names.
//!
//! A socket in the file system is reached from every network namespace: outside it leads to the server, and inside an
//! address of the test's network leads to it. What passes is TLS from end to end.

use std::env;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use hyper::Uri;
use kube::config::Kubeconfig;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;

use super::lab::API;

/// The kubeconfig of a real cluster, if the tests are to run against one.
pub(crate) fn kubeconfig() -> Option<Kubeconfig> {
    let path = env::var_os(VARIABLE)?;
    Some(Kubeconfig::read_from(&path).unwrap_or_else(|error| panic!("{VARIABLE}={}: {error}", path.display())))
}

/// The server that the current context names.
pub(crate) fn server(kubeconfig: &Kubeconfig) -> Uri {
    let context = kubeconfig
        .current_context
        .as_ref()
        .unwrap_or_else(|| panic!("{VARIABLE}: no current context"));
    let context = kubeconfig.contexts.iter().find(|entry| entry.name == *context);
    let cluster = &context.and_then(|entry| entry.context.as_ref()).unwrap().cluster;
    let cluster = kubeconfig.clusters.iter().find(|entry| entry.name == *cluster);
    let server = cluster
        .and_then(|entry| entry.cluster.as_ref()?.server.as_ref())
        .unwrap();
    server.parse().unwrap()
}

/// Outside: from the socket to the server, for as long as this process runs.
pub(crate) fn outside(directory: &Path) {
    let Some(kubeconfig) = kubeconfig() else { return };
    let server = server(&kubeconfig);
    let port = server
        .port_u16()
        .unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
    let address = (server.host().unwrap().trim_matches(['[', ']']).to_owned(), port);
    let listener = UnixListener::bind(socket(directory)).unwrap();
    thread::spawn(move || {
        for inner in listener.incoming() {
            let address = address.clone();
            thread::spawn(move || {
                let outer = TcpStream::connect(&address).unwrap_or_else(|error| panic!("{address:?}: {error}"));
                both_ways(&inner.unwrap(), &outer);
            });
        }
    });
}

/// Inside: from the address of the API server to the socket.
pub(crate) async fn inside(directory: &Path) {
    let listener = TcpListener::bind(API).await.unwrap();
    let socket = socket(directory);
    tokio::spawn(async move {
        loop {
            let (mut inner, _) = listener.accept().await.unwrap();
            let mut outer = tokio::net::UnixStream::connect(&socket).await.unwrap();
            // How a connection ends is for those at its ends.
            tokio::spawn(async move { copy_bidirectional(&mut inner, &mut outer).await.ok() });
        }
    });
}

fn both_ways(inner: &UnixStream, outer: &TcpStream) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, mut to) = (inner, outer);
            io::copy(&mut from, &mut to).ok();
            outer.shutdown(Shutdown::Write).ok();
        });
        let (mut from, mut to) = (outer, inner);
        io::copy(&mut from, &mut to).ok();
        inner.shutdown(Shutdown::Write).ok();
    });
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("api.sock")
}

const VARIABLE: &str = "SWITCHBOARD_TEST_KUBECONFIG";

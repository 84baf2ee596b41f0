//! The way from a test's own network to the API server that `SWITCHBOARD_TEST_KUBECONFIG` names.
//!
//! A socket in the file system is reached from every network namespace: outside it leads to the server, and inside an
//! address of the test's network leads to it. What passes is TLS from end to end. A second socket has the API server ended
//! and started, by the scripts of the directory `SWITCHBOARD_TEST_KUBE`.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use hyper::Uri;
use kube::config::Kubeconfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
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
            thread::spawn(move || match TcpStream::connect(&address) {
                Ok(outer) => both_ways(&inner.unwrap(), &outer),
                // The test has ended it, or its client waits in vain.
                Err(error) => eprintln!("{address:?}: {error}"),
            });
        }
    });
    if let Some(scripts) = env::var_os(SCRIPTS) {
        let listener = UnixListener::bind(orders(directory)).unwrap();
        thread::spawn(move || {
            for order in listener.incoming() {
                obey(&order.unwrap(), Path::new(&scripts));
            }
        });
    }
}

/// Inside: has a script of the folder run outside, with these arguments, and waits for its end.
pub(crate) async fn run_script(directory: &Path, script: &str) {
    let order = tokio::net::UnixStream::connect(orders(directory)).await;
    let mut order = order.unwrap_or_else(|error| panic!("{SCRIPTS}: {error}"));
    order.write_all(format!("{script}\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    order.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, DONE, "{script}");
}

/// Runs the script that the line names, and says how it has ended.
fn obey(mut order: &UnixStream, scripts: &Path) {
    let mut line = String::new();
    BufReader::new(order).read_line(&mut line).unwrap();
    let mut words = line.split_whitespace();
    let done = Command::new(scripts.join(words.next().unwrap()))
        .args(words)
        .envs([("KUBE_DIR", scripts.as_os_str()), ("SIG", "KILL".as_ref())])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    let answer = match done {
        Ok(status) if status.success() => DONE.to_owned(),
        done => format!("{done:?}"),
    };
    order.write_all(answer.as_bytes()).unwrap();
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

fn orders(directory: &Path) -> PathBuf {
    directory.join("orders.sock")
}

const VARIABLE: &str = "SWITCHBOARD_TEST_KUBECONFIG";
const SCRIPTS: &str = "SWITCHBOARD_TEST_KUBE";
const DONE: &str = "done";

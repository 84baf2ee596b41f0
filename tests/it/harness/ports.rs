//! The two ports of a running proxy, whether it is a process or runs in the test.

use std::net::SocketAddr;

use super::page::Page;
use super::peer::Peer;
use super::target::Target;
use super::{CONFIRMATION, eventually, request};

/// Something that serves a public and an admin port.
pub(crate) trait Ports {
    /// The address for clients.
    fn public(&self) -> SocketAddr;

    /// The address of the admin port.
    fn admin(&self) -> SocketAddr;

    /// A client that has sent that, and nothing else.
    fn client(&self, bytes: impl AsRef<[u8]>) -> Peer {
        let mut client = Peer::connect(self.public());
        client.send(bytes);
        client
    }

    /// A client that has its tunnel to that name.
    #[track_caller]
    fn open(&self, name: &str) -> Peer {
        let mut client = self.client(request(name));
        client.expect(CONFIRMATION);
        client
    }

    /// Both ends of a tunnel to that name, which leads to `target`.
    #[track_caller]
    fn tunnel(&self, name: &str, target: &Target) -> (Peer, Peer) {
        (self.open(name), target.accept())
    }

    /// All that a client hears that asks for that name.
    #[track_caller]
    fn answer(&self, name: &str) -> String {
        self.client(request(name)).rest_as_text()
    }

    /// Has it answer so many requests that it has done all else that it could do.
    fn turn(&self) {
        for _ in 0..20 {
            self.answer("nowhere:22");
        }
    }

    /// The answer of the admin port to a request with that method and path.
    fn ask_admin(&self, method: &str, path: &str) -> Response {
        let mut client = Peer::connect(self.admin());
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ));
        Response::parse(&client.rest_as_text())
    }

    /// The same with that Host.
    fn ask_admin_as(&self, method: &str, path: &str, host: &str) -> Response {
        let mut client = Peer::connect(self.admin());
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ));
        Response::parse(&client.rest_as_text())
    }

    /// The same with a body.
    fn tell_admin(&self, method: &str, path: &str, body: &str) -> Response {
        let mut client = Peer::connect(self.admin());
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        Response::parse(&client.rest_as_text())
    }

    /// The page `/metrics`.
    fn scrape(&self) -> Page {
        Page::parse(&self.ask_admin("GET", "/metrics").body)
    }

    /// Waits until a series has that value.
    #[track_caller]
    fn settles(&self, series: &str, value: f64) {
        let what = format!("{series} {value}");
        eventually(&what, || (self.scrape().value(series) == value).then_some(()));
    }

    /// Waits until `/readyz` answers with that status.
    fn becomes(&self, status: u16) {
        let answers = || (self.ask_admin("GET", "/readyz").status == status).then_some(());
        eventually(&format!("readyz {status}"), answers);
    }

    /// Waits until the answer of `/drain` begins with that.
    #[track_caller]
    fn drains_to(&self, progress: &str) {
        let answers = || self.ask_admin("GET", "/drain").body.starts_with(progress);
        eventually(progress, || answers().then_some(()));
    }

    /// Waits until the public port refuses connections.
    fn stops_accepting(&self) {
        eventually("the public port is closed", || Peer::try_connect(self.public()).err());
    }
}

/// A response of the admin port.
#[derive(Debug)]
pub(crate) struct Response {
    /// Its status code.
    pub(crate) status: u16,
    /// Its status line and fields.
    pub(crate) head: String,
    /// Its content.
    pub(crate) body: String,
}

impl Response {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Self {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }
}

/// The status of `/readyz` when the proxy is ready.
pub(crate) const READY: u16 = 200;

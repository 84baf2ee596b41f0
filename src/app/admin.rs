//! The admin port: serves `/metrics`, `/livez`, `/readyz` and `/drain` on a thread of its own, so that it answers under
//! load too.

use std::convert::Infallible;
use std::fmt::Write;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::uri::Authority as HostAndPort;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::readiness::Readiness;
use crate::limits::unfinished::{Membership, Standing, Ticket, Unfinished};
use crate::metrics;
use crate::net::listener;

/// The handlers of the pages.
pub struct Handlers {
    /// The conditions of `/readyz`.
    pub readiness: Readiness,
    /// Writes the page `/metrics`.
    pub scrape: Box<dyn Fn() -> String + Send + Sync>,
    /// The answer of `/drain`.
    pub progress: Box<dyn Fn() -> Progress + Send + Sync>,
    /// Cancelled by a POST to `/drain`.
    pub drain_request: CancellationToken,
}

/// The state of the drain: the answer of `/drain`, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// `serving`, `leaving`, `parting`, `stopped`, `closing` or `ended`: see [`Phase`](crate::drain::Phase).
    pub phase: String,
    /// Tunnels, open or with their dial in progress.
    pub tunnels: u32,
    /// Those of them whose sessions go on by other tunnels: a drain ends them first, and cuts none of them.
    #[serde(default)]
    pub resumable: u32,
    /// Connections of clients.
    pub connections: u32,
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handlers")
            .field("readiness", &self.readiness)
            .finish_non_exhaustive()
    }
}

/// Binds the port and serves it from a new thread until the process ends. Gives the bound address. Needs a runtime.
///
/// # Errors
/// What socket(2), bind(2), listen(2) or the start of a thread say.
pub fn start(address: SocketAddr, handlers: Handlers) -> io::Result<SocketAddr> {
    // Bound before there is a runtime for it: one that is dropped inside another panics.
    let listener = listener::bind(&address.into())?.into_std()?;
    let address = listener.local_addr()?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _entered = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let handlers = Arc::new(handlers);
    let unfinished = Arc::new(Unfinished::new(Some(MOST_CONNECTIONS)));
    let mut number = 0;
    let serve = move |stream, peer: SocketAddr| {
        number += 1;
        let standing = Standing::Welcome;
        let ticket = Ticket { standing, number };
        let (handlers, unfinished) = (Arc::clone(&handlers), Arc::clone(&unfinished));
        tokio::spawn(async move {
            let membership = Membership::join([Some(&unfinished), None], ticket);
            let conversation = timeout(LONGEST_CONNECTION, converse(stream, peer, &handlers));
            tokio::select! {
                // The errors of a peer that leaves or stalls are its own.
                _ = conversation => {}
                () = membership.evicted() => {}
            }
        });
    };
    let accept = async move { listener::accept(listener, pending(), serve, || ()).await };
    thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || runtime.block_on(accept))?;
    Ok(address)
}

async fn converse(stream: TcpStream, peer: SocketAddr, handlers: &Handlers) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LONGEST_HEAD)
        // One page for each connection: a peer that requests hundreds and reads none would hold the thread and its slot.
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(async |request| Ok::<_, Infallible>(answer(&request, peer, handlers))),
        )
        .await
}

fn answer<B>(request: &Request<B>, peer: SocketAddr, handlers: &Handlers) -> Response<Full<Bytes>> {
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    match request.uri().path() {
        "/drain" if request.method() == Method::POST => match may_act(peer, request.headers()) {
            Ok(()) => begin_drain(handlers),
            Err(reason) => text(StatusCode::FORBIDDEN, format!("{reason}\n")),
        },
        "/drain" if is_read => progress(StatusCode::OK, handlers),
        "/drain" => only("GET, HEAD, POST"),
        "/metrics" | "/livez" | "/readyz" if !is_read => only("GET, HEAD"),
        "/metrics" => {
            let mut response = text(StatusCode::OK, (handlers.scrape)());
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
            response
        }
        "/livez" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => readyz(&handlers.readiness, request.uri().query() == Some("verbose")),
        _ => text(
            StatusCode::NOT_FOUND,
            "here are /metrics, /livez, /readyz and /drain\n".to_owned(),
        ),
    }
}

/// Whether a request may begin a drain: every peer may read the pages, but only this host may act.
///
/// A web page in a browser of this host may not, since its author may be on any host; with `kubectl port-forward` every
/// browser is on this host. A browser adds the origin of the page to a POST (Fetch section 3.2, and Fetch Metadata), and
/// a foreign name that was pointed at this address (DNS rebinding) is still in Host.
fn may_act(peer: SocketAddr, fields: &HeaderMap) -> Result<(), &'static str> {
    if !peer.ip().is_loopback() {
        return Err("only from loopback");
    }
    let is_typed = |site: &HeaderValue| site.as_bytes() == b"none";
    if fields.contains_key(ORIGIN) || !fields.get_all(SEC_FETCH_SITE).iter().all(is_typed) {
        return Err("not from a page in a browser");
    }
    if fields.get_all(HOST).iter().all(is_loopback) {
        Ok(())
    } else {
        Err("only as localhost or by a loopback address")
    }
}

/// Whether a Host names this host: `localhost`, or a loopback address.
fn is_loopback(host: &HeaderValue) -> bool {
    let host = host.to_str().ok().and_then(|host| host.parse::<HostAndPort>().ok());
    let host = host.as_ref().map_or("", HostAndPort::host);
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = address.unwrap_or(host).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

fn begin_drain(handlers: &Handlers) -> Response<Full<Bytes>> {
    handlers.drain_request.cancel();
    progress(StatusCode::ACCEPTED, handlers)
}

fn progress(status: StatusCode, handlers: &Handlers) -> Response<Full<Bytes>> {
    // Serializing strings and numbers does not fail.
    let mut page = serde_json::to_string(&(handlers.progress)()).unwrap_or_default();
    page.push('\n');
    let mut response = text(status, page);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn only(methods: &'static str) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {methods}\n"));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}

fn readyz(readiness: &Readiness, verbose: bool) -> Response<Full<Bytes>> {
    let ready = readiness.is_ready();
    let mut page = String::new();
    for (name, met) in readiness.conditions() {
        if verbose || !met {
            let (sign, state) = if met { ('+', "ok") } else { ('-', "not ready") };
            // Writing to a String does not fail.
            writeln!(page, "[{sign}]{name} {state}").ok();
        }
    }
    page.push_str(if ready { "ok\n" } else { "not ready\n" });
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    text(status, page)
}

fn text(status: StatusCode, page: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(page.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Its value `none` is an address that the user typed; no web page can send it.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
/// One more evicts the oldest: were the newest refused, a peer that keeps connections open without a byte would fail the
/// probes of the kubelet, which then restarts the pod with all its tunnels.
const MOST_CONNECTIONS: NonZeroU32 = NonZeroU32::new(512).unwrap();
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// For the request and the reading of its one page.
const LONGEST_CONNECTION: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn handlers(readiness: &Readiness) -> Handlers {
        Handlers {
            readiness: readiness.clone(),
            scrape: Box::new(|| "a_metric 1\n".to_owned()),
            progress: Box::new(|| Progress {
                phase: "serving".to_owned(),
                tunnels: 1,
                resumable: 0,
                connections: 2,
            }),
            drain_request: CancellationToken::new(),
        }
    }

    fn answer_to(method: Method, path: &str, peer: &str, handlers: &Handlers) -> Response<Full<Bytes>> {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        answer(&request, peer.parse().unwrap(), handlers)
    }

    fn ask(method: Method, path: &str, readiness: &Readiness) -> (u16, String) {
        let response = answer_to(method, path, "192.0.2.1:1", &handlers(readiness));
        let kind = response.headers()[CONTENT_TYPE].to_str().unwrap();
        (response.status().as_u16(), kind.to_owned())
    }

    #[test]
    fn each_path_has_its_answer() {
        let readiness = Readiness::default();
        let pending = readiness.require("listener");
        assert_eq!(
            ask(Method::GET, "/metrics", &readiness),
            (200, "text/plain; version=0.0.4".to_owned())
        );
        for (method, path, status) in [
            (Method::GET, "/livez", 200),
            (Method::HEAD, "/livez?x", 200),
            (Method::POST, "/metrics", 405),
            (Method::GET, "/", 404),
            (Method::GET, "/drain", 200),
            (Method::PUT, "/drain", 405),
            (Method::POST, "/drain", 403),
            (Method::GET, "/readyz", 503),
        ] {
            assert_eq!(ask(method.clone(), path, &readiness).0, status, "{method} {path}");
        }
        drop(pending);
        assert_eq!(ask(Method::GET, "/readyz?verbose", &readiness).0, 200);
    }

    #[test]
    fn a_page_in_a_browser_of_this_host_begins_no_drain() {
        for (fields, status) in [
            (
                &[("origin", "http://localhost:9090"), ("host", "localhost:9090")][..],
                403,
            ),
            (&[("origin", "null"), ("host", "127.0.0.1:9090")], 403),
            (&[("sec-fetch-site", "same-origin"), ("host", "localhost:9090")], 403),
            (&[("sec-fetch-site", "cross-site"), ("host", "localhost:9090")], 403),
            (&[("sec-fetch-site", "none"), ("sec-fetch-site", "same-site")], 403),
            (&[("host", "rebound.example.com:9090")], 403),
            (&[("host", "localhost.example.com")], 403),
            (&[("host", "127.0.0.1.example.com")], 403),
            (&[("host", "localhost"), ("host", "example.com")], 403),
            (&[("host", "192.0.2.1:9090")], 403),
            (&[("host", "")], 403),
            (&[("host", "\u{e9}")], 403),
            (&[("sec-fetch-site", "none"), ("host", "localhost:9090")], 202),
            (&[("host", "LocalHost")], 202),
            (&[("host", "127.9.9.9:1")], 202),
            (&[("host", "[::1]:9090")], 202),
            (&[("host", "[::1]")], 202),
            // Of HTTP/1.0: every browser sends one.
            (&[], 202),
        ] {
            let handlers = handlers(&Readiness::default());
            let mut request = Request::post("/drain");
            for (name, value) in fields {
                request = request.header(*name, value.as_bytes());
            }
            let response = answer(&request.body(()).unwrap(), "127.0.0.1:1".parse().unwrap(), &handlers);
            assert_eq!(response.status().as_u16(), status, "{fields:?}");
            assert_eq!(handlers.drain_request.is_cancelled(), status == 202, "{fields:?}");
        }
    }

    #[test]
    fn a_drain_begins_on_this_host_only() {
        let handlers = handlers(&Readiness::default());
        for (method, peer, status, begun) in [
            (Method::POST, "192.0.2.1:1", 403, false),
            (Method::POST, "[2001:db8::1]:1", 403, false),
            (Method::GET, "127.0.0.1:1", 200, false),
            (Method::POST, "127.0.0.1:1", 202, true),
            (Method::POST, "[::1]:1", 202, true),
        ] {
            let response = answer_to(method, "/drain", peer, &handlers);
            assert_eq!(response.status().as_u16(), status, "{peer}");
            assert_eq!(handlers.drain_request.is_cancelled(), begun, "{peer}");
        }
    }
}

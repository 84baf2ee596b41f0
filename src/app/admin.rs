//! Serves `/metrics`, `/livez`, `/readyz` and `/drain` on a port and a thread of its own: a loaded data plane still
//! answers.

use std::convert::Infallible;
use std::fmt::Write;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
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
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::readiness::Readiness;
use crate::metrics;
use crate::net::listener;

/// What the port tells.
pub struct Pages {
    /// Behind `/readyz`.
    pub readiness: Readiness,
    /// Writes the page `/metrics`.
    pub scrape: Box<dyn Fn() -> String + Send + Sync>,
    /// Behind `/drain`.
    pub progress: Box<dyn Fn() -> Progress + Send + Sync>,
    /// Cancelled by a POST to `/drain`.
    pub begin_drain: CancellationToken,
}

/// How far a drain is: what `/drain` answers, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// `serving`, `leaving`, `parting`, `stopped`, `closing` or `ended`: see [`Phase`](crate::drain::Phase).
    pub phase: String,
    /// Tunnels that are open, or whose target is being dialled.
    pub tunnels: u32,
    /// Connections of clients.
    pub connections: u32,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages")
            .field("readiness", &self.readiness)
            .finish_non_exhaustive()
    }
}

/// Binds the port and serves it from a new thread until the process ends. Gives the bound address. Needs a runtime.
///
/// # Errors
/// What socket(2), bind(2), listen(2) or the start of a thread say.
pub fn start(address: SocketAddr, pages: Pages) -> io::Result<SocketAddr> {
    // Bound before there is a runtime for it: one that is dropped inside another panics.
    let listener = listener::bind(&address.into())?.into_std()?;
    let address = listener.local_addr()?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _entered = runtime.enter();
        TcpListener::from_std(listener)?
    };
    let pages = Arc::new(pages);
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let serve = move |stream, peer: SocketAddr| {
        // Above the bound connections are closed at once: Prometheus and the kubelet come back.
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let pages = Arc::clone(&pages);
            tokio::spawn(async move {
                // A peer that goes or stalls is no concern of ours.
                timeout(LONGEST_CONNECTION, converse(stream, peer, &pages)).await.ok();
                drop(place);
            });
        }
    };
    let accept = async move { listener::accept(listener, pending(), serve, || ()).await };
    thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || runtime.block_on(accept))?;
    Ok(address)
}

async fn converse(stream: TcpStream, peer: SocketAddr, pages: &Pages) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LONGEST_HEAD)
        // One page each: who asks for hundreds at once, and takes none, would keep the thread and the place.
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(async |request| Ok::<_, Infallible>(answer(&request, peer, pages))),
        )
        .await
}

fn answer<B>(request: &Request<B>, peer: SocketAddr, pages: &Pages) -> Response<Full<Bytes>> {
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    match request.uri().path() {
        "/drain" if request.method() == Method::POST => match may_act(peer, request.headers()) {
            Ok(()) => begin_drain(pages),
            Err(reason) => text(StatusCode::FORBIDDEN, format!("{reason}\n")),
        },
        "/drain" if is_read => progress(StatusCode::OK, pages),
        "/drain" => only("GET, HEAD, POST"),
        "/metrics" | "/livez" | "/readyz" if !is_read => only("GET, HEAD"),
        "/metrics" => {
            let mut response = text(StatusCode::OK, (pages.scrape)());
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
            response
        }
        "/livez" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => readyz(&pages.readiness, request.uri().query() == Some("verbose")),
        _ => text(
            StatusCode::NOT_FOUND,
            "here are /metrics, /livez, /readyz and /drain\n".to_owned(),
        ),
    }
}

/// Whoever can reach the port may look; only who is on this host may act.
///
/// A page in a browser of this host may not: anybody may have written it. Behind `kubectl port-forward` every browser is
/// on this host. It says of a POST where it comes from (Fetch section 3.2, and Fetch Metadata), and a name that was made
/// to lead here is still in Host.
fn may_act(peer: SocketAddr, fields: &HeaderMap) -> Result<(), &'static str> {
    if !peer.ip().is_loopback() {
        return Err("only from loopback");
    }
    let by_user = |site: &HeaderValue| site.as_bytes() == b"none";
    if fields.contains_key(ORIGIN) || !fields.get_all(SEC_FETCH_SITE).iter().all(by_user) {
        return Err("not from a page in a browser");
    }
    if fields.get_all(HOST).iter().all(is_loopback) {
        Ok(())
    } else {
        Err("only as localhost or by a loopback address")
    }
}

/// Whether a Host is this host's own: `localhost`, or a loopback address.
fn is_loopback(host: &HeaderValue) -> bool {
    let host = host.to_str().ok().and_then(|host| host.parse::<HostAndPort>().ok());
    let host = host.as_ref().map_or("", HostAndPort::host);
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = address.unwrap_or(host).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

fn begin_drain(pages: &Pages) -> Response<Full<Bytes>> {
    pages.begin_drain.cancel();
    progress(StatusCode::ACCEPTED, pages)
}

fn progress(status: StatusCode, pages: &Pages) -> Response<Full<Bytes>> {
    // A map of words and numbers can be written.
    let mut page = serde_json::to_string(&(pages.progress)()).unwrap_or_default();
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

/// `none` is a user who typed the address: no page can say so.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
/// Slow ones may hold a place for as long as a head may take, and the kubelet must find one.
const MOST_CONNECTIONS: usize = 512;
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// For its one page to be asked for and taken.
const LONGEST_CONNECTION: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(readiness: &Readiness) -> Pages {
        Pages {
            readiness: readiness.clone(),
            scrape: Box::new(|| "a_metric 1\n".to_owned()),
            progress: Box::new(|| Progress {
                phase: "serving".to_owned(),
                tunnels: 1,
                connections: 2,
            }),
            begin_drain: CancellationToken::new(),
        }
    }

    fn answer_to(method: Method, path: &str, peer: &str, pages: &Pages) -> Response<Full<Bytes>> {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        answer(&request, peer.parse().unwrap(), pages)
    }

    fn ask(method: Method, path: &str, readiness: &Readiness) -> (u16, String) {
        let response = answer_to(method, path, "192.0.2.1:1", &pages(readiness));
        let kind = response.headers()[CONTENT_TYPE].to_str().unwrap();
        (response.status().as_u16(), kind.to_owned())
    }

    #[test]
    fn each_path_has_its_answer() {
        let readiness = Readiness::default();
        let pending = readiness.await_for("listener");
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
            let pages = pages(&Readiness::default());
            let mut request = Request::post("/drain");
            for (name, value) in fields {
                request = request.header(*name, value.as_bytes());
            }
            let response = answer(&request.body(()).unwrap(), "127.0.0.1:1".parse().unwrap(), &pages);
            assert_eq!(response.status().as_u16(), status, "{fields:?}");
            assert_eq!(pages.begin_drain.is_cancelled(), status == 202, "{fields:?}");
        }
    }

    #[test]
    fn a_drain_begins_on_this_host_only() {
        let pages = pages(&Readiness::default());
        for (method, peer, status, begun) in [
            (Method::POST, "192.0.2.1:1", 403, false),
            (Method::POST, "[2001:db8::1]:1", 403, false),
            (Method::GET, "127.0.0.1:1", 200, false),
            (Method::POST, "127.0.0.1:1", 202, true),
            (Method::POST, "[::1]:1", 202, true),
        ] {
            let response = answer_to(method, "/drain", peer, &pages);
            assert_eq!(response.status().as_u16(), status, "{peer}");
            assert_eq!(pages.begin_drain.is_cancelled(), begun, "{peer}");
        }
    }
}

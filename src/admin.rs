//! Serves `/metrics`, `/livez` and `/readyz` on a port and a thread of its own: a loaded data plane still answers.

use std::convert::Infallible;
use std::fmt::Write;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::listener;
use crate::metrics;
use crate::readiness::Readiness;

/// What the port tells.
pub struct Pages {
    /// Behind `/readyz`.
    pub readiness: Readiness,
    /// Writes the page `/metrics`.
    pub scrape: Box<dyn Fn() -> String + Send + Sync>,
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
    let serve = move |stream, _| {
        // Above the bound connections are closed at once: Prometheus and the kubelet come back.
        if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
            let pages = Arc::clone(&pages);
            tokio::spawn(async move {
                // A peer that goes or stalls is no concern of ours.
                timeout(LONGEST_CONNECTION, converse(stream, &pages)).await.ok();
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

async fn converse(stream: TcpStream, pages: &Pages) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LONGEST_HEAD)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(async |request| Ok::<_, Infallible>(answer(&request, pages))),
        )
        .await
}

fn answer<B>(request: &Request<B>, pages: &Pages) -> Response<Full<Bytes>> {
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    match request.uri().path() {
        "/metrics" | "/livez" | "/readyz" if !is_read => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
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
            "here are /metrics, /livez and /readyz\n".to_owned(),
        ),
    }
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

/// Slow ones may hold a place for as long as a head may take, and the kubelet must find one.
const MOST_CONNECTIONS: usize = 512;
const LONGEST_HEAD: Duration = Duration::from_secs(5);
/// A scraper that keeps its connection open has it renewed that often.
const LONGEST_CONNECTION: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: Method, path: &str, readiness: &Readiness) -> (u16, String) {
        let pages = Pages {
            readiness: readiness.clone(),
            scrape: Box::new(|| "a_metric 1\n".to_owned()),
        };
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let response = answer(&request, &pages);
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
            (Method::GET, "/readyz", 503),
        ] {
            assert_eq!(ask(method.clone(), path, &readiness).0, status, "{method} {path}");
        }
        drop(pending);
        assert_eq!(ask(Method::GET, "/readyz?verbose", &readiness).0, 200);
    }
}

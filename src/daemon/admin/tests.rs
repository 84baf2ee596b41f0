use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use tokio::time::advance;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::daemon::readiness::Readiness;

fn handlers(readiness: &Readiness) -> Handlers {
    Handlers {
        readiness: readiness.clone(),
        remarks: Box::new(String::new),
        scrape: Box::new(|| "a_metric 1\n".to_owned()),
        scrape_networks: None,
        drain_status: Box::new(|| DrainStatus {
            phase: "serving".to_owned(),
            tunnels: 1,
            resumable: Some(0),
            connections: 2,
        }),
        drain_request: CancellationToken::new(),
    }
}

async fn answer_to(request: Request<Body>, peer: &str, handlers: Handlers) -> Response {
    let router = Routes::probes(handlers).into_router();
    answer(router, Caller::new(peer.parse().unwrap()), request)
        .await
        .unwrap()
}

fn request(method: Method, path: &str) -> Request<Body> {
    Request::builder().method(method).uri(path).body(Body::empty()).unwrap()
}

async fn ask(method: Method, path: &str, readiness: &Readiness) -> (u16, String) {
    let response = answer_to(request(method, path), "192.0.2.1:1", handlers(readiness)).await;
    assert_eq!(response.headers()["x-content-type-options"], "nosniff", "{path}");
    let kind = response.headers()[CONTENT_TYPE].to_str().unwrap();
    (response.status().as_u16(), kind.to_owned())
}

#[tokio::test]
async fn each_path_has_its_answer() {
    let readiness = Readiness::default();
    let pending = readiness.require("listener");
    assert_eq!(
        ask(Method::GET, "/metrics", &readiness).await,
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
        let (said, _) = ask(method.clone(), path, &readiness).await;
        assert_eq!(said, status, "{method} {path}");
    }
    let refused = answer_to(request(Method::POST, "/drain"), "192.0.2.1:1", handlers(&readiness)).await;
    let text = axum::body::to_bytes(refused.into_body(), 100).await.unwrap();
    assert_eq!(text, "only from loopback\n");
    drop(pending);
    assert_eq!(ask(Method::GET, "/readyz?verbose", &readiness).await.0, 200);
}

#[tokio::test]
async fn a_page_in_a_browser_of_this_host_begins_no_drain() {
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
        (&[("host", "x@localhost")], 403),
        (&[("host", "x:y@127.0.0.1:9090")], 403),
        (&[("host", "@localhost")], 403),
        (&[("host", "localhost.")], 403),
        (&[("host", "127.0.0.1.:9090")], 403),
        (&[("host", "[127.0.0.1]:9090")], 403),
        (&[("host", "[localhost]")], 403),
        (&[("host", "::1")], 403),
        (&[("host", "[::1")], 403),
        (&[("host", "[::1]9090")], 403),
        (&[("host", "[::1%lo]:9090")], 403),
        (&[("host", "[2001:db8::1]")], 403),
        (&[("host", "localhost:")], 403),
        (&[("host", "[::1]:")], 403),
        (&[("host", "localhost:65536")], 403),
        (&[("host", "localhost:+80")], 403),
        (&[("host", "localhost:80:80")], 403),
        (&[("host", "localhost/")], 403),
        (&[("host", "127.1")], 403),
        (&[("host", "localhost:65535")], 202),
        (&[("host", "[::ffff:127.0.0.1]:1")], 202),
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
        let begun = handlers.drain_request.clone();
        let response = answer_to(request.body(Body::empty()).unwrap(), "127.0.0.1:1", handlers).await;
        assert_eq!(response.status().as_u16(), status, "{fields:?}");
        assert_eq!(begun.is_cancelled(), status == 202, "{fields:?}");
    }
}

#[tokio::test]
async fn what_a_proxy_passes_on_for_another_host_begins_no_drain() {
    for name in ["Forwarded", "X-Forwarded-For", "Via", "X-Envoy-External-Address"] {
        let handlers = handlers(&Readiness::default());
        let begun = handlers.drain_request.clone();
        let request = Request::post("/drain").header(name, "127.0.0.1");
        let response = answer_to(request.body(Body::empty()).unwrap(), "127.0.0.1:1", handlers).await;
        assert_eq!(
            (response.status().as_u16(), begun.is_cancelled()),
            (403, false),
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_second_share_a_page_of_metrics_while_one_has_not_read_it() {
    let scrapes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&scrapes);
    let handlers = Handlers {
        scrape: Box::new(move || format!("a_metric {}\n", counted.fetch_add(1, Ordering::Relaxed))),
        ..handlers(&Readiness::default())
    };
    let router = Routes::probes(handlers).into_router();
    let caller = || Caller::new("192.0.2.1:1".parse().unwrap());
    let ask = async || {
        answer(router.clone(), caller(), request(Method::GET, "/metrics"))
            .await
            .unwrap()
    };
    let first = ask().await;
    let both = [first, ask().await];
    assert_eq!(scrapes.load(Ordering::Relaxed), 1);
    advance(Duration::from_secs(1)).await;
    let third = ask().await;
    assert_eq!(scrapes.load(Ordering::Relaxed), 2);
    for page in both {
        let page = axum::body::to_bytes(page.into_body(), usize::MAX).await.unwrap();
        assert_eq!(page, "a_metric 0\n");
    }
    // No request holds a page any more: the next one is of now.
    drop(third);
    ask().await;
    assert_eq!(scrapes.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn metrics_are_told_to_peers_of_the_configured_networks_and_to_this_host() {
    let networks = |networks: &[&str]| Some(networks.iter().map(|network| network.parse().unwrap()).collect());
    for (scrape_networks, permitted, refused) in [
        (None, &["192.0.2.1:1", "127.0.0.6:1"][..], &[][..]),
        (
            networks(&[]),
            &["127.0.0.1:1", "[::1]:1"],
            &["127.0.0.6:1", "192.0.2.1:1", "[2001:db8::1]:1"],
        ),
        (
            networks(&["10.0.0.0/8", "2001:db8::/32"]),
            &["127.0.0.1:1", "10.1.2.3:1", "[::ffff:10.1.2.3]:1", "[2001:db8::1]:1"],
            &["192.0.2.1:1", "127.0.0.6:1"],
        ),
    ] {
        let statuses = permitted
            .iter()
            .map(|peer| (peer, 200))
            .chain(refused.iter().map(|peer| (peer, 403)));
        for (peer, status) in statuses {
            let handlers = Handlers {
                scrape_networks: scrape_networks.clone(),
                ..handlers(&Readiness::default())
            };
            let router = Routes::probes(handlers).into_router();
            for (path, status) in [("/metrics", status), ("/livez", 200)] {
                let caller = Caller::new(peer.parse().unwrap());
                let answer = answer(router.clone(), caller, request(Method::GET, path))
                    .await
                    .unwrap();
                assert_eq!(answer.status().as_u16(), status, "{scrape_networks:?} {peer} {path}");
            }
        }
    }
    let handlers = Handlers {
        scrape_networks: networks(&["10.0.0.0/8"]),
        ..handlers(&Readiness::default())
    };
    let refused = answer_to(request(Method::GET, "/metrics"), "192.0.2.1:1", handlers).await;
    let text = axum::body::to_bytes(refused.into_body(), 100).await.unwrap();
    assert_eq!(text, r#"{"error":"the address of the peer is not in admin_scrape"}"#);
}

#[tokio::test]
async fn a_drain_begins_on_this_host_only() {
    for (method, peer, status, begun) in [
        // A sidecar of Istio forwards so for other hosts.
        (Method::POST, "127.0.0.6:1", 403, false),
        (Method::POST, "[::ffff:127.0.0.6]:1", 403, false),
        (Method::POST, "[::6]:1", 403, false),
        (Method::POST, "192.0.2.1:1", 403, false),
        (Method::POST, "[2001:db8::1]:1", 403, false),
        (Method::GET, "127.0.0.1:1", 200, false),
        (Method::POST, "127.0.0.1:1", 202, true),
        (Method::POST, "[::1]:1", 202, true),
        (Method::POST, "[::ffff:127.0.0.1]:1", 202, true),
    ] {
        let handlers = handlers(&Readiness::default());
        let requested = handlers.drain_request.clone();
        let response = answer_to(request(method, "/drain"), peer, handlers).await;
        assert_eq!(response.status().as_u16(), status, "{peer}");
        assert_eq!(requested.is_cancelled(), begun, "{peer}");
    }
}

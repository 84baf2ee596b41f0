//! The peer of a request, and what it may do: every peer may read the pages of the probes, peers of the configured networks
//! those with names of targets, and only this host may do more.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use hyper::StatusCode;
use hyper::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use ipnet::IpNet;

use super::response::HttpError;

/// The connection of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    peer: SocketAddr,
    is_renewed: Arc<AtomicBool>,
}

impl Caller {
    pub(crate) fn new(peer: SocketAddr) -> Self {
        Self {
            peer,
            is_renewed: Arc::default(),
        }
    }

    /// Lets the connection last longer: its answer is a stream of events, and its reader reads.
    pub(crate) fn renew(&self) {
        self.is_renewed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection was renewed since the last call.
    pub(crate) fn take_renewal(&self) -> bool {
        self.is_renewed.swap(false, Ordering::Relaxed)
    }

    /// Returns an error unless a request may see names and act.
    ///
    /// A web page may not, since its author may be on any host. Its requests come from loopback if its browser is on
    /// this host, or on the other side of a `kubectl port-forward`. The browser adds the page's origin to a POST (Fetch
    /// section 3.2, and Fetch Metadata). After DNS rebinding, which points a foreign name at this address, Host has the
    /// foreign name.
    ///
    /// Requests of other hosts may come from loopback, too. A service mesh forwards them from an address that is
    /// neither 127.0.0.1 nor ::1 (Istio's sidecar: 127.0.0.6 and ::6). Most HTTP proxies add a field to them.
    pub(crate) fn require_local_caller(&self, fields: &HeaderMap) -> Result<(), &'static str> {
        let peer = self.peer.ip().to_canonical();
        if peer != Ipv4Addr::LOCALHOST && peer != Ipv6Addr::LOCALHOST {
            return Err("only from loopback");
        }
        if FORWARDED.iter().any(|name| fields.contains_key(*name)) {
            return Err("not through a proxy");
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
}

/// Refuses requests that may not see names and act.
pub(crate) async fn only_from_here(request: Request, next: Next) -> Response {
    let permitted = match request.extensions().get::<Caller>() {
        Some(caller) => caller.require_local_caller(request.headers()),
        None => Err("only from loopback"),
    };
    match permitted {
        Ok(()) => next.run(request).await,
        Err(reason) => HttpError::new(StatusCode::FORBIDDEN, reason).into_response(),
    }
}

/// The networks that may read names of targets and their use, besides this host. `None`: all.
pub type ScrapeNetworks = Option<Arc<[IpNet]>>;

/// Refuses requests that may not read names of targets.
pub(crate) async fn only_scrapers(State(networks): State<ScrapeNetworks>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    let peer = caller.map(|caller| caller.peer.ip().to_canonical());
    let contains = |networks: &Arc<[IpNet]>| {
        networks
            .iter()
            .any(|network| peer.is_some_and(|peer| network.contains(&peer)))
    };
    match networks.as_ref().is_none_or(contains) {
        true => next.run(request).await,
        false if peer.is_some_and(|peer| !peer.is_loopback()) => {
            HttpError::new(StatusCode::FORBIDDEN, "the address of the peer is not in admin_scrape").into_response()
        }
        false => only_from_here(request, next).await,
    }
}

/// Returns whether a Host names this host: `localhost`, or a loopback address, with or without a port (RFC 9110 section 7.2). User
/// information, a zone, a trailing dot or an empty port is in no Host that a program of this host sends.
fn is_loopback(host: &HeaderValue) -> bool {
    let host = host.to_str().unwrap_or_default();
    let (name, port) = match host.strip_prefix('[') {
        Some(bracketed) => {
            let Some((address, port)) = bracketed.split_once(']') else {
                return false;
            };
            let address = address.parse::<Ipv6Addr>().map(IpAddr::V6);
            (address.is_ok_and(|address| address.to_canonical().is_loopback()), port)
        }
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            let is_address = name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
            (is_address || name.eq_ignore_ascii_case("localhost"), port)
        }
    };
    name && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

fn is_port(text: &str) -> bool {
    // `parse` takes a sign, too.
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Fields that HTTP proxies add (RFC 7239, RFC 9110 section 7.6.3).
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-envoy-external-address", "via"];
/// A field whose value `none` means that the user typed the address. No web page can send that value.
const SEC_FETCH_SITE: &str = "sec-fetch-site";

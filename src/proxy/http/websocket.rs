//! WebSocket requests for a tunnel, over HTTP/1.1 (RFC 6455) and HTTP/2 (RFC 8441): for clients behind a load balancer
//! that passes no CONNECT on. `head.rs` and `http2.rs` recognise them.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::protocol::websocket::handshake::{SUBPROTOCOL, VERSION};
use crate::tunnel::outcome::{Malformed, RefusalReason};

/// The WebSocket of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebSocketOptions {
    /// The path of all requests, before `/HOST:PORT`: empty, or it begins with a slash and ends without one.
    pub path: Box<str>,
    /// True if the load balancers of `trusted_proxies` take clients over TLS only, and the way from there is protected.
    pub trusted_tls: bool,
    /// The networks of the load balancers that name the client in `X-Forwarded-For`.
    pub trusted_proxies: Box<[IpNet]>,
}

/// The fields that load balancers have added to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// The values of `X-Forwarded-For`, joined; `None` without that field and `Forwarded`.
    pub client: Option<Box<str>>,
    /// False if `X-Forwarded-Proto` names a scheme without TLS.
    pub is_encrypted: bool,
}

impl WebSocketOptions {
    /// Returns the requested target in a path; `None` for another path. Brackets and colons may be percent-encoded, as some
    /// load balancers rewrite them so, and nothing else needs to be.
    pub(super) fn target<'a>(&self, path: &'a str) -> Option<Cow<'a, str>> {
        let target = path.strip_prefix(&*self.path)?.strip_prefix('/')?;
        if !target.contains('%') {
            return Some(target.into());
        }
        let decoded = [
            ("%3a", ":"),
            ("%3A", ":"),
            ("%5b", "["),
            ("%5B", "["),
            ("%5d", "]"),
            ("%5D", "]"),
        ];
        let decode = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
        Some(decoded.iter().fold(target.to_owned(), decode).into())
    }

    /// Returns whether a peer may name the client.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_proxies.iter().any(|network| network.contains(&peer))
    }

    /// Returns the client of a request from a trusted peer: the last address in `X-Forwarded-For` that is no trusted
    /// proxy's. Clients can write the ones before it. `None` without one, or if an address before it is invalid.
    pub fn client(&self, forwarding: &Forwarding) -> Option<IpAddr> {
        let list = forwarding.client.as_deref()?;
        for entry in list.rsplit(',') {
            let address = address(entry.trim())?;
            if !self.trusts(address) {
                return Some(address);
            }
        }
        None
    }
}

/// Parses an address, which some load balancers write with a port.
fn address(entry: &str) -> Option<IpAddr> {
    let bare = entry.trim_start_matches('[').trim_end_matches(']');
    let parsed: Option<IpAddr> = bare.parse().ok();
    let parsed = parsed.or_else(|| Some(entry.parse::<std::net::SocketAddr>().ok()?.ip()));
    // A load balancer with a socket for both versions of IP writes IPv4 so; limits go by the address.
    parsed.map(|address| address.to_canonical())
}

/// Checks the fields that both versions of HTTP have, of which `field` returns the values. Cookies are never read: a page
/// of another site has them, too.
///
/// # Errors
/// The refusal.
pub(super) fn check<'a, V: Iterator<Item = &'a [u8]>>(
    field: impl Fn(&'static str) -> V,
) -> Result<Forwarding, RefusalReason> {
    // Browsers always send one (section 10.2), and no other client needs to.
    if field("origin").next().is_some() {
        return Err(RefusalReason::OriginRefused);
    }
    if !has_token(field("sec-websocket-version"), VERSION) {
        return Err(RefusalReason::UpgradeRequired);
    }
    if !has_token(field("sec-websocket-protocol"), SUBPROTOCOL) {
        return Err(RefusalReason::Malformed(Malformed::Subprotocol));
    }
    let text = |name| {
        let values: Vec<_> = field(name).map(String::from_utf8_lossy).collect();
        (!values.is_empty()).then(|| values.join(","))
    };
    let scheme = text("x-forwarded-proto");
    Ok(Forwarding {
        client: text("x-forwarded-for").or_else(|| text("forwarded")).map(Into::into),
        is_encrypted: scheme.is_none_or(|schemes| {
            let mut schemes = schemes.split(',').map(str::trim);
            schemes.all(|scheme| matches!(&*scheme.to_ascii_lowercase(), "https" | "wss"))
        }),
    })
}

/// Returns whether a list has a token, in any case (RFC 9110 section 5.6.1).
pub(super) fn has_token<'a>(values: impl Iterator<Item = &'a [u8]>, wanted: &str) -> bool {
    let values = values.filter_map(|value| str::from_utf8(value).ok());
    let mut tokens = values.flat_map(|value| value.split(','));
    tokens.any(|token| token.trim().eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trusted_proxy_names_the_client_and_only_the_last_address_is_its_word() {
        let options = WebSocketOptions {
            trusted_proxies: ["10.0.0.0/8", "fd00::/8"]
                .map(|network| network.parse().unwrap())
                .into(),
            ..WebSocketOptions::default()
        };
        for (list, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.9, 192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.9,192.0.2.1:4711, 10.1.1.1", Some("192.0.2.1")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("[2001:db8::1],::ffff:10.0.0.1", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("[::ffff:192.0.2.1]:443", Some("192.0.2.1")),
            ("10.0.0.1", None),
            ("192.0.2.1, unknown", None),
            ("", None),
        ] {
            let forwarding = Forwarding {
                client: Some(list.into()),
                is_encrypted: true,
            };
            let client = options.client(&forwarding);
            assert_eq!(client, expected.map(|address| address.parse().unwrap()), "{list}");
        }
        assert!(options.trusts("::ffff:10.0.0.1".parse().unwrap()) && !options.trusts("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn a_target_is_what_follows_the_path_as_it_is() {
        for (path, requested, expected) in [
            ("/ssh", "/ssh/a.b:22", Some("a.b:22")),
            ("/ssh", "/ssh/%5Bfd00::1%5d%3a22", Some("[fd00::1]:22")),
            ("/ssh", "/ssh/%61:22", Some("%61:22")),
            ("/ssh", "/ssh/a:22?x", Some("a:22?x")),
            ("/ssh", "/ssh//a:22", Some("/a:22")),
            ("/ssh", "/sshx/a:22", None),
            ("/ssh", "/ssh", None),
            ("/ssh", "/a:22", None),
            ("", "/a:22", Some("a:22")),
        ] {
            let options = WebSocketOptions {
                path: path.into(),
                ..WebSocketOptions::default()
            };
            assert_eq!(options.target(requested).as_deref(), expected, "{requested}");
        }
    }

    #[test]
    fn a_scheme_without_tls_is_the_word_of_the_nearest_or_any_other_proxy() {
        for (schemes, expected) in [
            (&[][..], true),
            (&["https"], true),
            (&["WSS, https"], true),
            (&["https", "http"], false),
        ] {
            let field = |name: &'static str| {
                let values: Vec<&[u8]> = match name {
                    "sec-websocket-version" => vec![b"13"],
                    "sec-websocket-protocol" => vec![b"chat, switchboard.v1"],
                    "x-forwarded-proto" => schemes.iter().map(|scheme| scheme.as_bytes()).collect(),
                    _ => Vec::new(),
                };
                values.into_iter()
            };
            assert_eq!(check(field).unwrap().is_encrypted, expected, "{schemes:?}");
        }
    }
}

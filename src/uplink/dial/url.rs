//! The proxy's URL, parsed once and strictly. Neither `Display` nor `Debug` shows its credentials.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

use crate::base::authority::{Authority, AuthorityError};
use crate::protocol::websocket::handshake::plain_path;

/// `http://[user[:password]@]host[:port][/]`, or `https://`; or `ws://[…]host[:port][/path]`, or `wss://`.
///
/// Neither `Display` nor `Debug` shows the credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    scheme: Scheme,
    authority: Authority,
    authorization: Option<Box<str>>,
    websocket: Option<Box<str>>,
}

/// The protocol under the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain TCP, port 80 by default: `http://` or `ws://`.
    Http,
    /// TLS, port 443 by default: `https://` or `wss://`.
    Https,
}

impl ProxyUrl {
    /// Returns the protocol under the request.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the host: a name or an IP address, without brackets.
    pub fn host(&self) -> &str {
        self.authority.host()
    }

    /// Returns the TCP port, 1 to 65535.
    pub fn port(&self) -> u16 {
        self.authority.port()
    }

    /// Returns the path of WebSocket requests, without a slash at its end; `None` if the proxy takes CONNECT.
    pub fn websocket(&self) -> Option<&str> {
        self.websocket.as_deref()
    }

    /// Returns host and port.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns whether the URL has a user, and perhaps a password.
    pub fn has_credentials(&self) -> bool {
        self.authorization.is_some()
    }

    /// Returns the value of `Proxy-Authorization` (RFC 7617), a secret; `None` for a URL without userinfo.
    pub(crate) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }
}

impl ProxyUrl {
    /// Parses what follows the `//` of a URL.
    pub(crate) fn parse(scheme: Scheme, rest: &str, default_port: u16) -> Result<Self, ProxyUrlError> {
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(ProxyUrlError::Path);
        }
        let (userinfo, host) = match authority.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, authority),
        };
        Ok(Self {
            scheme,
            authority: parse_host(host, default_port)?,
            authorization: userinfo.map(basic).transpose()?,
            websocket: None,
        })
    }

    /// Parses what follows the `//` of a URL for WebSockets.
    fn parse_websocket(scheme: Scheme, rest: &str, default_port: u16) -> Result<Self, ProxyUrlError> {
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = plain_path(path).ok_or(ProxyUrlError::WebSocketPath)?;
        Ok(Self {
            websocket: Some(path.into()),
            ..Self::parse(scheme, authority, default_port)?
        })
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.scheme, &self.websocket) {
            (Scheme::Http, None) => "http",
            (Scheme::Https, None) => "https",
            (Scheme::Http, Some(_)) => "ws",
            (Scheme::Https, Some(_)) => "wss",
        };
        let path = self.websocket.as_deref().unwrap_or_default();
        write!(f, "{scheme}://{}{path}", self.authority)
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyUrl")
            .field("url", &format_args!("{self}"))
            .field("authorization", &self.authorization.as_ref().map(|_| "(hidden)"))
            .finish()
    }
}

impl FromStr for ProxyUrl {
    type Err = ProxyUrlError;

    fn from_str(text: &str) -> Result<Self, ProxyUrlError> {
        if text.trim().is_empty() {
            return Err(ProxyUrlError::Empty);
        }
        let (scheme, rest) = text.split_once("://").ok_or(ProxyUrlError::Scheme)?;
        // In upper or lower case (RFC 3986 section 3.1).
        let (scheme, port) = match &*scheme.to_ascii_lowercase() {
            "http" => (Scheme::Http, 80),
            "https" => (Scheme::Https, 443),
            "ws" => return Self::parse_websocket(Scheme::Http, rest, 80),
            "wss" => return Self::parse_websocket(Scheme::Https, rest, 443),
            _ => return Err(ProxyUrlError::Scheme),
        };
        Self::parse(scheme, rest, port)
    }
}

/// The reason why a text is not a proxy URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyUrlError {
    /// An empty text, usually from a variable that is set to nothing.
    #[error("the proxy URL is empty: write http://HOST[:PORT] or https://HOST[:PORT], or unset the variable")]
    Empty,
    /// The scheme is missing, or another one.
    #[error("the proxy URL must begin with http:// or https://, or with wss:// for a WebSocket")]
    Scheme,
    /// A path other than `/`, a query or a fragment. A password with `/`, `?` or `#` in it looks like one.
    #[error("the proxy URL takes no path, query or fragment (in a password write / as %2F, ? as %3F, # as %23)")]
    Path,
    /// A path of a WebSocket that is not plain, a query or a fragment.
    #[error("the path of a wss:// URL takes letters, digits and -._~/ only, and no query or fragment")]
    WebSocketPath,
    /// The host is missing.
    #[error("the proxy URL has no host")]
    NoHost,
    /// A colon without a port from 1 to 65535 after it.
    #[error("the port of the proxy URL must be 1 to 65535 in decimal digits")]
    Port,
    /// A host that is neither a name nor an address, or an IPv6 address without brackets.
    #[error("the host of the proxy URL is not a valid name, nor an address (of IPv6 in brackets)")]
    BadHost,
    /// A colon in the decoded user, or a control character: Basic cannot carry them (RFC 7617 section 2).
    #[error("the user or password of the proxy URL holds a character that cannot be sent")]
    BadCredentials,
}

fn parse_host(host: &str, default_port: u16) -> Result<Authority, ProxyUrlError> {
    let has_port = !host.ends_with(']') && host.contains(':');
    let authority = if has_port {
        host.parse()
    } else {
        format!("{host}:{default_port}").parse()
    };
    authority.map_err(|error| match error {
        AuthorityError::NoHost => ProxyUrlError::NoHost,
        AuthorityError::NoPort | AuthorityError::BadPort => ProxyUrlError::Port,
        AuthorityError::NotAuthorityForm
        | AuthorityError::UserInfo
        | AuthorityError::UnbracketedIpv6
        | AuthorityError::BadIpLiteral
        | AuthorityError::BadLabel
        | AuthorityError::BadHostByte => ProxyUrlError::BadHost,
    })
}

/// Returns the Basic credentials of a userinfo. Without a colon the password is empty. As in curl, a `%` without two
/// hexadecimal digits is kept.
fn basic(userinfo: &str) -> Result<Box<str>, ProxyUrlError> {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let [user, password] = [user, password].map(|text| Cow::from(percent_decode_str(text)));
    let credentials = [&*user, b":", &*password].concat();
    if user.contains(&b':') || credentials.iter().any(u8::is_ascii_control) {
        return Err(ProxyUrlError::BadCredentials);
    }
    Ok(format!("Basic {}", STANDARD.encode(credentials)).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn urls_name_scheme_host_and_port() {
        for (text, scheme, host, port) in [
            ("http://proxy", Scheme::Http, "proxy", 80),
            ("http://proxy/", Scheme::Http, "proxy", 80),
            ("HTTPS://Proxy.Example:8443/", Scheme::Https, "proxy.example", 8443),
            ("https://proxy", Scheme::Https, "proxy", 443),
            ("http://127.0.0.1:8080", Scheme::Http, "127.0.0.1", 8080),
            ("http://[::1]", Scheme::Http, "::1", 80),
            ("https://[FD00::1]:1/", Scheme::Https, "fd00::1", 1),
            ("http://u:p@[::1]:8080", Scheme::Http, "::1", 8080),
            ("WSS://u:p@proxy/a/ssh/", Scheme::Https, "proxy", 443),
            ("ws://[::1]", Scheme::Http, "::1", 80),
        ] {
            let url: ProxyUrl = text.parse().unwrap();
            assert_eq!((url.scheme(), url.host(), url.port()), (scheme, host, port), "{text}");
        }
    }

    #[test]
    fn every_malformed_url_is_refused_with_its_reason() {
        use ProxyUrlError::*;
        for (text, error) in [
            ("", Empty),
            (" ", Empty),
            ("proxy:8080", Scheme),
            ("socks5://proxy", Scheme),
            ("http:/proxy", Scheme),
            ("httpé//proxy", Scheme),
            ("http://proxy/path", Path),
            ("http://proxy//", Path),
            ("http://proxy?query", Path),
            ("http://proxy#fragment", Path),
            ("http://u:a/b@proxy", Path),
            ("wss://proxy/ssh?query", WebSocketPath),
            ("wss://proxy/ssh//", WebSocketPath),
            ("wss://proxy/s%73h", WebSocketPath),
            ("wss://proxy#fragment", Path),
            ("http://", NoHost),
            ("http:///", NoHost),
            ("http://:80", NoHost),
            ("http://u:p@", NoHost),
            ("http://proxy:", Port),
            ("http://proxy:0", Port),
            ("http://proxy:65536", Port),
            ("http://proxy:http", Port),
            ("http://fd00::1", BadHost),
            ("http://[proxy]", BadHost),
            ("http://[fe80::1%25eth0]:80", BadHost),
            ("http://pro xy", BadHost),
            ("http://proxy..example", BadHost),
            ("http://pr%6Fxy", BadHost),
            ("http://proxy\r\nX: y", BadHost),
            ("http://u%3Av:p@proxy", BadCredentials),
            ("http://u:p%0D%0A@proxy", BadCredentials),
            ("http://u\n:p@proxy", BadCredentials),
        ] {
            assert_eq!(text.parse::<ProxyUrl>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn userinfo_becomes_basic_credentials() {
        for (userinfo, credentials) in [
            ("Aladdin:open%20sesame", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            ("user:pass", "Basic dXNlcjpwYXNz"),
            ("user", "Basic dXNlcjo="),
            ("user:a:b", "Basic dXNlcjphOmI="),
            ("user:p@ss", "Basic dXNlcjpwQHNz"),
            ("user:p%40ss", "Basic dXNlcjpwQHNz"),
            ("user:100%", "Basic dXNlcjoxMDAl"),
            ("user:%4", "Basic dXNlcjolNA=="),
            ("test:123%C2%A3", "Basic dGVzdDoxMjPCow=="),
        ] {
            let url: ProxyUrl = format!("http://{userinfo}@proxy").parse().unwrap();
            assert_eq!(url.authorization(), Some(credentials), "{userinfo}");
        }
        assert_eq!("http://proxy".parse::<ProxyUrl>().unwrap().authorization(), None);
    }

    #[test]
    fn a_url_of_websockets_keeps_its_path() {
        for (text, path, printed) in [
            ("wss://u:p@proxy/a/ssh/", Some("/a/ssh"), "wss://proxy:443/a/ssh"),
            ("ws://proxy:81", Some(""), "ws://proxy:81"),
            ("https://proxy/", None, "https://proxy:443"),
        ] {
            let url: ProxyUrl = text.parse().unwrap();
            assert_eq!((url.websocket(), &*url.to_string()), (path, printed));
        }
    }

    #[test]
    fn no_printout_shows_the_credentials() {
        let url: ProxyUrl = "http://user:secret@proxy".parse().unwrap();
        let printed = format!("{url} {url:?} {url:#?}");
        assert!(
            !printed.contains("secret") && !printed.contains("c2VjcmV0") && !printed.contains("Basic"),
            "{printed}"
        );
    }

    proptest! {
        #[test]
        fn no_text_panics_and_a_printed_url_parses_to_the_same(text in "((http|ws)(s)?://)?\\PC{0,60}") {
            if let Ok(url) = text.parse::<ProxyUrl>() {
                let again: ProxyUrl = url.to_string().parse().unwrap();
                prop_assert_eq!((again.scheme(), again.host(), again.port()), (url.scheme(), url.host(), url.port()));
            }
        }
    }
}

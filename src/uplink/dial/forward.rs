//! The proxy of the user's own network, from the environment or a kubeconfig, through which a server is reached.
//!
//! The variables and their order are those of curl(1), section ENVIRONMENT, and `HTTP_PROXY`, which curl does not read.
//! The tunnel relays the bytes unchanged: TLS to an `https://` server is end to end.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;

use anyhow::{anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::io::{AsyncRead, AsyncWrite};
use zeroize::Zeroizing;

use super::deadline::{Deadline, Step};
use super::head::{Request, Wanted};
use super::socks;
use super::url::{ProxyUrl, ProxyUrlError, Scheme};
use crate::base::secret::Secret;
use crate::uplink::error::{ClientError, Retry};

/// A proxy that a variable of the environment or a kubeconfig names.
#[derive(Clone, Debug)]
pub struct ForwardProxy {
    url: ProxyUrl,
    is_socks: bool,
    origin: &'static str,
}

impl ForwardProxy {
    /// Returns the environment's proxy for `proxy`; `None` if there is none, or `NO_PROXY` exempts the host.
    ///
    /// As in curl, an empty variable counts as unset, lower case takes precedence, and loopback hosts are not exempt.
    ///
    /// # Errors
    /// The variable is not a usable URL.
    pub fn from_environment(
        proxy: &ProxyUrl,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> anyhow::Result<Option<Self>> {
        Self::find(proxy, variable, "--no-env-proxy ignores it, NO_PROXY exempts hosts")
    }

    fn find(
        proxy: &ProxyUrl,
        variable: impl Fn(&str) -> Option<OsString>,
        advice: &str,
    ) -> anyhow::Result<Option<Self>> {
        let value = |name: &&'static str| {
            variable(name)
                .filter(|value| !value.is_empty())
                .map(|value| (*name, value))
        };
        let names: &[&str] = match proxy.scheme() {
            Scheme::Https => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
            // In a CGI program HTTP_PROXY is the request's field `Proxy:` (CVE-2016-5385).
            Scheme::Http if variable("REQUEST_METHOD").is_some() => &["http_proxy", "all_proxy", "ALL_PROXY"],
            Scheme::Http => &["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
        };
        let Some((name, url)) = names.iter().find_map(value) else {
            return Ok(None);
        };
        let exempt = ["no_proxy", "NO_PROXY"].iter().find_map(value).map(|(_, hosts)| hosts);
        if is_exempt(proxy, &exempt.unwrap_or_default().to_string_lossy()) {
            return Ok(None);
        }
        let url = url.to_str().ok_or(ProxyUrlError::BadHost.into());
        let forward = url.and_then(|url| Self::parse(url, name));
        let forward = forward.map_err(|fault| anyhow!("{name} in the environment: {fault} ({advice})"))?;
        Ok(Some(forward))
    }

    /// Returns the environment's proxy for a server other than `--proxy`. As for kubectl, loopback hosts are exempt; and
    /// so is the API server of the pod's own cluster.
    ///
    /// # Errors
    /// As in [`from_environment`](Self::from_environment).
    pub(crate) fn for_server(server: &ProxyUrl) -> anyhow::Result<Option<Self>> {
        let host = server.host();
        let is_loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        let is_of_pod = env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|own| own == host) || host.ends_with(".svc");
        let is_of_pod = is_of_pod || host.ends_with(".svc.cluster.local");
        if host == "localhost" || is_loopback || is_of_pod {
            return Ok(None);
        }
        Self::find(server, |name| env::var_os(name), "NO_PROXY exempts hosts")
    }

    /// Parses the `proxy-url` of a cluster.
    ///
    /// # Errors
    /// It is not the URL of an HTTP or SOCKS 5 proxy.
    pub(crate) fn of_cluster(url: &str) -> anyhow::Result<Self> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let is_known = scheme.is_some_and(|scheme| ["http", "https", "socks5"].contains(&scheme.as_str()));
        ensure!(is_known, "it must begin with http://, https:// or socks5://");
        Self::parse(url, "the kubeconfig's proxy-url")
    }

    /// Parses a URL. No error quotes it, as it may hold a password.
    fn parse(url: &str, origin: &'static str) -> anyhow::Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        // As in curl a path is ignored. A `@` in it shows a password that is not percent-encoded.
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let is_path = !rest.split_at(authority.len()).1.contains('@');
        let (scheme, rest) = (scheme.to_ascii_lowercase(), if is_path { authority } else { rest });
        let is_socks = scheme == "socks5" || scheme == "socks5h";
        let url = match is_socks {
            true => ProxyUrl::parse(Scheme::Http, rest, 1080)?,
            false if scheme.starts_with("socks") => bail!("a SOCKS proxy of another version than 5"),
            false if scheme.starts_with("ws") => return Err(ProxyUrlError::Scheme.into()),
            false => format!("{scheme}://{rest}").parse()?,
        };
        Ok(Self { url, is_socks, origin })
    }

    /// Returns its URL, whose `Display` hides the password.
    pub(crate) fn url(&self) -> &ProxyUrl {
        &self.url
    }

    /// Opens a tunnel to `server` over this connection.
    pub(crate) async fn open(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        server: &ProxyUrl,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        if self.is_socks {
            let encoded = self.url.authorization().and_then(|field| field.strip_prefix("Basic "));
            let login = encoded
                .and_then(|encoded| STANDARD.decode(encoded).ok())
                .map(Zeroizing::new);
            let opened = socks::open(stream, server.authority(), login.as_deref().map(Vec::as_slice));
            let opened = async { opened.await.map_err(ClientError::WithBackoff) };
            return Box::pin(deadline.bound(Step::Answer, opened)).await;
        }
        let target = server.authority().to_string();
        let wanted = Wanted::Tunnel {
            target: &target,
            end_marker: None,
            session: None,
            no_wake: false,
            host_keys: false,
        };
        let request = Request {
            wanted: &wanted,
            authorization: self.url.authorization().map(Secret::from),
            upgrade: None,
        };
        let agreement = Box::pin(request.open(stream, deadline)).await?;
        // In HTTP and TLS the server never speaks first.
        match agreement.early.is_empty() {
            true => Ok(()),
            false => Err(ClientError::no_http()),
        }
    }

    /// Returns the error for a failed connection to `proxy` through this one.
    pub(crate) fn error(&self, proxy: &ProxyUrl, error: ClientError) -> ClientError {
        // No error is final: the forward proxy may reach `proxy` later.
        let class = match error.retry() {
            Retry::Immediately => ClientError::Immediately,
            Retry::Never | Retry::WithBackoff => ClientError::WithBackoff,
        };
        class(anyhow!(error).context(format!(
            "{self} in the environment does not reach the proxy at {} (--no-env-proxy ignores it)",
            proxy.authority()
        )))
    }
}

/// Prints its URL, and its origin.
impl fmt::Display for ForwardProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_socks {
            true => write!(f, "socks5://{} of {}", self.url.authority(), self.origin),
            false => write!(f, "{} of {}", self.url, self.origin),
        }
    }
}

/// Returns whether `NO_PROXY` exempts the host of the proxy. The entries are those of curl and of Go, and so of kubectl:
/// `*`, names with those below, addresses and networks. Go has `*.domain` and `host:port`, too.
fn is_exempt(proxy: &ProxyUrl, hosts: &str) -> bool {
    let Ok(uri) = format!("http://{}/", proxy.authority()).parse::<http::Uri>() else {
        return false;
    };
    // curl accepts spaces between the entries, too.
    let entries = hosts.split(|character: char| character == ',' || character.is_whitespace());
    let hosts: Vec<_> = entries.filter_map(|entry| exempt_host(entry, proxy)).collect();
    let matcher = Matcher::builder().http("http://any").no(hosts.join(",")).build();
    // The matcher accepts a `*` for names only, not for addresses.
    hosts.contains(&"*") || matcher.intercept(&uri).is_none()
}

/// Returns the host of an entry for the matcher; `None` if the entry is for another port, or only for names below the
/// proxy's.
fn exempt_host<'a>(entry: &'a str, proxy: &ProxyUrl) -> Option<&'a str> {
    let is_port = |host: &str, port: &str| (!host.contains(':') || host.ends_with(']')) && port.parse::<u16>().is_ok();
    let host = match entry.rsplit_once(':').filter(|(host, port)| is_port(host, port)) {
        Some((host, port)) if port.parse() == Ok(proxy.port()) => host,
        Some(_) => return None,
        None => entry,
    };
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let host = host.strip_suffix('.').unwrap_or(host);
    match host.strip_prefix("*.") {
        Some(domain) => (!domain.eq_ignore_ascii_case(proxy.host())).then_some(domain),
        None => Some(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(proxy: &str, environment: &[(&str, &str)]) -> Result<Option<String>, String> {
        let variable = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name)?;
            Some(OsString::from(found.1))
        };
        let forward = ForwardProxy::from_environment(&proxy.parse().unwrap(), variable);
        forward
            .map(|forward| forward.map(|forward| forward.to_string()))
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn the_variables_are_those_of_curl_in_its_order() {
        for (proxy, environment, expected) in [
            ("https://p", &[][..], None),
            (
                "https://192.0.2.1",
                &[("https_proxy", "http://a:1"), ("no_proxy", "x, *")],
                None,
            ),
            (
                "https://p",
                &[("https_proxy", "http://a:1")],
                Some("http://a:1 of https_proxy"),
            ),
            (
                "https://p",
                &[("HTTPS_PROXY", "http://b:1"), ("https_proxy", "http://a:1")],
                Some("http://a:1 of https_proxy"),
            ),
            (
                "https://p",
                &[("https_proxy", ""), ("HTTPS_PROXY", "b:1")],
                Some("http://b:1 of HTTPS_PROXY"),
            ),
            (
                "https://p",
                &[("http_proxy", "http://a:1"), ("HTTP_PROXY", "http://a:1")],
                None,
            ),
            (
                "https://p",
                &[("ALL_PROXY", "https://c")],
                Some("https://c:443 of ALL_PROXY"),
            ),
            ("http://p", &[("https_proxy", "http://a:1")], None),
            ("http://p", &[("http_proxy", "a")], Some("http://a:80 of http_proxy")),
            (
                "http://p",
                &[("HTTP_PROXY", "u:p@a:3128/")],
                Some("http://a:3128 of HTTP_PROXY"),
            ),
            ("http://p", &[("HTTP_PROXY", "a:1"), ("REQUEST_METHOD", "GET")], None),
            (
                "http://localhost",
                &[("http_proxy", "[::1]:2")],
                Some("http://[::1]:2 of http_proxy"),
            ),
        ] {
            assert_eq!(
                forward(proxy, environment).unwrap().as_deref(),
                expected,
                "{environment:?}"
            );
        }
    }

    #[test]
    fn a_path_is_ignored_and_socks_has_a_port_of_its_own() {
        for (variable, url, expected) in [
            (
                "http_proxy",
                "http://u:p@a:3128/path?query#x",
                "http://a:3128 of http_proxy",
            ),
            ("all_proxy", "socks5h://u:p@a", "socks5://a:1080 of all_proxy"),
        ] {
            let forward = forward("http://p", &[(variable, url)]).unwrap();
            assert_eq!(forward.as_deref(), Some(expected));
        }
    }

    #[test]
    fn no_proxy_exempts_names_with_those_below_and_addresses() {
        for (proxy, hosts, is_exempt) in [
            ("http://ssh.example.com", "example.com", true),
            ("http://ssh.example.com:8080", ".example.com,other", true),
            ("http://ssh.example.com", "other ssh.example.com", true),
            ("http://ssh.example.com", "SSH.Example.com", true),
            ("http://ssh.example.com", "h.example.com", false),
            ("http://ssh.example.com", "*", true),
            ("http://ssh.example.com", "", false),
            ("http://ssh.example.com", "*.example.com", true),
            ("http://ssh.example.com", "*.Example.com.", true),
            ("http://example.com", "*.example.com", false),
            ("http://example.com", "*.com", true),
            ("http://ssh.example.com", "*example.com", false),
            ("http://ssh.example.com:8080", "ssh.example.com:8080", true),
            ("http://ssh.example.com:8080", "*.example.com:8080, x", true),
            ("http://ssh.example.com:8080", "ssh.example.com:80", false),
            ("http://ssh.example.com", "ssh.example.com:80", true),
            ("https://ssh.example.com", ".example.com:443", true),
            ("http://192.0.2.1:8080", "192.0.2.1:8080", true),
            ("http://192.0.2.1:8080", "192.0.2.1:80", false),
            ("http://192.0.2.1:8080", "10.0.0.0/8\n192.0.2.0/24", true),
            ("http://[fd00::1]:8080", "[fd00::1]:8080", true),
            ("http://[fd00::1]:8080", "[fd00::1]:80", false),
            ("http://[fd00::1]:8080", "[fd00::1]", true),
            ("http://[fd00::1]:8080", "fd00::1", true),
            ("http://127.0.0.1:8080", "127.0.0.0/8", true),
            ("http://127.0.0.1:8080", "localhost", false),
            ("http://[fd00::1]:8080", "fd00::/8", true),
            ("http://[fd00::1]:8080", "fd00::2", false),
        ] {
            let forward = forward(
                proxy,
                &[
                    ("http_proxy", "http://a:1"),
                    ("https_proxy", "http://a:1"),
                    ("NO_PROXY", hosts),
                ],
            );
            assert_eq!(forward.unwrap().is_none(), is_exempt, "{proxy} and {hosts:?}");
        }
    }

    #[test]
    fn a_faulty_variable_is_named_without_its_password_if_it_would_be_used() {
        for (value, expected) in [
            ("socks4://u:s3cret@a:1", "all_proxy in the environment: a SOCKS proxy"),
            (
                "ftp://u:s3cret@a",
                "all_proxy in the environment: the proxy URL must begin with",
            ),
            (
                "http://u:s3cret@a:x",
                "all_proxy in the environment: the port of the proxy URL",
            ),
            ("u:s3cret", "all_proxy in the environment: the port of the proxy URL"),
            (
                "http://u:s3/cret@a",
                "all_proxy in the environment: the proxy URL takes no path, query or fragment (in a password",
            ),
        ] {
            let line = forward("http://p", &[("all_proxy", value)]).unwrap_err();
            assert!(line.starts_with(expected) && line.contains("--no-env-proxy"), "{line}");
            assert!(!line.contains("s3cret"), "{line}");
            assert_eq!(
                forward("http://p", &[("all_proxy", value), ("no_proxy", "p")]),
                Ok(None)
            );
        }
    }
}

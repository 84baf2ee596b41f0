//! The HTTP proxy of the user's own network, from the environment, through which the proxy of `--proxy` is reached.
//!
//! The variables and their order are those of curl(1), section ENVIRONMENT, and `HTTP_PROXY`, which curl does not read.
//! The tunnel relays the bytes unchanged: TLS to an `https://` proxy is end to end.

use std::ffi::{OsStr, OsString};
use std::fmt;

use anyhow::{anyhow, ensure};
use hyper_util::client::proxy::matcher::Matcher;
use tokio::io::{AsyncRead, AsyncWrite};

use super::deadline::Deadline;
use super::head::{Request, Wanted};
use super::url::{ProxyUrl, ProxyUrlError, Scheme};
use crate::base::secret::Secret;
use crate::uplink::error::{ClientError, Retry};

/// A proxy that a variable of the environment names.
#[derive(Clone, Debug)]
pub struct ForwardProxy {
    url: ProxyUrl,
    variable: &'static str,
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
        let url = parse(&url).map_err(|fault| {
            anyhow!("{name} in the environment: {fault} (--no-env-proxy ignores it, NO_PROXY exempts hosts)")
        })?;
        Ok(Some(Self { url, variable: name }))
    }

    /// Returns its URL, whose `Display` hides the password.
    pub(crate) fn url(&self) -> &ProxyUrl {
        &self.url
    }

    /// Opens a tunnel to `proxy` over this connection.
    pub(crate) async fn open(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        proxy: &ProxyUrl,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let target = proxy.authority().to_string();
        let wanted = Wanted::Tunnel {
            target: &target,
            end_marker: None,
            session: None,
        };
        let request = Request {
            wanted: &wanted,
            authorization: self.url.authorization().map(Secret::from),
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
            Retry::Immediately => ClientError::Soon,
            Retry::Never | Retry::WithBackoff => ClientError::WithPauses,
        };
        class(anyhow!(error).context(format!(
            "{self} in the environment does not reach the proxy at {} (--no-env-proxy ignores it)",
            proxy.authority()
        )))
    }
}

/// Prints its URL, and the variable that names it.
impl fmt::Display for ForwardProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.url, self.variable)
    }
}

/// Parses the URL of a variable. No error quotes it, as it may hold a password.
fn parse(url: &OsStr) -> anyhow::Result<ProxyUrl> {
    let url = url.to_str().ok_or(ProxyUrlError::BadHost)?;
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let is_socks = scheme.to_ascii_lowercase().starts_with("socks");
    ensure!(!is_socks, "a SOCKS proxy, which connect does not speak");
    Ok(format!("{scheme}://{rest}").parse()?)
}

/// Returns whether `NO_PROXY` exempts the host of the proxy.
fn is_exempt(proxy: &ProxyUrl, hosts: &str) -> bool {
    // A `*` exempts every host. The matcher below accepts it for names only, not for addresses.
    if hosts.split([',', ' ']).any(|host| host == "*") {
        return true;
    }
    let Ok(uri) = format!("http://{}/", proxy.authority()).parse::<http::Uri>() else {
        return false;
    };
    // curl accepts spaces between the names, too.
    let hosts: Vec<_> = hosts.split_whitespace().collect();
    let matcher = Matcher::builder().http("http://any").no(hosts.join(",")).build();
    matcher.intercept(&uri).is_none()
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
    fn no_proxy_exempts_names_with_those_below_and_addresses() {
        for (proxy, hosts, is_exempt) in [
            ("http://ssh.example.com", "example.com", true),
            ("http://ssh.example.com:8080", ".example.com,other", true),
            ("http://ssh.example.com", "other ssh.example.com", true),
            ("http://ssh.example.com", "SSH.Example.com", true),
            ("http://ssh.example.com", "h.example.com", false),
            ("http://ssh.example.com", "*", true),
            ("http://ssh.example.com", "", false),
            ("http://127.0.0.1:8080", "127.0.0.0/8", true),
            ("http://127.0.0.1:8080", "localhost", false),
            ("http://[fd00::1]:8080", "fd00::/8", true),
            ("http://[fd00::1]:8080", "fd00::2", false),
        ] {
            let forward = forward(proxy, &[("http_proxy", "http://a:1"), ("NO_PROXY", hosts)]);
            assert_eq!(forward.unwrap().is_none(), is_exempt, "{proxy} and {hosts:?}");
        }
    }

    #[test]
    fn a_faulty_variable_is_named_without_its_password_if_it_would_be_used() {
        for (value, expected) in [
            ("socks5h://u:s3cret@a:1", "all_proxy in the environment: a SOCKS proxy"),
            (
                "ftp://u:s3cret@a",
                "all_proxy in the environment: the proxy URL must begin with",
            ),
            (
                "http://u:s3cret@a:x",
                "all_proxy in the environment: the port of the proxy URL",
            ),
            ("u:s3cret", "all_proxy in the environment: the port of the proxy URL"),
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

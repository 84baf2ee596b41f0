//! The `host:port` that a CONNECT asks for: parsed once, strictly, into a value that cannot be wrong.

use std::fmt;
use std::net::Ipv6Addr;
use std::num::NonZeroU16;
use std::str::FromStr;

/// A request target in authority form (RFC 9112 section 3.2.3), in its canonical spelling.
///
/// The host is lower case and has no trailing dot; an IPv6 literal is kept without brackets in its RFC 5952 form. Two
/// authorities that mean the same are equal, so an exact map can hold them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Authority {
    host: Box<str>,
    port: NonZeroU16,
}

impl Authority {
    /// Returns the host: a registered name or IPv4 address in lower case, or an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the TCP port, 1 to 65535.
    pub fn port(&self) -> u16 {
        self.port.get()
    }
}

/// Displays `host:port`, with brackets around an IPv6 address: the form of a request target.
impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Authority {
    type Err = AuthorityError;

    fn from_str(text: &str) -> Result<Self, AuthorityError> {
        let (host, port) = split(text)?;
        Ok(Self {
            host: parse_host(host)?,
            port: parse_port(port)?,
        })
    }
}

/// Why a text is not an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.phrase())]
pub enum AuthorityError {
    /// `http://host:port`, `/path`, `*` or a query: a request target in another form.
    NotAuthorityForm,
    /// `user@host:port`: CONNECT takes no userinfo (RFC 9110 section 9.3.6).
    UserInfo,
    /// Nothing before the colon, or nothing at all.
    NoHost,
    /// No colon, or nothing after it; there is no default port.
    NoPort,
    /// The port is not 1 to 5 digits that make 1 to 65535.
    BadPort,
    /// Several colons outside brackets: an IPv6 address needs brackets (RFC 3986 section 3.2.2).
    UnbracketedIpv6,
    /// Brackets without an IPv6 address or with a zone identifier, or not closed, or followed by other than a colon.
    BadIpLiteral,
    /// An empty label, a label over 63 octets, or a name over 253 (RFC 1035 section 2.3.4).
    BadLabel,
    /// A byte other than letters, digits, `-`, `_` and `.`.
    BadHostByte,
}

impl AuthorityError {
    /// Returns a short ASCII sentence that names the error: the reason phrase of the 400.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::NotAuthorityForm => "the request target must be host:port",
            Self::UserInfo => "the request target must not hold userinfo",
            Self::NoHost => "the request target has no host",
            Self::NoPort => "the request target has no port",
            Self::BadPort => "the port must be 1 to 65535 in decimal digits",
            Self::UnbracketedIpv6 => "an IPv6 address needs brackets",
            Self::BadIpLiteral => "only an IPv6 address may stand in brackets",
            Self::BadLabel => "a label of the host name is empty or too long",
            Self::BadHostByte => "the host name holds a forbidden character",
        }
    }
}

/// Splits at the colon between host and port; the host keeps its brackets.
fn split(text: &str) -> Result<(&str, &str), AuthorityError> {
    if text.contains(['/', '?', '#', '*']) {
        return Err(AuthorityError::NotAuthorityForm);
    }
    if text.contains('@') {
        return Err(AuthorityError::UserInfo);
    }
    let host_end = match text.strip_prefix('[') {
        Some(_) => text.find(']').ok_or(AuthorityError::BadIpLiteral)? + 1,
        None if text.matches(':').count() > 1 => return Err(AuthorityError::UnbracketedIpv6),
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at(host_end);
    if host.is_empty() {
        return Err(AuthorityError::NoHost);
    }
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, port)),
        None if rest.is_empty() => Err(AuthorityError::NoPort),
        None => Err(AuthorityError::BadIpLiteral),
    }
}

fn parse_host(host: &str) -> Result<Box<str>, AuthorityError> {
    if let Some(literal) = host.strip_prefix('[') {
        let address: Ipv6Addr = literal
            .strip_suffix(']')
            .and_then(|inside| inside.parse().ok())
            .ok_or(AuthorityError::BadIpLiteral)?;
        return Ok(address.to_string().into());
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.is_empty() {
        return Err(AuthorityError::NoHost);
    }
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    {
        return Err(AuthorityError::BadHostByte);
    }
    if name.len() > MAX_NAME || name.split('.').any(|label| label.is_empty() || label.len() > MAX_LABEL) {
        return Err(AuthorityError::BadLabel);
    }
    Ok(name.to_ascii_lowercase().into())
}

fn parse_port(port: &str) -> Result<NonZeroU16, AuthorityError> {
    if port.is_empty() {
        return Err(AuthorityError::NoPort);
    }
    // `u16::from_str` takes a sign and any number of zeros: neither is a port here.
    if port.len() > MAX_PORT_DIGITS || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AuthorityError::BadPort);
    }
    port.parse().map_err(|_| AuthorityError::BadPort)
}

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
const MAX_PORT_DIGITS: usize = 5;

/// Returns a host without the domain of a cluster, if it has the usual one.
pub(crate) fn short_host(host: &str) -> &str {
    host.strip_suffix(".svc.cluster.local").unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_one_target_are_one_authority() {
        for (text, canonical) in [
            ("svc-a.ns.svc.cluster.local:80", "svc-a.ns.svc.cluster.local:80"),
            ("SVC-a.Ns.:22", "svc-a.ns:22"),
            ("10.0.0.1:022", "10.0.0.1:22"),
            ("under_score:1", "under_score:1"),
            ("[FD00:0::1]:22", "[fd00::1]:22"),
            ("[::ffff:127.0.0.1]:65535", "[::ffff:127.0.0.1]:65535"),
        ] {
            assert_eq!(text.parse::<Authority>().unwrap().to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn every_odd_spelling_is_refused_with_its_reason() {
        use AuthorityError::*;
        let long_label = format!("{}:22", "a".repeat(64));
        let long_name = format!("{}a:22", "a.".repeat(127));
        for (text, error) in [
            ("", NoHost),
            (":22", NoHost),
            (".:22", NoHost),
            ("h", NoPort),
            ("h:", NoPort),
            ("[fd00::1]", NoPort),
            ("h:0", BadPort),
            ("h:65536", BadPort),
            ("h:22x", BadPort),
            ("h:+22", BadPort),
            ("h:-1", BadPort),
            ("h: 22", BadPort),
            ("h:000022", BadPort),
            ("h:٢٢", BadPort),
            ("user@h:22", UserInfo),
            ("user:pass@h:22", UserInfo),
            ("http://h:22", NotAuthorityForm),
            ("/h:22", NotAuthorityForm),
            ("h:22/", NotAuthorityForm),
            ("h:22?x", NotAuthorityForm),
            ("*", NotAuthorityForm),
            ("fd00::1:22", UnbracketedIpv6),
            ("::1", UnbracketedIpv6),
            ("h:22:22", UnbracketedIpv6),
            ("[h]:22", BadIpLiteral),
            ("[127.0.0.1]:22", BadIpLiteral),
            ("[fe80::1%eth0]:22", BadIpLiteral),
            ("[fe80::1%25eth0]:22", BadIpLiteral),
            ("[::1:22", BadIpLiteral),
            ("[::1]22", BadIpLiteral),
            ("[]:22", BadIpLiteral),
            ("::1]:22", UnbracketedIpv6),
            ("h]:22", BadHostByte),
            ("h%00:22", BadHostByte),
            ("h\0:22", BadHostByte),
            ("h\u{e9}:22", BadHostByte),
            ("a b:22", BadHostByte),
            ("a..b:22", BadLabel),
            ("h..:22", BadLabel),
            (".h:22", BadLabel),
            (long_label.as_str(), BadLabel),
            (long_name.as_str(), BadLabel),
        ] {
            assert_eq!(text.parse::<Authority>(), Err(error), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(text in "\\PC{0,80}") {
            if let Ok(authority) = text.parse::<Authority>() {
                prop_assert_eq!(authority.to_string().parse::<Authority>(), Ok(authority));
            }
        }

        #[test]
        fn any_valid_name_and_port_parse(labels in proptest::collection::vec("[a-zA-Z0-9_-]{1,20}", 1..6), port in 1..=u16::MAX) {
            let text = format!("{}:{port}", labels.join("."));
            prop_assert_eq!(text.parse::<Authority>().unwrap().to_string(), text.to_ascii_lowercase());
        }
    }
}

//! The text forms of settings, one set for the configuration file and the annotations of a Service.
//!
//! A parser takes the text of one value. Its error says what was expected and is shown to the author of that text.
//! Rates, sizes and versions of the PROXY protocol are types with a [`FromStr`](std::str::FromStr) of their own.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use jiff::Timestamp;

use crate::base::authority::Authority;
use crate::base::text::{excerpt, is_unprintable};

/// Parses a text. The error ends with the text itself: ``expected `true` or `false` (found `yes`)``.
pub(crate) fn read<T, E: Display>(text: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, String> {
    parse(text).map_err(|error| format!("{error} (found `{}`)", shown(text)))
}

/// Returns `None` for the word that means no value, such as `off`; else parses the text.
pub(crate) fn unless<T, E: Display>(
    word: &str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, String> {
    if text == word {
        return Ok(None);
    }
    parse(text).map(Some).map_err(|error| format!("{error}, or `{word}`"))
}

/// Parses `true` or `false`.
pub(crate) fn boolean(text: &str) -> Result<bool, &'static str> {
    text.parse().map_err(|_| "expected `true` or `false`")
}

/// Returns a whole number from 1 to 4,294,967,295.
pub(crate) fn count(text: &str) -> Result<NonZeroU32, &'static str> {
    // `parse` takes a sign, too.
    let digits = Some(text).filter(|text| !text.starts_with('+'));
    digits
        .and_then(|text| text.parse().ok())
        .ok_or("expected a whole number of at least 1")
}

/// Returns a TCP port: 1 to 65,535.
pub(crate) fn port(text: &str) -> Result<u16, &'static str> {
    match text.parse() {
        // `parse` takes a sign, too.
        Ok(port) if port > 0 && !text.starts_with('+') => Ok(port),
        _ => Err("expected a port: 1 to 65535"),
    }
}

/// Returns a moment, as RFC 3339 writes it with any offset; `None` if it is none.
pub(crate) fn moment(text: &str) -> Option<SystemTime> {
    let zoned = text.parse().map(|moment: Timestamp| SystemTime::from(moment));
    // The last days of the year 9999 are too late for a `Timestamp`, and may mean never.
    zoned.or_else(|_| humantime::parse_rfc3339(text)).ok()
}

/// Returns a duration from 0 s to a year, in units up to weeks.
///
/// Months and years, which humantime reads too, are an error: `5M` would be five months where five minutes are meant.
pub(crate) fn duration(text: &str) -> Result<Duration, &'static str> {
    let mut units = text.split(|character: char| !character.is_alphabetic());
    if units.any(|unit| NO_UNITS.contains(&unit)) {
        return Err("months and years are not units here: expected a duration such as `250ms`, `5m` or `30d`");
    }
    match humantime::parse_duration(text) {
        Ok(duration) if duration <= YEAR => Ok(duration),
        Ok(_) => Err("must be at most 365d"),
        Err(_) => Err("expected a duration such as `250ms`, `10s` or `1h30m`"),
    }
}

/// Returns a duration of more than 0 s and of at most a year.
///
/// # Errors
/// The text is no duration, or one out of this range.
pub fn timeout(text: &str) -> Result<Duration, &'static str> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0s"),
        timeout => Ok(timeout),
    }
}

/// Returns a duration from 0 s to an hour, for a wait that may be switched off by 0 s.
pub(crate) fn brief(text: &str) -> Result<Duration, &'static str> {
    match duration(text)? {
        brief if brief <= HOUR => Ok(brief),
        _ => Err("must be at most 1h"),
    }
}

/// Returns a duration of more than 0 s and of at most an hour, for a deadline of a handshake.
pub(crate) fn brief_timeout(text: &str) -> Result<Duration, &'static str> {
    timeout(text)?;
    brief(text)
}

/// Returns a name of a client certificate: any text but the empty one.
pub(crate) fn client_name(text: &str) -> Result<Box<str>, &'static str> {
    match text {
        "" => Err("expected a name of a client certificate"),
        _ => Ok(text.into()),
    }
}

/// Returns whether a name has 1 to `max` bytes, no unprintable character, and no space at its ends.
pub(crate) fn is_name(name: &str, max: usize) -> bool {
    !name.is_empty() && name.len() <= max && name.trim() == name && !name.contains(is_unprintable)
}

/// Returns whether a name begins with `system:`, which Kubernetes reserves, in upper or lower case, or after spaces.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.trim_start()
        .get(..RESERVED.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(RESERVED))
}

/// Returns the name of a user or a group, as an authenticator reports it. Case matters.
pub(crate) fn user_name(text: &str) -> Result<Box<str>, &'static str> {
    match text {
        "" => Err("expected the name of a user or group"),
        "system:anonymous" | "system:unauthenticated" => {
            Err("a request without credentials reaches no target: expected the name of a user or group")
        }
        _ => Ok(text.into()),
    }
}

/// Returns a DNS name in lower case, without dots at its ends.
pub(crate) fn domain(text: &str) -> Result<Box<str>, &'static str> {
    let name = text.trim_matches('.').to_ascii_lowercase();
    match format!("{name}:1").parse::<Authority>() {
        Ok(_) => Ok(name.into()),
        Err(_) => Err("expected a DNS name such as `ssh.example.com`"),
    }
}

/// Returns whether a text is a DNS label in lower case (RFC 1123), such as the name of a Namespace.
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= 63 && !text.contains('.') && is_object_name(text)
}

/// Returns whether a text is safe as an object's name in a path of the API server: a long label, with dots inside.
pub(crate) fn is_object_name(text: &str) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_inner = |byte: u8| is_end(byte) || matches!(byte, b'-' | b'.');
    let mut ends = [text.bytes().next(), text.bytes().next_back()].into_iter();
    text.len() <= 253 && text.bytes().all(is_inner) && ends.all(|end| end.is_some_and(is_end))
}

/// Returns the name of a Kubernetes object: a value of a flag.
pub(crate) fn object_name(text: &str) -> Result<String, &'static str> {
    match is_object_name(text) {
        true => Ok(text.to_owned()),
        false => Err("expected lower case letters, digits, `-` and `.`"),
    }
}

/// Returns an IP address with the length of its prefix.
///
/// One of IPv4-mapped addresses would never match, since an IPv4 address is compared as such wherever it comes from.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let expected = "expected a network such as `10.0.0.0/8` or `fd00::/8`";
    let network: IpNet = text.parse().map_err(|_| expected)?;
    if let (IpAddr::V6(address), Some(length)) = (network.addr(), network.prefix_len().checked_sub(96))
        && let Some(v4) = address.to_ipv4_mapped()
    {
        return Err(format!("expected an IPv4 network in its own form, `{v4}/{length}`"));
    }
    Ok(network)
}

/// Returns a text that is not empty.
pub(crate) fn text(text: &str) -> Result<Box<str>, &'static str> {
    match text {
        "" => Err("expected a text"),
        _ => Ok(text.into()),
    }
}

/// Returns an IP address with a port, to listen at or to query.
///
/// # Errors
/// The text is a name, or has no port.
pub fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "give an IP address and a port, such as 127.0.0.1:2222 or [::]:2222")
}

/// Returns a text as an error shows it: at most 60 characters, escaped.
pub(crate) fn shown(text: &str) -> String {
    excerpt(text, MAX_SHOWN)
}

/// The longest deadline of a handshake: each handshake holds a descriptor, and clients give up long before.
const HOUR: Duration = Duration::from_secs(3600);
/// The longest duration: a longer one is probably a mistyped unit, and `Instant::now() + Duration::MAX` panics.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// The units of humantime that are longer than a week.
const NO_UNITS: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];
/// In characters.
const MAX_SHOWN: usize = 60;
/// The start of the names that Kubernetes reserves.
const RESERVED: &str = "system:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_letters_digits_and_hyphens_and_no_hyphen_at_an_end() {
        for (text, expected) in [
            ("a", [true; 2]),
            ("0-a", [true; 2]),
            ("a.b", [false, true]),
            ("", [false; 2]),
            ("-a", [false; 2]),
            ("a-", [false; 2]),
            (".a", [false; 2]),
            ("a.", [false; 2]),
            ("A", [false; 2]),
            ("a/b", [false; 2]),
            ("a_b", [false; 2]),
            ("ä", [false; 2]),
        ] {
            assert_eq!([is_label(text), is_object_name(text)], expected, "{text}");
        }
        let long = |length: usize| "a".repeat(length);
        assert!(is_label(&long(63)) && !is_label(&long(64)));
        assert!(is_object_name(&long(253)) && !is_object_name(&long(254)));
    }

    #[test]
    fn durations_have_their_bounds() {
        type Parse = fn(&str) -> Result<Duration, &'static str>;
        let secs = |secs| Ok(Duration::from_secs(secs));
        let (zero, hour, year) = (
            Err("must be more than 0s"),
            Err("must be at most 1h"),
            Err("must be at most 365d"),
        );
        let day = 24 * 3600;
        for (parse, texts) in [
            (
                duration as Parse,
                [
                    ("0s", secs(0)),
                    ("2h", secs(7200)),
                    ("365d", secs(365 * day)),
                    ("366d", year),
                ],
            ),
            (
                timeout,
                [
                    ("0s", zero),
                    ("2h", secs(7200)),
                    ("365d", secs(365 * day)),
                    ("366d", year),
                ],
            ),
            (
                brief,
                [("0s", secs(0)), ("1h", secs(3600)), ("61m", hour), ("366d", year)],
            ),
            (
                brief_timeout,
                [("0s", zero), ("1h", secs(3600)), ("61m", hour), ("366d", year)],
            ),
        ] {
            for (text, expected) in texts {
                assert_eq!(parse(text), expected, "{text}");
            }
            assert!(parse("10").is_err_and(|error| error.starts_with("expected a duration")));
        }
    }

    #[test]
    fn months_and_years_are_no_units() {
        for text in [
            "5M", "5 M", "1h 5M", "5M1s", "0.5M", "1month", "2 months", "1y", "1yr", "1yrs", "1 year", "1years",
        ] {
            assert!(humantime::parse_duration(text).is_ok(), "{text}");
            let refused = duration(text).is_err_and(|error| error.starts_with("months and years"));
            assert!(refused, "{text}");
        }
        for text in ["5m", "5min", "5 minutes", "1d 2h", "52w", "10ms", "7days"] {
            assert!(duration(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_word_may_stand_for_no_value() {
        assert_eq!(unless("unlimited", "unlimited", count), Ok(None));
        assert_eq!(unless("unlimited", "3", count), Ok(NonZeroU32::new(3)));
        assert_eq!(
            unless("unlimited", "off", count),
            Err("expected a whole number of at least 1, or `unlimited`".to_owned())
        );
    }

    #[test]
    fn an_error_ends_with_the_text() {
        assert_eq!(read("22", port), Ok(22));
        assert_eq!(
            read("0", port),
            Err("expected a port: 1 to 65535 (found `0`)".to_owned())
        );
        assert_eq!(
            read("\u{1b}", boolean),
            Err("expected `true` or `false` (found `\\u{1b}`)".to_owned())
        );
    }
}

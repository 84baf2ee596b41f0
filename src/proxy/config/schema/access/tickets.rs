//! The section `access.tickets`: short credentials for clients that cannot carry a token.

use std::time::Duration;

use crate::base::values;
use crate::policy::access::{SecretName, TicketOptions};
use crate::proxy::config::form::{BOOLEAN, DURATION, Form, Schema};
use crate::proxy::config::section::Section;

/// Reads the section; `None` unless it is enabled. The other keys are checked in either case.
pub(super) fn read(section: &mut Section<'_>) -> Option<TicketOptions> {
    let default = TicketOptions::default();
    let enabled = section.value("enabled", &BOOLEAN).unwrap_or_default();
    let options = TicketOptions {
        ttl: section.value("ttl", &TTL).unwrap_or(default.ttl),
        secret: section.value("secret", &SECRET).unwrap_or(default.secret),
    };
    enabled.then_some(options)
}

const TTL: Form<Duration> = Form {
    parse: ttl,
    schema: DURATION.schema,
};
const SECRET: Form<SecretName> = Form {
    parse: secret,
    schema: Schema::Pattern("^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
};

fn ttl(text: &str) -> Result<Duration, &'static str> {
    match values::duration(text)? {
        short if short < SHORTEST => Err("must be at least 10m"),
        long if long > LONGEST => Err("must be at most 1d"),
        ttl => Ok(ttl),
    }
}

/// `NAME` or `NAMESPACE/NAME`, each as the API server accepts it (RFC 1123).
fn secret(text: &str) -> Result<SecretName, &'static str> {
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let is_name = |name: &str, longest: usize, has_dots: bool| {
        let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_inner = |byte: u8| is_end(byte) || byte == b'-' || (has_dots && byte == b'.');
        let ends = [name.bytes().next(), name.bytes().next_back()];
        name.len() <= longest && name.bytes().all(is_inner) && ends.into_iter().all(|end| end.is_some_and(is_end))
    };
    if !is_name(name, 253, true) || !namespace.is_none_or(|namespace| is_name(namespace, 63, false)) {
        return Err("expected the name of a Secret, or NAMESPACE/NAME, in lower case letters, digits, `-` and `.`");
    }
    Ok(SecretName {
        namespace: namespace.map(Box::from),
        name: name.into(),
    })
}

/// Ten times what clocks may differ by.
const SHORTEST: Duration = Duration::from_mins(10);
const LONGEST: Duration = Duration::from_hours(24);

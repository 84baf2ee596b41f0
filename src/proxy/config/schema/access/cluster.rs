//! The section `access.kubernetes`: the API server that reviews tokens and access.

use std::path::PathBuf;
use std::time::Duration;

use crate::base::values;
use crate::policy::access::{Check, Kubernetes};
use crate::proxy::config::form::{BOOLEAN, DURATION, Form, Schema};
use crate::proxy::config::schema::kubernetes::kubeconfig;
use crate::proxy::config::section::{Field, Section};

/// Reads the section, `None` unless it is enabled, and its kubeconfig. The other keys are checked in either case.
///
/// `knows_clients`: whether a port asks clients for certificates. `has_tickets`: whether tickets are read from this cluster.
pub(super) fn read(
    section: &mut Section<'_>,
    knows_clients: bool,
    has_tickets: bool,
) -> (Option<Kubernetes>, Option<PathBuf>) {
    let default = Kubernetes::default();
    let enabled = section.value("enabled", &BOOLEAN).unwrap_or_default();
    let kubeconfig = kubeconfig(section, enabled || has_tickets);
    let options = Kubernetes {
        audiences: section
            .field("audiences")
            .map_or(default.audiences, |field| audiences(&field)),
        certificates: certificates(section, knows_clients).unwrap_or(default.certificates),
        check: section
            .field("check")
            .and_then(|field| check(&field))
            .unwrap_or(default.check),
        recheck: section.value("recheck", &RECHECK).unwrap_or(default.recheck),
        watch_rbac: section.value("watch_rbac", &BOOLEAN).unwrap_or(default.watch_rbac),
        stale: section.value("stale", &STALE).unwrap_or(default.stale),
    };
    (enabled.then_some(options), kubeconfig)
}

fn audiences(field: &Field<'_>) -> Vec<Box<str>> {
    let items = field.items();
    if field.is_list() && items.is_empty() {
        field.fault("at least one audience is needed; `\"\"` is the API server's own");
    }
    items.iter().filter_map(|item| item.parse(&AUDIENCE)).collect()
}

fn certificates(section: &mut Section<'_>, knows_clients: bool) -> Option<bool> {
    let field = section.field("certificates")?;
    let certificates = field.parse(&BOOLEAN)?;
    if certificates && !knows_clients {
        field.note("has no effect: no client has a certificate without `tls.client_auth` and a port with `tls`");
    }
    Some(certificates)
}

/// A word, or a map with the parts of the right.
fn check(field: &Field<'_>) -> Option<Check> {
    let either = field.word_or_map();
    let read = |field: &Field<'_>| match field.is_map() {
        true => field.section(right).flatten(),
        false => field.parse(&CHECK),
    };
    either.iter().find_map(read)
}

fn right(section: &mut Section<'_>) -> Option<Check> {
    let verb = section.required("verb").and_then(|field| field.parse(&PART));
    let group = section.value("group", &PART_OR_NONE);
    let resource = section.required("resource").and_then(|field| field.parse(&PART));
    let subresource = section.value("subresource", &PART_OR_NONE);
    let resource = resource?;
    Some(Check {
        verb: verb?,
        group: group.unwrap_or_default(),
        // No pod has the name of its Service: the question is about all of them.
        named: &*resource != "pods",
        resource,
        subresource: subresource.unwrap_or_default(),
    })
}

const AUDIENCE: Form<Box<str>> = Form {
    parse: |text| Ok(text.into()),
    schema: Schema::Pattern(""),
};
const CHECK: Form<Check> = Form {
    parse: known_check,
    schema: Schema::Words(&["ssh", "port-forward"]),
};
const PART: Form<Box<str>> = Form {
    parse: part,
    schema: Schema::Pattern("^[a-z][-a-z0-9.]*$"),
};
const PART_OR_NONE: Form<Box<str>> = Form {
    parse: |text| match text {
        "" => Ok(Box::default()),
        text => part(text),
    },
    schema: Schema::Pattern("^([a-z][-a-z0-9.]*)?$"),
};
const RECHECK: Form<Duration> = Form {
    parse: recheck,
    schema: DURATION.schema,
};
const STALE: Form<Duration> = Form {
    parse: stale,
    schema: DURATION.schema,
};

fn known_check(text: &str) -> Result<Check, &'static str> {
    match text {
        "ssh" => Ok(Check::default()),
        "port-forward" => Ok(Check::port_forward()),
        _ => Err("expected `ssh`, `port-forward`, or a map with `verb`, `group`, `resource` and `subresource`"),
    }
}

/// A verb, a group, a resource or a subresource, as a rule of a Role has it.
fn part(text: &str) -> Result<Box<str>, &'static str> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    match text {
        "*" => Err("a question is about one thing: `*` is for the rule of a Role"),
        text if text.contains('/') => Err("expected one part: what follows the `/` is the `subresource`"),
        text if text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(is_inner) => {
            Ok(text.into())
        }
        _ => Err("expected lower case letters, digits, `-` and `.`, such as `services`"),
    }
}

fn recheck(text: &str) -> Result<Duration, &'static str> {
    match values::duration(text)? {
        often if often < FREQUENT => Err("must be at least 10s: answers count for that long"),
        seldom if seldom > DAY => Err("must be at most 1d: a user keeps a lost right for that long"),
        recheck => Ok(recheck),
    }
}

fn stale(text: &str) -> Result<Duration, &'static str> {
    match values::duration(text)? {
        stale if stale <= DAY => Ok(stale),
        _ => Err("must be at most 1d: a user keeps a lost right for that long"),
    }
}

const FREQUENT: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(24 * 3600);

//! The section `allowlist.kubernetes`: the cluster whose Services are targets.

use std::path::{Path, PathBuf};

use crate::base::values::domain;
use crate::kubernetes::{Options, files};
use crate::proxy::config::form::{BOOLEAN, BRIEF, DOMAIN, Form, NETWORK, PATH, PORT, Schema};
use crate::proxy::config::section::Section;

/// Reads the section, `None` unless it is enabled, and its kubeconfig. The other keys are checked in either case.
///
/// `knows_clients`: whether a port asks clients for certificates. `is_shared`: whether `access` reads the same cluster.
pub(super) fn read(
    section: &mut Section<'_>,
    knows_clients: bool,
    is_shared: bool,
) -> (Option<Options>, Option<PathBuf>) {
    let default = Options::default();
    let enabled = section.value("enabled", &BOOLEAN).unwrap_or_default();
    let judge = |judge: Judge| enabled.then_some(judge);
    let options = Options {
        kubeconfig: kubeconfig(section, enabled || is_shared),
        namespaces: section.list("namespaces", &NAMESPACE),
        namespace_selector: section.value("namespace_selector", &SELECTOR),
        selector: section.value("selector", &SELECTOR).unwrap_or(default.selector),
        annotation_prefix: section
            .value("annotation_prefix", &ANNOTATION_PREFIX)
            .unwrap_or(default.annotation_prefix),
        cluster_domain: section
            .value("cluster_domain", &DOMAIN)
            .unwrap_or(default.cluster_domain),
        public_suffixes: section.list("public_suffixes", &DOMAIN),
        alias_port: section.value("alias_port", &PORT).unwrap_or(default.alias_port),
        allowed_cidrs: section.list("allowed_cidrs", &NETWORK),
        wait_for_ready: section
            .value("wait_for_ready", &BRIEF)
            .unwrap_or(default.wait_for_ready),
        keeps_removed: section
            .value("on_removal", &ON_REMOVAL)
            .unwrap_or(default.keeps_removed),
        wakes: section.value("wake", &BOOLEAN).unwrap_or(default.wakes),
        wake_timeout: section.value("wake_timeout", &BRIEF).unwrap_or(default.wake_timeout),
        reports_activity: section
            .value("report_activity", &BOOLEAN)
            .unwrap_or(default.reports_activity),
        writes_events: section.value("events", &BOOLEAN).unwrap_or(default.writes_events),
        snapshot_file: file(section, "snapshot_file", judge(files::snapshot_fault)),
        knows_clients,
        knows_users: default.knows_users,
    };
    let kubeconfig = options.kubeconfig.clone();
    (enabled.then_some(options), kubeconfig)
}

/// Reads a kubeconfig. One that nothing uses is a fault: its author believes that it is.
pub(super) fn kubeconfig(section: &mut Section<'_>, is_used: bool) -> Option<PathBuf> {
    let unused: Judge = |_| Some("nothing that is enabled reads this cluster".to_owned());
    let judge = if is_used { files::kubeconfig_fault } else { unused };
    file(section, "kubeconfig", Some(judge))
}

/// Finds the reason why this host has no such file.
type Judge = fn(&Path) -> Option<String>;

/// Reads the path of a file, and judges it.
fn file(section: &mut Section<'_>, name: &'static str, judge: Option<Judge>) -> Option<PathBuf> {
    let field = section.field(name)?;
    let path = field.parse(&PATH)?;
    if let Some(reason) = judge.and_then(|judge| judge(&path)) {
        field.dispensable_fault(reason);
    }
    Some(path)
}

const NAMESPACE: Form<Box<str>> = Form {
    parse: namespace,
    schema: Schema::Pattern("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"),
};
const SELECTOR: Form<Box<str>> = Form {
    parse: selector,
    schema: Schema::Pattern("^[-A-Za-z0-9_./=!,()<> \\t\\r\\n]*[A-Za-z0-9][-A-Za-z0-9_./=!,()<> \\t\\r\\n]*$"),
};
const ANNOTATION_PREFIX: Form<Box<str>> = Form {
    parse: annotation_prefix,
    schema: Schema::Pattern("./$"),
};
const ON_REMOVAL: Form<bool> = Form {
    parse: keeps_removed,
    schema: Schema::Words(&["close", "keep"]),
};

/// The name of a Namespace (RFC 1123).
fn namespace(text: &str) -> Result<Box<str>, &'static str> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&text.len()) && text.bytes().all(is_inner) && !text.starts_with('-') && !text.ends_with('-') {
        Ok(text.into())
    } else {
        Err("expected the name of a Namespace: lower case letters, digits and `-`")
    }
}

/// Reads a label selector, whose grammar is the API server's. An empty one would select everything, and so would one that
/// begins with a NUL, where the API server stops to read.
fn selector(text: &str) -> Result<Box<str>, &'static str> {
    let text = text.trim();
    let is_empty = !text.contains(|character: char| character.is_ascii_alphanumeric());
    match is_empty || !text.is_ascii() || text.contains('\0') {
        true => Err("expected a label selector such as `switchboard.dev/expose=true`"),
        false => Ok(text.into()),
    }
}

fn annotation_prefix(text: &str) -> Result<Box<str>, &'static str> {
    match text.strip_suffix('/').map(domain) {
        Some(Ok(_)) => Ok(text.into()),
        _ => Err("expected a DNS name with a slash, such as `switchboard.dev/`"),
    }
}

fn keeps_removed(text: &str) -> Result<bool, &'static str> {
    match text {
        "close" => Ok(false),
        "keep" => Ok(true),
        _ => Err("expected `close` or `keep`"),
    }
}

//! The section `access`: how users are proved, and what becomes of requests without one.

use std::path::PathBuf;

use crate::policy::access::passwords::Users;
use crate::policy::access::{AtExpiry, Cleartext, Mode, Options};
use crate::proxy::config::form::{BOOLEAN, Form, PATH, Schema};
use crate::proxy::config::section::Section;

mod cluster;
mod issuers;
mod tickets;

/// Reads the section. `knows_clients`: whether a port asks clients for certificates.
pub(super) fn read(section: &mut Section<'_>, knows_clients: bool) -> Options {
    let faults = section.faults();
    let mode_field = section.field("mode");
    let mode = mode_field.as_ref().and_then(|field| field.parse(&MODE));
    let tickets = section
        .field("tickets")
        .and_then(|field| field.section(tickets::read))
        .flatten();
    let (kubernetes, kubeconfig) = section
        .field("kubernetes")
        .and_then(|field| field.section(|keys| cluster::read(keys, knows_clients, tickets.is_some())))
        .unwrap_or_default();
    let options = Options {
        mode: mode.unwrap_or_default(),
        cleartext: section.value("cleartext", &CLEARTEXT).unwrap_or_default(),
        hide_names: section.value("hide_names", &BOOLEAN).unwrap_or_default(),
        at_expiry: section.value("at_expiry", &AT_EXPIRY).unwrap_or_default(),
        kubeconfig,
        kubernetes,
        oidc: issuers::read(section),
        users: section.field("users").and_then(|field| field.section(users)).flatten(),
        tickets,
    };
    // A fault in a way to prove users is one thing to mend, and not two.
    if section.faults() == faults
        && !proves_users(&options)
        && let Some(field) = mode_field
        && options.mode != Mode::Open
    {
        field.fault("no user can be proved: it needs `kubernetes`, `oidc`, `users` or `tickets`");
    }
    options
}

/// Whether there is a way to prove a user.
pub(in crate::proxy::config) fn proves_users(options: &Options) -> bool {
    options.kubernetes.is_some() || !options.oidc.is_empty() || options.users.is_some() || options.tickets.is_some()
}

fn users(section: &mut Section<'_>) -> Option<PathBuf> {
    let field = section.required("file")?;
    let path = field.parse(&PATH)?;
    let users = Users::open(&path);
    if let Some(weakness) = users.as_ref().ok().and_then(Users::weakness) {
        field.warning(format!("{}: {weakness}", path.display()));
    }
    for fault in users.err().unwrap_or_default() {
        field.dispensable_fault(format!("{}: {fault}", path.display()));
    }
    Some(path)
}

const MODE: Form<Mode> = Form {
    parse: mode,
    schema: Schema::Words(&["open", "report", "enforce"]),
};
const CLEARTEXT: Form<Cleartext> = Form {
    parse: cleartext,
    schema: Schema::Words(&["refuse", "allow"]),
};
const AT_EXPIRY: Form<AtExpiry> = Form {
    parse: at_expiry,
    schema: Schema::Words(&["keep", "close"]),
};

fn mode(text: &str) -> Result<Mode, &'static str> {
    match text {
        "open" => Ok(Mode::Open),
        "report" => Ok(Mode::Report),
        "enforce" => Ok(Mode::Enforce),
        _ => Err("expected `open`, `report` or `enforce`"),
    }
}

fn cleartext(text: &str) -> Result<Cleartext, &'static str> {
    match text {
        "refuse" => Ok(Cleartext::Refuse),
        "allow" => Ok(Cleartext::Allow),
        _ => Err("expected `refuse` or `allow`"),
    }
}

fn at_expiry(text: &str) -> Result<AtExpiry, &'static str> {
    match text {
        "keep" => Ok(AtExpiry::Keep),
        "close" => Ok(AtExpiry::Close),
        _ => Err("expected `keep` or `close`"),
    }
}

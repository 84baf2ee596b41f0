//! The section `access`: how users are proved, and what becomes of requests without one.

use std::path::{Path, PathBuf};

use crate::access::{AtExpiry, Cleartext, Mode, Options};
use crate::config::form::{BOOLEAN, Form, PATH, Schema};
use crate::config::section::{Field, Section};
use crate::file;

mod cluster;
mod issuers;

/// Reads the section. `knows_clients`: whether a port asks clients for certificates.
pub(super) fn read(section: &mut Section<'_>, knows_clients: bool) -> Options {
    let faults = section.faults();
    let mode_field = section.field("mode");
    let mode = mode_field.as_ref().and_then(|field| field.parse(&MODE));
    let options = Options {
        mode: mode.unwrap_or_default(),
        cleartext: section.value("cleartext", &CLEARTEXT).unwrap_or_default(),
        hide_names: section.value("hide_names", &BOOLEAN).unwrap_or_default(),
        at_expiry: section.value("at_expiry", &AT_EXPIRY).unwrap_or_default(),
        kubernetes: section
            .field("kubernetes")
            .and_then(|field| field.section(|keys| cluster::read(keys, knows_clients)))
            .flatten(),
        oidc: issuers::read(section),
        users: section.field("users").and_then(|field| field.section(users)).flatten(),
        tickets: None,
    };
    // A fault in a way to prove users is one thing to mend, and not two.
    if section.faults() == faults
        && !proves_users(&options)
        && let Some(field) = mode_field
        && options.mode != Mode::Open
    {
        field.fault("no user can be proved: it needs `kubernetes`, `oidc` or `users`");
    }
    options
}

/// Whether there is a way to prove a user.
pub(in crate::config) fn proves_users(options: &Options) -> bool {
    options.kubernetes.is_some() || !options.oidc.is_empty() || options.users.is_some()
}

fn users(section: &mut Section<'_>) -> Option<PathBuf> {
    path(&section.required("file")?, readable_fault)
}

/// Finds the reason why a file cannot be used.
type Judge = fn(&Path) -> Option<String>;

/// Reads the path of a file, and judges the file. A process lives without it: its users are not proved until it is there.
fn path(field: &Field<'_>, judge: Judge) -> Option<PathBuf> {
    let path = field.parse(&PATH)?;
    if let Some(reason) = judge(&path) {
        field.dispensable_fault(reason);
    }
    Some(path)
}

fn readable_fault(path: &Path) -> Option<String> {
    let error = file::open(path).err()?;
    Some(format!("cannot be read: {error}"))
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

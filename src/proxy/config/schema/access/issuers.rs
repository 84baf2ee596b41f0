//! The list `access.oidc`: the issuers whose tokens are verified here.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use http::Uri;

use crate::base::file;
use crate::policy::access::{Issuer, Jwks, oidc};
use crate::proxy::config::form::{Form, PATH, Schema};
use crate::proxy::config::section::{Field, Section};

/// Reads the list.
pub(super) fn read(section: &mut Section<'_>) -> Vec<Issuer> {
    let entries = section.field("oidc").map(|field| field.items()).unwrap_or_default();
    let mut lines = HashMap::new();
    entries
        .iter()
        .filter_map(|entry| entry.section(|keys| issuer(keys, &mut lines)).flatten())
        .collect()
}

/// `lines`: the line of each issuer that was read before. Two entries for one `iss` would be ambiguous.
fn issuer(section: &mut Section<'_>, lines: &mut HashMap<Box<str>, u64>) -> Option<Issuer> {
    let issuer = section.required("issuer").and_then(|field| {
        let issuer = field.parse(&TEXT)?;
        if let Some(line) = lines.insert(issuer.clone(), field.line()) {
            field.fault(format!(
                "the same issuer is on line {line} too: add its audiences there"
            ));
        }
        Some(issuer)
    });
    let audiences = section.required("audiences").map(|field| audiences(&field));
    let username = section.value("username", &TEXT).unwrap_or_else(|| SUBJECT.into());
    let groups = section.value("groups", &TEXT);
    let jwks_field = section.required("jwks");
    let jwks = jwks_field.as_ref().and_then(|field| field.parse(&JWKS));
    let ca_field = section.field("ca");
    if let (Some(Jwks::File(_)), Some(field)) = (&jwks, &ca_field) {
        field.fault("has no effect with a `jwks` that is a file");
    }
    let ca = ca_field.as_ref().and_then(|field| field.parse(&PATH));
    let issuer = Issuer {
        issuer: issuer?,
        audiences: audiences?,
        username,
        groups,
        jwks: jwks?,
        ca,
    };
    files(&issuer, jwks_field.as_ref(), ca_field.as_ref());
    Some(issuer)
}

/// Judges the files of an issuer.
fn files(issuer: &Issuer, jwks: Option<&Field<'_>>, ca: Option<&Field<'_>>) {
    if let (Jwks::File(path), Some(field)) = (&issuer.jwks, jwks)
        && let Err(reason) = keys_of(path)
    {
        field.dispensable_fault(format!("{}: {reason}", path.display()));
    }
    if let (Jwks::Url(_), Some(path), Some(field)) = (&issuer.jwks, &issuer.ca, ca)
        && let Err(reason) = oidc::check_authorities(path)
    {
        field.dispensable_fault(reason);
    }
}

fn keys_of(path: &Path) -> Result<usize, Box<str>> {
    let bytes = file::read(path, LARGEST).map_err(|error| format!("cannot be read: {error}"))?;
    oidc::check_keys(&bytes)
}

fn audiences(field: &Field<'_>) -> Vec<Box<str>> {
    let items = field.items();
    if field.is_list() && items.is_empty() {
        field.fault("at least one audience is needed: a token for another service proves no user here");
    }
    items.iter().filter_map(|item| item.parse(&TEXT)).collect()
}

const TEXT: Form<Box<str>> = Form {
    parse: |text| match text {
        "" => Err("expected a text"),
        text => Ok(text.into()),
    },
    schema: Schema::Text,
};
const JWKS: Form<Jwks> = Form {
    parse: key_set,
    schema: Schema::Text,
};

/// A path or a URL. A key set that crosses the network in clear can be replaced on the way.
fn key_set(text: &str) -> Result<Jwks, &'static str> {
    if text.is_empty() {
        return Err("expected the path of a file, or an `https://` URL");
    }
    if !text.contains("://") {
        return Ok(Jwks::File(text.into()));
    }
    let uri: Uri = text.parse().map_err(|_| NOT_A_URL)?;
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
    let host = authority.ok_or(NOT_A_URL)?.host();
    match uri.scheme_str() {
        Some("https") => Ok(Jwks::Url(text.into())),
        Some("http") if host == "localhost" || is_loopback(host) => Ok(Jwks::Url(text.into())),
        Some("http") => Err("the keys would cross the network in clear: `http://` is for loopback addresses only"),
        _ => Err(NOT_A_URL),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    address.is_ok_and(|address: IpAddr| address.is_loopback())
}

/// In bytes: as much as the process reads.
const LARGEST: u64 = 1 << 20;
const NOT_A_URL: &str = "expected the path of a file, or a URL such as `https://id.example.com/keys`";
/// The claim that every token has, and that no other user of the issuer ever gets (OpenID Connect Core 1.0, section 2).
const SUBJECT: &str = "sub";

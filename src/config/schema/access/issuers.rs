//! The list `access.oidc`: the issuers whose tokens are verified here.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use http::Uri;

use crate::access::{Issuer, Jwks};
use crate::config::form::{Form, Schema};
use crate::config::section::{Field, Section};

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
    let jwks = section.required("jwks").and_then(|field| jwks(&field));
    let ca_field = section.field("ca");
    if let (Some(Jwks::File(_)), Some(field)) = (&jwks, &ca_field) {
        field.fault("has no effect with a `jwks` that is a file");
    }
    let ca = ca_field.and_then(|field| super::path(&field, super::readable_fault));
    Some(Issuer {
        issuer: issuer?,
        audiences: audiences?,
        username,
        groups,
        jwks: jwks?,
        ca,
    })
}

fn audiences(field: &Field<'_>) -> Vec<Box<str>> {
    let items = field.items();
    if field.is_list() && items.is_empty() {
        field.fault("at least one audience is needed: a token for another service proves no user here");
    }
    items.iter().filter_map(|item| item.parse(&TEXT)).collect()
}

fn jwks(field: &Field<'_>) -> Option<Jwks> {
    let jwks = field.parse(&JWKS)?;
    if let Jwks::File(path) = &jwks
        && let Some(reason) = super::readable_fault(Path::new(path))
    {
        field.dispensable_fault(reason);
    }
    Some(jwks)
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
        Some("http") if is_loopback(host) => Ok(Jwks::Url(text.into())),
        Some("http") => Err("the keys would cross the network in clear: `http://` is for loopback addresses only"),
        _ => Err(NOT_A_URL),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    address.is_ok_and(|address: IpAddr| address.is_loopback())
}

const NOT_A_URL: &str = "expected the path of a file, or a URL such as `https://id.example.com/keys`";
/// The claim that every token has, and that no other user of the issuer ever gets (OpenID Connect Core 1.0, section 2).
const SUBJECT: &str = "sub";

//! A user's own ticket: a CertificateSigningRequest whose common name is the ticket's hash.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde::Deserialize;
use serde_json::json;

use super::error::{TicketError, status_of};
use super::options::{Made, Options, quoted};
use crate::client::credentials::{Api, Question};
use crate::protocol::ticket::{Key, Minted, SIGNER, TicketTarget};

/// Creates the request.
pub(super) async fn make(api: &Api, minted: Minted, options: &Options) -> Result<Made, TicketError> {
    let pem = pkcs10(minted.key, options.target.as_ref()).map_err(TicketError::Pkcs10)?;
    let begun = SystemTime::now();
    let body = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "switchboard-ticket-"},
        "spec": {
            "signerName": SIGNER,
            "request": STANDARD.encode(pem),
            "expirationSeconds": options.ttl.as_secs(),
            // One is required. No certificate is ever issued.
            "usages": ["digital signature"],
        },
    });
    let question = Question {
        method: Method::POST,
        path: "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        media_type: "application/json",
        body: body.to_string(),
        largest: LARGEST,
    };
    let answered = Box::pin(api.ask(&question)).await;
    let answered = answered.map_err(|error| match status_of(&error) {
        Some(403) => TicketError::NoRequests(error),
        _ => TicketError::Credentials(error),
    })?;
    let created: Created = serde_json::from_slice(&answered).map_err(|_| TicketError::Answer)?;
    Ok(Made {
        ticket: minted.ticket,
        user: created.spec.username,
        expires: begun + options.ttl,
        revoke: format!("delete certificatesigningrequest {}", quoted(&created.metadata.name)),
    })
}

/// The request as the API server has kept it.
#[derive(Deserialize)]
struct Created {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
struct Spec {
    username: String,
}

/// A request in PKCS#10, by a key that is thrown away: the API server takes none without a signature.
fn pkcs10(key: Key, target: Option<&TicketTarget>) -> Result<String, rcgen::Error> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, key.to_string());
    if let Some(target) = target {
        subject.push(DnType::OrganizationalUnitName, target.to_string());
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params.serialize_request(&KeyPair::generate()?)?.pem()
}

/// Bytes of an answer: the request itself, with its user and managed fields.
const LARGEST: usize = 256 << 10;

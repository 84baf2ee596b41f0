//! The certificate signing requests in which users ask for tickets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

use crate::kubernetes::api::follower::{Collection, Subject};
use crate::kubernetes::api::requests::encoded;
use crate::policy::access::tickets::{Key, Request, Requests, SIGNER, TicketTarget};
use crate::policy::access::{Method, User};

/// The requests of the signer.
pub(super) struct SigningRequests {
    requests: Arc<Mutex<Requests>>,
    /// Notified when they have changed.
    changed: Arc<Notify>,
}

/// A request by its id.
pub(super) type Object = (Box<str>, Option<Request>);

impl SigningRequests {
    pub(super) fn new(requests: Arc<Mutex<Requests>>, changed: Arc<Notify>) -> Self {
        Self { requests, changed }
    }
}

impl Collection for SigningRequests {
    type Object = Object;

    fn subject(&self) -> &Subject {
        &SUBJECT
    }

    fn path(&self, _client: &Client) -> String {
        let selector = encoded(&format!("spec.signerName={SIGNER}"));
        format!("/apis/certificates.k8s.io/v1/certificatesigningrequests?fieldSelector={selector}&")
    }

    fn read(&self, json: &str) -> Result<Object, serde_json::Error> {
        read(json)
    }

    fn list(&mut self, objects: Vec<Object>) {
        self.requests.lock().list(objects);
        self.changed.notify_one();
    }

    fn apply(&mut self, (id, request): Object, is_deleted: bool) {
        let mut requests = self.requests.lock();
        if is_deleted {
            requests.remove(&id);
        } else {
            requests.add(id, request);
        }
        drop(requests);
        self.changed.notify_one();
    }
}

/// Reads one. What its author has written into it makes it no ticket at worst.
fn read(json: &str) -> Result<Object, serde_json::Error> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        uid: Box<str>,
    }
    let named: Named = serde_json::from_str(json)?;
    let id = named.metadata.uid;
    let request = request(json)
        .inspect_err(|reason| tracing::debug!(uid = %id, "a certificate signing request is no ticket: {reason}"));
    Ok((id, request.ok()))
}

/// A CertificateSigningRequest of `certificates.k8s.io/v1`.
#[derive(Deserialize)]
struct SigningRequest {
    metadata: Created,
    spec: Spec,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    creation_timestamp: Box<str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    request: Box<str>,
    signer_name: Box<str>,
    expiration_seconds: Option<u32>,
    // These four are written by the API server, and by no author.
    username: Box<str>,
    uid: Option<Box<str>>,
    groups: Option<Vec<Box<str>>>,
    extra: Option<BTreeMap<Box<str>, Vec<Box<str>>>>,
}

#[derive(Deserialize)]
struct Status {
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: Box<str>,
}

fn request(json: &str) -> Result<Request, &'static str> {
    if json.len() > LARGEST {
        return Err("it has more than 64 KiB");
    }
    let SigningRequest { metadata, spec, status } =
        serde_json::from_str(json).map_err(|_| "it is no CertificateSigningRequest")?;
    if &*spec.signer_name != SIGNER {
        return Err("it is for another signer");
    }
    if spec.username.is_empty() {
        return Err("it has no user");
    }
    let created = humantime::parse_rfc3339(&metadata.creation_timestamp).map_err(|_| "it has no time")?;
    let pem = STANDARD.decode(&*spec.request).map_err(|_| NOT_PKCS10)?;
    let (key, target) = subject_of(&pem)?;
    let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
    let is_denied = conditions
        .iter()
        .any(|condition| matches!(&*condition.r#type, "Denied" | "Failed"));
    Ok(Request {
        key,
        user: User {
            name: spec.username,
            uid: spec.uid.filter(|uid| !uid.is_empty()),
            groups: spec.groups.unwrap_or_default(),
            extra: spec.extra.unwrap_or_default(),
            method: Method::Ticket,
            expires: None,
        },
        created,
        lifetime: spec
            .expiration_seconds
            .map(|seconds| Duration::from_secs(seconds.into())),
        target,
        is_denied,
        size: json.len(),
    })
}

/// Hash and target, from the subject of a request in PKCS#10 (RFC 2986): the common name is the hash, the organizational
/// unit the target. Its signature is not looked at: the key is thrown away, and the API server names the user.
fn subject_of(pem: &[u8]) -> Result<(Key, Option<TicketTarget>), &'static str> {
    let (_, pem) = parse_x509_pem(pem).map_err(|_| NOT_PKCS10)?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).map_err(|_| NOT_PKCS10)?;
    let subject: &X509Name<'_> = &request.certification_request_info.subject;
    let names: Vec<_> = subject.iter_common_name().map(|name| name.as_str()).collect();
    let units: Vec<_> = subject.iter_organizational_unit().map(|unit| unit.as_str()).collect();
    // What is not known might restrict the ticket.
    if names.len() + units.len() != subject.iter_attributes().count() {
        return Err("its subject has more than a common name and an organizational unit");
    }
    let key = match names.as_slice() {
        [Ok(name)] => Key::parse(name),
        _ => None,
    };
    let target = match units.as_slice() {
        [] => None,
        [Ok(unit)] => Some(unit.parse()?),
        _ => return Err("it has several targets"),
    };
    Ok((key.ok_or("its common name is no hash of a ticket")?, target))
}

const SUBJECT: Subject = Subject {
    kind: "certificatesigningrequests",
    group: "certificates.k8s.io",
    accept: ["application/json"; 2],
    page: PAGE,
    role: "the ClusterRole",
    effect: "tickets that users make or take back are not seen",
    is_optional: false,
};
const NOT_PKCS10: &str = "it is no request in PKCS#10";
/// Of an object that is looked at, in bytes.
const LARGEST: usize = 64 << 10;
/// Objects a page: each may have what etcd takes, 1.5 MiB, and an answer 64 MiB.
const PAGE: usize = 16;

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
    use serde_json::{Value, json};

    use super::*;
    use crate::policy::access::tickets::Minted;

    fn pkcs10(names: &[(DnType, &str)]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), *name);
        }
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        STANDARD.encode(request.pem().unwrap())
    }

    /// As the API server keeps it, with some fields that do not matter.
    fn object(request: &str) -> Value {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "n", "uid": "u-1", "creationTimestamp": "2027-01-15T08:00:00Z", "managedFields": []},
            "spec": {
                "request": request, "signerName": "switchboard.dev/ticket", "expirationSeconds": 3600,
                "usages": ["digital signature"], "username": "alice", "uid": "7", "groups": ["system:masters"],
                "extra": {"example.com/k": ["v"]},
            },
            "status": {},
        })
    }

    fn judge(object: &Value) -> Result<Request, &'static str> {
        request(&object.to_string())
    }

    #[test]
    fn a_request_is_read_with_the_user_that_the_api_server_wrote() {
        let minted = Minted::new().unwrap();
        let hash = minted.key.to_string();
        let pem = pkcs10(&[
            (DnType::CommonName, &hash),
            (DnType::OrganizationalUnitName, "devbox.team-a"),
        ]);
        let (id, request) = read(&object(&pem).to_string()).unwrap();
        let request = request.unwrap();
        assert_eq!((&*id, request.key, request.is_denied), ("u-1", minted.key, false));
        assert_eq!(
            (&*request.user.name, request.user.uid.as_deref(), request.user.method),
            ("alice", Some("7"), Method::Ticket)
        );
        assert_eq!(request.user.groups, ["system:masters".into()]);
        assert_eq!(*request.user.extra["example.com/k"], ["v".into()]);
        assert_eq!(request.lifetime, Some(Duration::from_hours(1)));
        assert_eq!(request.target, Some("devbox.team-a".parse().unwrap()));
        for condition in ["Denied", "Failed", "Approved"] {
            let mut other = object(&pem);
            other["status"] = json!({"conditions": [{"type": condition, "status": "True"}]});
            let denied = judge(&other).unwrap().is_denied;
            assert_eq!(denied, condition != "Approved");
        }
        let mut bare = object(&pem);
        for field in ["groups", "extra", "uid", "expirationSeconds"] {
            bare["spec"][field] = Value::Null;
        }
        bare.as_object_mut().unwrap().remove("status");
        assert_eq!(judge(&bare).unwrap().lifetime, None);
    }

    #[test]
    fn a_request_of_another_shape_is_no_ticket_and_fails_no_list() {
        let minted = Minted::new().unwrap();
        let hash = minted.key.to_string();
        let name = (DnType::CommonName, &*hash);
        let good = pkcs10(std::slice::from_ref(&name));
        let with = |field: &str, value: Value| {
            let mut object = object(&good);
            object["spec"][field] = value;
            object
        };
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let unit = |unit: &'static str| (DnType::OrganizationalUnitName, unit);
        for (object, reason) in [
            (
                with("signerName", json!("kubernetes.io/kube-apiserver-client")),
                "it is for another signer",
            ),
            (with("username", json!("")), "it has no user"),
            (with("username", json!(1)), "it is no CertificateSigningRequest"),
            (
                with("expirationSeconds", json!(-1)),
                "it is no CertificateSigningRequest",
            ),
            (with("request", json!("!")), NOT_PKCS10),
            (with("request", json!("AAAA")), NOT_PKCS10),
            (with("request", json!(STANDARD.encode(certificate))), NOT_PKCS10),
            (with("note", json!("x".repeat(LARGEST))), "it has more than 64 KiB"),
            (object(&pkcs10(&[])), "its common name is no hash of a ticket"),
            (
                object(&pkcs10(&[(DnType::CommonName, "alice")])),
                "its common name is no hash of a ticket",
            ),
            (
                object(&pkcs10(&[name.clone(), (DnType::OrganizationName, "ops")])),
                "its subject has more than a common name and an organizational unit",
            ),
            (
                object(&pkcs10(&[name.clone(), unit("everywhere")])),
                "its target is neither SERVICE.NAMESPACE nor HOST:PORT of a static target",
            ),
        ] {
            let json = object.to_string();
            assert_eq!(judge(&object).unwrap_err(), reason);
            assert_eq!(read(&json).unwrap(), ("u-1".into(), None));
        }
        assert!(read("{}").is_err());
    }

    #[test]
    fn the_path_asks_for_the_signer_alone() {
        let requests = Arc::new(Mutex::new(Requests::new(Duration::from_hours(1))));
        let own = SigningRequests::new(requests, Arc::default());
        assert_eq!(own.subject().page, 16);
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        assert_eq!(
            own.path(&Client::try_from(config).unwrap()),
            "/apis/certificates.k8s.io/v1/certificatesigningrequests?fieldSelector=spec.signerName%3Dswitchboard.dev%2Fticket&"
        );
    }
}

//! Reads certificates, keys, authorities and revocation lists, and says what is wrong with each file.

use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificates::Certificates;
use super::settings::{ClientAuth, Pair, Settings};

/// Which of the files is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `certificates[n].cert`.
    Certificate(usize),
    /// `certificates[n].key`.
    Key(usize),
    /// `client_ca`.
    ClientCa,
    /// `crl`.
    Crl,
    /// None: the system has failed.
    None,
}

/// What is wrong with one file. Prints as `/tls/tls.crt: there is no certificate in it`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which.
    pub part: Part,
    /// Where it is.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

impl Fault {
    fn new(part: Part, path: &Path, reason: impl Into<String>) -> Self {
        Self {
            part,
            path: path.to_owned(),
            reason: reason.into(),
        }
    }

    pub(super) fn of_the_system(error: &rustls::Error) -> Self {
        Self::new(Part::None, Path::new(""), error.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::None => f.write_str(&self.reason),
            Part::Certificate(_) | Part::Key(_) | Part::ClientCa | Part::Crl => {
                write!(f, "{}: {}", self.path.display(), self.reason)
            }
        }
    }
}

impl Settings {
    /// What is wrong with the files.
    pub fn faults(&self) -> Vec<Fault> {
        Material::of(self, &Contents::read(self)).err().unwrap_or_default()
    }
}

/// Until when a certificate is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The file that it is in, as the configuration has it.
    pub certificate: String,
    /// Seconds since 1970.
    pub timestamp: i64,
}

/// What the files hold, or why they cannot be read.
#[derive(Debug)]
pub(super) struct Contents {
    /// Certificate and key.
    pairs: Vec<(Bytes, Bytes)>,
    client_auth: ClientAuth,
    client_ca: Option<Bytes>,
    crl: Option<Bytes>,
}

/// Of one file, or why there are none.
type Bytes = Result<Vec<u8>, String>;

impl Contents {
    pub(super) fn read(settings: &Settings) -> Self {
        let pair = |Pair { cert, key }: &Pair| (read(cert), read(key));
        Self {
            pairs: settings.certificates.iter().map(pair).collect(),
            client_auth: settings.client_auth,
            client_ca: settings.client_ca.as_deref().map(read),
            crl: settings.crl.as_deref().map(read),
        }
    }

    /// Two contents with one fingerprint are the same: nobody can choose both a file and the seed.
    pub(super) fn fingerprint(&self) -> u64 {
        fingerprint((&self.pairs, &self.client_ca, &self.crl))
    }

    /// The fingerprint of what clients are judged by.
    pub(super) fn trust(&self) -> u64 {
        fingerprint((self.client_auth, &self.client_ca, &self.crl))
    }
}

fn fingerprint(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn read(path: &Path) -> Bytes {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 > LARGEST => Err("larger than 16 MiB".into()),
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err("there is no such file".into()),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// What the files mean.
#[derive(Debug)]
pub(super) struct Material {
    certificates: Vec<Certificate>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

#[derive(Debug)]
struct Certificate {
    key: Arc<CertifiedKey>,
    names: Vec<Box<str>>,
    expiry: Expiry,
}

impl Material {
    pub(super) fn of(settings: &Settings, contents: &Contents) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut certificates = Vec::new();
        for (index, (pair, (cert, key))) in settings.certificates.iter().zip(&contents.pairs).enumerate() {
            match certificate((index, pair), cert, key) {
                Ok(certificate) => certificates.push(certificate),
                Err(found) => faults.extend(found),
            }
        }
        let verifier = match (settings.client_auth, &settings.client_ca, &contents.client_ca) {
            (ClientAuth::Optional | ClientAuth::Required, Some(path), Some(authorities)) => {
                let list = settings.crl.as_deref().zip(contents.crl.as_ref());
                verifier(settings.client_auth, (path, authorities), list)
                    .map_err(|found| faults.extend(found))
                    .ok()
            }
            _ => None,
        };
        if faults.is_empty() {
            Ok(Self { certificates, verifier })
        } else {
            Err(faults)
        }
    }

    pub(super) fn expiries(&self) -> Vec<Expiry> {
        self.certificates
            .iter()
            .map(|certificate| certificate.expiry.clone())
            .collect()
    }

    /// What judges the clients' certificates; `None` if nobody is asked for one.
    pub(super) fn verifier(&self) -> Option<Arc<dyn ClientCertVerifier>> {
        self.verifier.clone()
    }

    /// `None` without certificates.
    pub(super) fn into_config(self) -> Option<ServerConfig> {
        let builder = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .ok()?;
        let builder = match self.verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        if self.certificates.is_empty() {
            return None;
        }
        let certificates = self.certificates.into_iter();
        let certificates = certificates.map(|certificate| (certificate.key, certificate.names));
        let mut config = builder.with_cert_resolver(Arc::new(Certificates::new(certificates.collect())));
        config.alpn_protocols = ALPN.map(Vec::from).into();
        config.ignore_client_order = true;
        // A client opens one connection at a time: a second ticket would go unused.
        config.send_tls13_tickets = 1;
        Some(config)
    }
}

/// Named, as two crates of this process may want different ones. AES-128 first: SSH encrypts once more inside.
fn provider() -> CryptoProvider {
    use aws_lc_rs::cipher_suite as suites;
    CryptoProvider {
        cipher_suites: vec![
            suites::TLS13_AES_128_GCM_SHA256,
            suites::TLS13_AES_256_GCM_SHA384,
            suites::TLS13_CHACHA20_POLY1305_SHA256,
            suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    }
}

fn certificate((index, pair): (usize, &Pair), cert: &Bytes, key: &Bytes) -> Result<Certificate, Vec<Fault>> {
    let bad_cert = |reason: String| Fault::new(Part::Certificate(index), &pair.cert, reason);
    let bad_key = |reason: String| Fault::new(Part::Key(index), &pair.key, reason);
    let chain = items::<CertificateDer<'static>>(cert, "certificate").map_err(bad_cert);
    let described = chain.and_then(|chain| match describe(&chain) {
        Some((names, timestamp)) => Ok((chain, names, timestamp)),
        None => Err(bad_cert("a certificate in it is damaged".into())),
    });
    let key = items::<PrivateKeyDer<'static>>(key, "private key").map_err(bad_key);
    let ((chain, names, timestamp), key) = match (described, key) {
        (Ok(described), Ok(key)) => (described, key),
        (described, key) => return Err(described.err().into_iter().chain(key.err()).collect()),
    };
    let certified = key
        .into_iter()
        .next()
        .map(|key| CertifiedKey::from_der(chain, key, &provider()));
    match certified {
        Some(Ok(key)) => Ok(Certificate {
            key: Arc::new(key),
            names,
            expiry: Expiry {
                certificate: pair.cert.display().to_string(),
                timestamp,
            },
        }),
        Some(Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch))) => {
            let reason = format!("it is not the key of the certificate in {}", pair.cert.display());
            Err(vec![bad_key(reason)])
        }
        Some(Err(error)) => Err(vec![bad_key(format!("it cannot be used: {error}"))]),
        None => Err(vec![bad_key("there is no private key in it".into())]),
    }
}

/// The DNS names of the first certificate, and when the first of the chain expires.
fn describe(chain: &[CertificateDer<'static>]) -> Option<(Vec<Box<str>>, i64)> {
    let parsed: Option<Vec<_>> = chain
        .iter()
        .map(|der| Some(X509Certificate::from_der(der).ok()?.1))
        .collect();
    let parsed = parsed?;
    let names = parsed.first()?.subject_alternative_name().ok()?;
    let names = names.iter().flat_map(|extension| &extension.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into()),
        GeneralName::OtherName(..)
        | GeneralName::RFC822Name(_)
        | GeneralName::X400Address(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EDIPartyName(_)
        | GeneralName::URI(_)
        | GeneralName::IPAddress(_)
        | GeneralName::RegisteredID(_)
        | GeneralName::Invalid(..) => None,
    });
    let expires = parsed
        .iter()
        .map(|certificate| certificate.validity().not_after.timestamp());
    Some((names.collect(), expires.min()?))
}

fn verifier(
    auth: ClientAuth,
    (path, authorities): (&Path, &Bytes),
    list: Option<(&Path, &Bytes)>,
) -> Result<Arc<dyn ClientCertVerifier>, Vec<Fault>> {
    let bad_authority = |reason: String| Fault::new(Part::ClientCa, path, reason);
    let mut roots = RootCertStore::empty();
    let mut faults = Vec::new();
    match items::<CertificateDer<'static>>(authorities, "certificate") {
        Ok(authorities) => {
            let refused = authorities
                .into_iter()
                .filter_map(|authority| roots.add(authority).err());
            faults.extend(refused.map(|error| bad_authority(format!("it cannot be used: {error}"))));
        }
        Err(reason) => faults.push(bad_authority(reason)),
    }
    let lists = list.map_or(Ok(Vec::new()), |(path, list)| {
        items::<CertificateRevocationListDer<'static>>(list, "revocation list")
            .map_err(|reason| Fault::new(Part::Crl, path, reason))
    });
    let lists = lists.map_err(|fault| faults.push(fault)).unwrap_or_default();
    if !faults.is_empty() {
        return Err(faults);
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider()))
        .with_crls(lists)
        .only_check_end_entity_revocation();
    let builder = match auth {
        ClientAuth::Off | ClientAuth::Optional => builder.allow_unauthenticated(),
        ClientAuth::Required => builder,
    };
    builder.build().map_err(|error| {
        let (part, path) = list.map_or((Part::ClientCa, path), |(path, _)| (Part::Crl, path));
        vec![Fault::new(part, path, format!("it cannot be used: {error}"))]
    })
}

/// All of one kind in a PEM file; at least one.
fn items<T: PemObject>(bytes: &Bytes, kind: &str) -> Result<Vec<T>, String> {
    let bytes = bytes.as_ref().map_err(Clone::clone)?;
    let items: Result<Vec<_>, pem::Error> = T::pem_slice_iter(bytes).collect();
    match items {
        Ok(items) if items.is_empty() => Err(format!("there is no {kind} in it")),
        Ok(items) => Ok(items),
        Err(error) => Err(format!("it is not PEM: {error}")),
    }
}

/// What clients may choose from, the best first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// A revocation list may be long.
const LARGEST: u64 = 16 << 20;

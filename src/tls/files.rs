//! Reads certificates, keys, authorities and revocation lists, and finds every fault of each file.

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
use super::settings::{CertificatePaths, ClientAuth, Settings};

/// One of the files, by its key in the configuration.
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
    /// No file: the system has failed.
    None,
}

/// A fault of one file. Prints as `/tls/tls.crt: there is no certificate in it`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The file, by its key.
    pub part: Part,
    /// Its path.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
}

impl FileFault {
    pub(super) fn of_the_system(error: &rustls::Error) -> Self {
        Self {
            part: Part::None,
            path: PathBuf::new(),
            reason: error.to_string(),
        }
    }
}

impl fmt::Display for FileFault {
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
    /// The faults of the files.
    pub fn faults(&self) -> Vec<FileFault> {
        Material::of(self, &Contents::read(self)).err().unwrap_or_default()
    }
}

/// The expiry of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The path of its file, as in the configuration.
    pub certificate: String,
    /// Seconds since 1970.
    pub timestamp: i64,
}

/// The bytes of the files, or why they cannot be read.
#[derive(Debug)]
pub(super) struct Contents {
    /// Certificate and key.
    pairs: Vec<(Bytes, Bytes)>,
    client_auth: ClientAuth,
    client_ca: Option<Bytes>,
    crl: Option<Bytes>,
}

/// The bytes of one file, or why there are none.
type Bytes = Result<Vec<u8>, String>;

impl Contents {
    pub(super) fn read(settings: &Settings) -> Self {
        let pair = |CertificatePaths { cert, key }: &CertificatePaths| (read(cert), read(key));
        Self {
            pairs: settings.certificates.iter().map(pair).collect(),
            client_auth: settings.client_auth,
            client_ca: settings.client_ca.as_deref().map(read),
            crl: settings.crl.as_deref().map(read),
        }
    }

    /// A hash of all files: those with the same one are taken for unchanged. Their author has no reason to forge it.
    pub(super) fn fingerprint(&self) -> u64 {
        fingerprint((&self.pairs, &self.client_ca, &self.crl))
    }

    /// A hash of what client certificates are verified against.
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

/// The certificates and the verifier that the files hold.
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
    pub(super) fn of(settings: &Settings, contents: &Contents) -> Result<Self, Vec<FileFault>> {
        let mut faults = Vec::new();
        let mut certificates = Vec::new();
        for (index, (paths, (cert, key))) in settings.certificates.iter().zip(&contents.pairs).enumerate() {
            let cert = PemFile {
                part: Part::Certificate(index),
                path: &paths.cert,
                bytes: cert,
            };
            let key = PemFile {
                part: Part::Key(index),
                path: &paths.key,
                bytes: key,
            };
            match certificate(cert, key) {
                Ok(certificate) => certificates.push(certificate),
                Err(found) => faults.extend(found),
            }
        }
        let verifier = match (settings.client_auth, &settings.client_ca, &contents.client_ca) {
            (ClientAuth::Optional | ClientAuth::Required, Some(path), Some(bytes)) => {
                let part = Part::ClientCa;
                let list = settings.crl.as_deref().zip(contents.crl.as_ref());
                let list = list.map(|(path, bytes)| PemFile {
                    part: Part::Crl,
                    path,
                    bytes,
                });
                verifier(settings.client_auth, PemFile { part, path, bytes }, list)
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

    /// The verifier of client certificates; `None` if clients are not asked for one.
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

/// Named, as a process-wide default is for its crates to agree on. AES-128 first: SSH encrypts once more inside.
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

/// One of the files, and what was read of it.
#[derive(Clone, Copy, Debug)]
struct PemFile<'a> {
    part: Part,
    path: &'a Path,
    bytes: &'a Bytes,
}

impl PemFile<'_> {
    fn fault(self, reason: impl Into<String>) -> FileFault {
        FileFault {
            part: self.part,
            path: self.path.to_owned(),
            reason: reason.into(),
        }
    }

    /// All items of one kind in it; at least one.
    fn items<T: PemObject>(self, kind: &str) -> Result<Vec<T>, FileFault> {
        let bytes = self.bytes.as_ref().map_err(|reason| self.fault(reason))?;
        let items: Result<Vec<_>, pem::Error> = T::pem_slice_iter(bytes).collect();
        match items {
            Ok(items) if items.is_empty() => Err(self.fault(format!("there is no {kind} in it"))),
            Ok(items) => Ok(items),
            Err(error) => Err(self.fault(format!("it is not PEM: {error}"))),
        }
    }
}

fn certificate(cert: PemFile<'_>, key: PemFile<'_>) -> Result<Certificate, Vec<FileFault>> {
    let chain = cert.items::<CertificateDer<'static>>("certificate");
    let described = chain.and_then(|chain| match describe(&chain) {
        Some((names, timestamp)) => Ok((chain, names, timestamp)),
        None => Err(cert.fault("a certificate in it is damaged")),
    });
    let (chain, names, timestamp, private_key) = match (described, key.items::<PrivateKeyDer<'static>>("private key")) {
        (Ok((chain, names, timestamp)), Ok(keys)) => (chain, names, timestamp, keys.into_iter().next()),
        (described, keys) => return Err(described.err().into_iter().chain(keys.err()).collect()),
    };
    match private_key.map(|private_key| CertifiedKey::from_der(chain, private_key, &provider())) {
        Some(Ok(certified)) => Ok(Certificate {
            key: Arc::new(certified),
            names,
            expiry: Expiry {
                certificate: cert.path.display().to_string(),
                timestamp,
            },
        }),
        Some(Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch))) => {
            let reason = format!("it is not the key of the certificate in {}", cert.path.display());
            Err(vec![key.fault(reason)])
        }
        Some(Err(error)) => Err(vec![key.fault(format!("it cannot be used: {error}"))]),
        None => Err(vec![key.fault("there is no private key in it")]),
    }
}

/// The DNS names of the first certificate, and the earliest expiry in the chain.
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
    authorities: PemFile<'_>,
    list: Option<PemFile<'_>>,
) -> Result<Arc<dyn ClientCertVerifier>, Vec<FileFault>> {
    let mut roots = RootCertStore::empty();
    let mut faults = Vec::new();
    match authorities.items::<CertificateDer<'static>>("certificate") {
        Ok(certificates) => {
            let refused = certificates
                .into_iter()
                .filter_map(|certificate| roots.add(certificate).err());
            faults.extend(refused.map(|error| authorities.fault(format!("it cannot be used: {error}"))));
        }
        Err(fault) => faults.push(fault),
    }
    let lists = list.map_or(Ok(Vec::new()), |list| {
        list.items::<CertificateRevocationListDer<'static>>("revocation list")
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
    let unusable = |error| list.unwrap_or(authorities).fault(format!("it cannot be used: {error}"));
    builder.build().map_err(|error| vec![unusable(error)])
}

/// The protocols for ALPN, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// The largest file, in bytes: a revocation list may be long.
const LARGEST: u64 = 16 << 20;

//! Chooses the certificate for the name that a client requests (SNI).

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The certificates of a process, the default one first.
#[derive(Debug)]
pub(super) struct SniResolver {
    all: Vec<Arc<CertifiedKey>>,
    /// By name in lower case; a name may be a wildcard such as `*.example.com`.
    by_name: HashMap<Box<str>, Vec<Arc<CertifiedKey>>>,
}

impl SniResolver {
    /// Creates a resolver of these certificates, each with its names.
    pub(super) fn new(certificates: Vec<(Arc<CertifiedKey>, Vec<Box<str>>)>) -> Self {
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for (certificate, names) in &certificates {
            for name in names {
                by_name.entry(name.clone()).or_default().push(Arc::clone(certificate));
            }
        }
        Self {
            all: certificates.into_iter().map(|(certificate, _)| certificate).collect(),
            by_name,
        }
    }

    /// Returns the certificates for a name: of the name itself, else of its wildcard, else all.
    fn named(&self, name: Option<&str>) -> &[Arc<CertifiedKey>] {
        let find = |name: &str| self.by_name.get(name);
        let found = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            find(&name).or_else(|| {
                let (_, domain) = name.split_once('.')?;
                find(&format!("*.{domain}"))
            })
        });
        found.unwrap_or(&self.all)
    }
}

impl ResolvesServerCert for SniResolver {
    /// Returns the first certificate of the name that the client can verify: one may be RSA, another ECDSA.
    ///
    /// rustls passes on no IP address, which is not a name (RFC 6066 section 3).
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = self.named(hello.server_name());
        let fits =
            |certificate: &&Arc<CertifiedKey>| certificate.key.choose_scheme(hello.signature_schemes()).is_some();
        named.iter().find(fits).or_else(|| named.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn certificate(names: &[&str]) -> (Arc<CertifiedKey>, Vec<Box<str>>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names.iter().copied().map(String::from).collect::<Vec<_>>()).unwrap();
        let chain = vec![params.self_signed(&key).unwrap().der().clone()];
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let key = key.serialize_der().try_into().unwrap();
        let certified = CertifiedKey::from_der(chain, key, &provider).unwrap();
        (Arc::new(certified), names.iter().map(|name| (*name).into()).collect())
    }

    #[test]
    fn a_name_selects_its_certificate_and_every_other_name_the_first() {
        let made = [
            certificate(&["first.example.com"]),
            certificate(&["*.example.com", "example.com"]),
            certificate(&["exact.example.com"]),
        ];
        let [first, wild, exact] = made.each_ref().map(|(certificate, _)| Arc::clone(certificate));
        let certificates = SniResolver::new(made.into());
        for (name, expected) in [
            (None, &first),
            (Some("elsewhere.test"), &first),
            (Some("first.example.com"), &first),
            (Some("other.example.com"), &wild),
            (Some("EXAMPLE.com"), &wild),
            (Some("Exact.Example.Com"), &exact),
            (Some("a.b.example.com"), &first),
            (Some("com"), &first),
        ] {
            assert!(Arc::ptr_eq(&certificates.named(name)[0], expected), "{name:?}");
        }
    }
}

//! Reads one certificate of the proxy with its chain and its key.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

use super::files::{FileFault, PemFile};
use super::warnings::{Caution, Place};
use crate::net::x509::names::distinguished;

/// The expiry of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The path of its file, as in the configuration.
    pub certificate: String,
    /// Seconds since 1970.
    pub timestamp: i64,
}

/// A certificate with its key.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) key: Arc<CertifiedKey>,
    /// The DNS names of the certificate.
    pub(super) names: Vec<Box<str>>,
    pub(super) expiry: Expiry,
    pub(super) cautions: Vec<Caution>,
}

/// A chain as it is in its file: each certificate with its line.
type Chain = Vec<(usize, CertificateDer<'static>)>;

/// Reads both files.
///
/// # Errors
/// The faults of both.
pub(super) fn read(cert: PemFile<'_>, key: PemFile<'_>, provider: &CryptoProvider) -> Result<Pair, Vec<FileFault>> {
    let chain = cert
        .items::<CertificateDer<'static>>()
        .and_then(|chain| Described::new(cert, chain));
    let (described, private_key) = match (chain, key.first::<PrivateKeyDer<'static>>()) {
        (Ok(described), Ok(private_key)) => (described, private_key),
        (described, private_key) => return Err(described.err().into_iter().chain(private_key.err()).collect()),
    };
    let Described {
        chain,
        names,
        expires,
        cautions,
    } = described;
    let of = |der: CertificateDer<'static>| CertifiedKey::from_der(vec![der], private_key.clone_key(), provider);
    let ders: Vec<_> = chain.iter().map(|(_, der)| der.clone()).collect();
    let mismatch = Error::InconsistentKeys(InconsistentKeys::KeyMismatch);
    match CertifiedKey::from_der(ders, private_key.clone_key(), provider) {
        Ok(certified) => Ok(Pair {
            key: Arc::new(certified),
            names,
            expiry: Expiry {
                certificate: cert.path.display().to_string(),
                timestamp: expires,
            },
            cautions,
        }),
        Err(error) if error == mismatch => Err(vec![match chain.iter().find(|(_, der)| of(der.clone()).is_ok()) {
            Some((line, _)) => {
                let key = key.path.display();
                let reason = format!(
                    "the certificates are in the wrong order: this one, of the key in {key}, must be the first"
                );
                cert.fault_at(*line, reason)
            }
            None => key.fault(format!(
                "it is not the key of the certificate in {}",
                cert.path.display()
            )),
        }]),
        Err(error) => Err(vec![key.fault(format!("it cannot be used: {error}"))]),
    }
}

/// A chain, and what its certificates say.
struct Described {
    chain: Chain,
    /// The DNS names of the first certificate.
    names: Vec<Box<str>>,
    /// The earliest end of a certificate, in seconds since 1970.
    expires: i64,
    cautions: Vec<Caution>,
}

impl Described {
    fn new(file: PemFile<'_>, chain: Chain) -> Result<Self, FileFault> {
        let mut parsed = Vec::new();
        for (line, der) in &chain {
            let certificate = parse(der).ok_or_else(|| file.fault_at(*line, DAMAGED))?;
            parsed.push((*line, certificate));
        }
        let own = parsed.first().map(|(line, certificate)| (*line, certificate));
        let (line, own) = own.ok_or_else(|| file.fault(DAMAGED))?;
        if let Some(bits) = weak_bits(own) {
            let reason = format!("its RSA key has {bits} bits: TLS needs at least {LEAST_BITS}");
            return Err(file.fault_at(line, reason));
        }
        let names = dns_names(own).ok_or_else(|| file.fault_at(line, DAMAGED))?;
        let ends = parsed
            .iter()
            .map(|(_, certificate)| certificate.validity().not_after.timestamp());
        let place = Place {
            part: file.part,
            path: file.path,
        };
        let dates = parsed
            .iter()
            .flat_map(|(line, certificate)| Caution::of_dates(certificate, place, *line));
        let cautions = dates.chain(misplaced(&parsed, place)).collect();
        let expires = ends.min().unwrap_or(i64::MAX);
        Ok(Self {
            names,
            expires,
            cautions,
            chain,
        })
    }
}

/// A certificate in DER.
pub(super) fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    Some(X509Certificate::from_der(der).ok()?.1)
}

/// The bits of its RSA key, if they are too few.
pub(super) fn weak_bits(certificate: &X509Certificate<'_>) -> Option<usize> {
    match certificate.public_key().parsed() {
        Ok(PublicKey::RSA(key)) if key.key_size() < LEAST_BITS => Some(key.key_size()),
        _ => None,
    }
}

/// A remark about the first certificate that has issued none of those before it. Clients by TLS 1.2 may refuse such a
/// chain (RFC 5246 section 7.4.2), those by TLS 1.3 need not (RFC 8446 section 4.4.2).
fn misplaced(chain: &[(usize, X509Certificate<'_>)], place: Place<'_>) -> Option<Caution> {
    let has_issued = |(_, earlier): &(usize, X509Certificate<'_>), name: &[u8]| earlier.issuer().as_raw() == name;
    let (_, (line, certificate)) = chain.iter().enumerate().skip(1).find(|(index, (_, certificate))| {
        let mut before = chain.iter().take(*index);
        !before.any(|earlier| has_issued(earlier, certificate.subject().as_raw()))
    })?;
    let name = distinguished(certificate.subject());
    let reason = format!(
        "the certificates are in the wrong order: {name} has issued none of those before it. First the own one, then its \
         issuer, then the issuer of that"
    );
    Some(Caution::always(place, *line, &reason))
}

fn dns_names(certificate: &X509Certificate<'_>) -> Option<Vec<Box<str>>> {
    let names = certificate.subject_alternative_name().ok()?;
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
    Some(names.collect())
}

const DAMAGED: &str = "the certificate is damaged";
/// rustls uses no shorter RSA key, in a certificate or under one.
pub(super) const LEAST_BITS: usize = 2048;

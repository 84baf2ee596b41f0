//! Reads one certificate of the proxy with its chain and its key.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;
use x509_parser::public_key::PublicKey;

use super::files::{ALWAYS, FileError, FileWarning, PemFile};
use crate::net::x509::names::distinguished;
use crate::net::x509::presented::parse;

/// A chain of certificates, and what they say.
#[derive(Debug)]
pub(super) struct Chain {
    /// Each with its line.
    certificates: Vec<(usize, CertificateDer<'static>)>,
    /// The DNS names of the first one.
    pub(super) names: Vec<Box<str>>,
    /// The path of their file, as in the configuration, and the earliest end of one of them, in seconds since 1970.
    pub(super) expiry: (String, i64),
    pub(super) warnings: Vec<FileWarning>,
}

/// Reads both files.
///
/// # Errors
/// The errors of both.
pub(super) fn read(
    cert: &PemFile,
    key: &PemFile,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, Chain), Vec<FileError>> {
    let (chain, private_key) = match (Chain::read(cert), key.first::<PrivateKeyDer<'static>>()) {
        (Ok(chain), Ok(private_key)) => (chain, private_key),
        (chain, private_key) => return Err(chain.err().into_iter().chain(private_key.err()).collect()),
    };
    let certify = |ders| CertifiedKey::from_der(ders, private_key.clone_key(), provider);
    let mut ders = chain.certificates.iter().map(|(line, der)| (line, der.clone()));
    let error = match certify(ders.clone().map(|(_, der)| der).collect()) {
        Ok(certified) => return Ok((certified, chain)),
        Err(error) => error,
    };
    if error != Error::InconsistentKeys(InconsistentKeys::KeyMismatch) {
        return Err(vec![key.fault(format!("it cannot be used: {error}"))]);
    }
    let (cert_path, key_path) = (cert.path.display(), key.path.display());
    Err(vec![match ders.find(|(_, der)| certify(vec![der.clone()]).is_ok()) {
        Some((line, _)) => cert.fault_at(
            *line,
            format!("the certificates are in the wrong order: this one, of the key in {key_path}, must be the first"),
        ),
        None => key.fault(format!("it is not the key of the certificate in {cert_path}")),
    }])
}

impl Chain {
    fn read(file: &PemFile) -> Result<Self, FileError> {
        let certificates = file.items::<CertificateDer<'static>>()?;
        let mut parsed = Vec::new();
        for (line, der) in &certificates {
            let certificate = parse(der).ok_or_else(|| file.fault_at(*line, DAMAGED))?;
            parsed.push((*line, certificate));
        }
        let (line, own) = parsed.first().ok_or_else(|| file.fault(DAMAGED))?;
        if let Some(bits) = weak_bits(own) {
            let reason = format!("its RSA key has {bits} bits: TLS needs at least {LEAST_BITS}");
            return Err(file.fault_at(*line, reason));
        }
        let names = dns_names(own).ok_or_else(|| file.fault_at(*line, DAMAGED))?;
        let ends = parsed.iter().map(|(_, parsed)| parsed.validity().not_after.timestamp());
        let expiry = (file.path.display().to_string(), ends.min().unwrap_or(i64::MAX));
        let dates = parsed
            .iter()
            .flat_map(|(line, parsed)| warn_of_dates(parsed, file, *line));
        let warnings = dates.chain(misplaced(&parsed, file)).collect();
        Ok(Self {
            names,
            expiry,
            warnings,
            certificates,
        })
    }
}

/// Returns two remarks about a certificate: one for the time before it is valid, one for the time after.
pub(super) fn warn_of_dates(certificate: &X509Certificate<'_>, file: &PemFile, line: usize) -> [FileWarning; 2] {
    let name = distinguished(certificate.subject());
    let validity = certificate.validity();
    let (begin, end) = (validity.not_before, validity.not_after);
    let early = format!("the certificate of {name} is not valid yet: it begins on {begin}");
    let late = format!("the certificate of {name} has expired: it ended on {end}");
    // It is still valid in its last second (RFC 5280 section 4.1.2.5).
    let after = end.timestamp().saturating_add(1);
    [
        (file.fault_at(line, early), i64::MIN..begin.timestamp()),
        (file.fault_at(line, late), after..i64::MAX),
    ]
}

/// Returns the bits of an RSA key that is too short; `None` for any other key.
pub(super) fn weak_bits(certificate: &X509Certificate<'_>) -> Option<usize> {
    match certificate.public_key().parsed() {
        Ok(PublicKey::RSA(key)) if key.key_size() < LEAST_BITS => Some(key.key_size()),
        _ => None,
    }
}

/// Returns a remark about the first certificate that has issued none of those before it. Clients may refuse such a
/// chain in TLS 1.2 (RFC 5246 section 7.4.2), and need not in TLS 1.3 (RFC 8446 section 4.4.2).
fn misplaced(chain: &[(usize, X509Certificate<'_>)], file: &PemFile) -> Option<FileWarning> {
    let has_issued = |(_, earlier): &(usize, X509Certificate<'_>), name: &[u8]| earlier.issuer().as_raw() == name;
    let (_, (line, certificate)) = chain.iter().enumerate().skip(1).find(|(index, (_, certificate))| {
        let mut before = chain.iter().take(*index);
        !before.any(|earlier| has_issued(earlier, certificate.subject().as_raw()))
    })?;
    let name = distinguished(certificate.subject());
    let reason = format!(
        "the certificates are in the wrong order: {name} has issued none of those before it. First the proxy's own, \
         then its issuer, then the issuer of that"
    );
    Some((file.fault_at(*line, reason), ALWAYS))
}

fn dns_names(certificate: &X509Certificate<'_>) -> Option<Vec<Box<str>>> {
    let names = certificate.subject_alternative_name().ok()?;
    let names = names.iter().flat_map(|extension| &extension.value.general_names);
    let names = names.filter_map(|name| {
        let GeneralName::DNSName(name) = name else { return None };
        Some(name.to_ascii_lowercase().into())
    });
    Some(names.collect())
}

const DAMAGED: &str = "the certificate is damaged";
/// rustls accepts no shorter RSA key, in a certificate or as its issuer's.
pub(super) const LEAST_BITS: usize = 2048;

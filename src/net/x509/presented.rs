//! Reads the certificate that a server presents.

use rustls::pki_types::UnixTime;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use super::names;

/// Returns the distinguished name of the issuer; `None` if this is not a certificate.
pub(crate) fn issuer(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(names::distinguished(certificate.issuer()))
}

/// Returns whether the certificate names itself as its issuer.
pub(crate) fn is_self_issued(certificate: &[u8]) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| certificate.issuer() == certificate.subject())
}

/// Returns whether the certificate is valid at that time, and for a TLS server: without extended key usages it is for
/// any purpose (RFC 5280 section 4.2.1.12).
pub(crate) fn may_serve(certificate: &[u8], now: UnixTime) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let Ok(now) = ASN1Time::from_timestamp(seconds) else {
        return false;
    };
    let is_for_servers = match certificate.extended_key_usage() {
        Ok(Some(usages)) => usages.value.server_auth || usages.value.any,
        Ok(None) => true,
        Err(_) => false,
    };
    is_for_servers && certificate.validity().is_valid_at(now)
}

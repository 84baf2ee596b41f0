//! The certificates that a peer presents: which of them are trusted by themselves, and why others are not trusted.

use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use super::names;

/// The end of TLS that a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// A TLS server.
    Server,
    /// A TLS client.
    Client,
}

/// The certificates that are trusted, and their place in a sentence.
#[derive(Debug)]
pub(crate) struct TrustedCertificates {
    /// The certificates.
    pub(crate) listed: Vec<CertificateDer<'static>>,
    /// The setting that names their file, such as `--ca`.
    pub(crate) setting: &'static str,
    /// True if the setting is absent, so that the system's are used.
    pub(crate) are_of_system: bool,
    /// The fault of a file of the system, which lists no certificate because of it; `None` without one.
    pub(crate) fault: Option<String>,
}

/// Parses a certificate; `None` if it is none.
pub(crate) fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    Some(X509Certificate::from_der(der).ok()?.1)
}

/// Returns whether a certificate is valid at that time.
pub(crate) fn is_valid_at(certificate: &[u8], now: UnixTime) -> bool {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let now = ASN1Time::from_timestamp(seconds).ok();
    let validity = parse(certificate).map(|certificate| certificate.validity().clone());
    validity
        .zip(now)
        .is_some_and(|(validity, now)| validity.is_valid_at(now))
}

/// Returns whether a presented certificate is itself a trusted one, valid, and for that end of TLS. Its name is checked
/// elsewhere.
///
/// `openssl req -x509` marks a self-signed certificate as an authority, which webpki refuses at either end.
pub(crate) fn is_trusted_itself(
    certificate: &CertificateDer<'_>,
    listed: &[CertificateDer<'static>],
    usage: Usage,
    now: UnixTime,
) -> bool {
    let is_for = |parsed: X509Certificate<'_>| match (parsed.extended_key_usage(), usage) {
        (Ok(Some(usages)), Usage::Server) => usages.value.server_auth || usages.value.any,
        (Ok(Some(usages)), Usage::Client) => usages.value.client_auth || usages.value.any,
        // Without the extension it is for any purpose (RFC 5280 section 4.2.1.12).
        (Ok(None), _) => true,
        (Err(_), _) => false,
    };
    listed.iter().any(|own| own == certificate)
        && is_valid_at(certificate, now)
        && parse(certificate).is_some_and(is_for)
}

/// Returns why a server's certificates are not trusted, and what helps; `None` if the error's own text says it.
pub(crate) fn distrust(
    error: &CertificateError,
    (own, others): (&CertificateDer<'_>, &[CertificateDer<'_>]),
    trusted: &TrustedCertificates,
) -> Option<String> {
    use CertificateError::{NotValidForName, NotValidForNameContext, Other, UnknownIssuer};
    let is_listed = trusted.listed.iter().any(|listed| listed == own);
    let own = parse(own)?;
    let (is_other, subject) = (matches!(error, Other(_)), names::distinguished(own.subject()));
    // webpki refuses an authority's certificate before it looks for the issuer.
    let is_authority = is_other && own.is_ca();
    if is_authority && own.issuer() != own.subject() {
        return Some(format!(
            "it sends its certificates in the wrong order: the first must be its own, and is that of the authority {subject:?}"
        ));
    }
    if is_authority && is_listed {
        return Some("its certificate is not for servers (extended key usage)".to_owned());
    }
    if is_authority || *error == UnknownIssuer {
        return Some(unknown_issuer(&own, others, trusted));
    }
    if *error == CertificateError::BadSignature {
        return Some(format!(
            "{error}: a trusted authority has the name of its issuer, but another key has signed its certificate"
        ));
    }
    let is_of_name = matches!(error, NotValidForName | NotValidForNameContext { .. });
    let has_no_names = matches!(own.subject_alternative_name(), Ok(None));
    ((is_of_name || is_other) && has_no_names).then(|| {
        format!(
            "its certificate has no subject alternative name, and the common name in {subject:?} does not count: it needs its \
             name or address as subjectAltName"
        )
    })
}

/// Returns the sentence about the authority that is not known, or not valid: the one above all that were sent.
fn unknown_issuer(own: &X509Certificate<'_>, others: &[CertificateDer<'_>], trusted: &TrustedCertificates) -> String {
    let others: Vec<_> = others.iter().filter_map(|other| parse(other)).collect();
    let mut issuer = own.issuer();
    for _ in &others {
        let above = others.iter().find(|other| other.subject() == issuer);
        issuer = above.map_or(issuer, |above| above.issuer());
    }
    let signed = format!("its certificate is signed by {:?}, which", names::distinguished(issuer));
    let mut listed = trusted.listed.iter().filter_map(|listed| parse(listed));
    if let Some(known) = listed.find(|listed| listed.subject() == issuer)
        && !known.validity().is_valid()
    {
        let (begin, end) = (known.validity().not_before, known.validity().not_after);
        return format!("{signed} is trusted, but only valid from {begin} to {end}");
    }
    let setting = trusted.setting;
    let advice = match trusted.are_of_system {
        true => format!("this machine does not trust: give {setting} FILE with the certificate of that authority"),
        false => format!("is not among the certificates of {setting}"),
    };
    let intermediate = match issuer == own.issuer() && issuer != own.subject() {
        true => " (if it is an intermediate authority, the server must send its certificate)",
        false => "",
    };
    let fault = trusted
        .fault
        .iter()
        .map(|fault| format!("; {fault}"))
        .collect::<String>();
    format!("{signed} {advice}{intermediate}{fault}")
}

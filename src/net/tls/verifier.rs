//! Makes the verifier of client certificates, from their authorities and the authorities' revocation lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;

use super::crl::{Crl, SelectedCrls, choose};
use super::files::{ALWAYS, FileError, FileWarning, PemFile};
use super::server_certificate::{LEAST_BITS, warn_of_dates, weak_bits};
use super::settings::{ClientAuth, CrlExpired, Settings};
use crate::net::x509::names::distinguished;
use crate::net::x509::presented::{Usage, is_trusted_itself, parse};

/// A verifier, and the name and the earliest nextUpdate of each authority that has a list, in seconds since 1970.
type Verifier = (Arc<dyn ClientCertVerifier>, Vec<(String, i64)>);

/// Makes a verifier from the authorities and lists in two files, and adds remarks on them to `warnings`.
///
/// # Errors
/// The errors of both.
pub(super) fn client_verifier(
    settings: &Settings,
    (authorities, list): (&PemFile, Option<&PemFile>),
    provider: CryptoProvider,
    warnings: &mut Vec<FileWarning>,
) -> Result<Verifier, Vec<FileError>> {
    let roots = roots(authorities, warnings);
    let crls = list.map_or_else(|| Ok(SelectedCrls::default()), lists);
    let (roots, crls) = match (roots, crls) {
        (Ok(roots), Ok(crls)) => (roots, crls),
        (roots, crls) => return Err(roots.err().into_iter().flatten().chain(crls.err()).collect()),
    };
    if let Some(file) = list {
        let foreign = find_unsigned_lists(&crls, (authorities, file), &provider, warnings);
        if !foreign.is_empty() {
            return Err(foreign);
        }
        remark(settings.crl_expired, file, &crls, warnings);
    }
    let ders: Vec<_> = crls.lists.iter().map(|list| list.der.clone()).collect();
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider))
        .with_crls(ders)
        .only_check_end_entity_revocation();
    let builder = match settings.crl_expired {
        CrlExpired::Refuse => builder.enforce_revocation_expiration(),
        CrlExpired::Accept => builder,
    };
    let builder = match settings.client_auth {
        ClientAuth::Off | ClientAuth::Optional => builder.allow_unauthenticated(),
        ClientAuth::Required => builder,
    };
    let webpki = builder.build().map_err(|error| {
        let file = list.unwrap_or(authorities);
        vec![file.fault(format!("it cannot be used: {error}"))]
    })?;
    let listed = match list {
        None => authorities.items().map_err(|fault| vec![fault])?,
        Some(_) => Vec::new(),
    };
    let listed = listed.into_iter().map(|(_, der)| der).collect();
    Ok((Arc::new(ListedVerifier { webpki, listed }), next_updates(&crls)))
}

/// Verifies a client's certificate as webpki does, but also accepts one that is itself in `client_ca`: its key could sign
/// certificates of any client. With revocation lists it does not, as no list of another issuer could revoke it.
#[derive(Debug)]
struct ListedVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    /// The certificates of `client_ca`; empty with revocation lists.
    listed: Vec<CertificateDer<'static>>,
}

impl ClientCertVerifier for ListedVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.webpki.verify_client_cert(end_entity, intermediates, now) {
            Err(_) if is_trusted_itself(end_entity, &self.listed, Usage::Client, now) => {
                Ok(ClientCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn offer_client_auth(&self) -> bool {
        self.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

fn roots(file: &PemFile, warnings: &mut Vec<FileWarning>) -> Result<RootCertStore, Vec<FileError>> {
    let mut roots = RootCertStore::empty();
    let mut faults = Vec::new();
    for (line, der) in file.items::<CertificateDer<'static>>().map_err(|fault| vec![fault])? {
        if let Some(certificate) = parse(&der) {
            warnings.extend(warn_of_dates(&certificate, file, line));
            if let Some(bits) = weak_bits(&certificate) {
                let name = distinguished(certificate.subject());
                let reason = format!(
                    "the RSA key of {name} has {bits} bits, and TLS needs at least {LEAST_BITS}: no client certificate of it \
                     is accepted"
                );
                warnings.push((file.fault_at(line, reason), ALWAYS));
            }
        }
        if let Err(error) = roots.add(der) {
            faults.push(file.fault_at(line, format!("it cannot be used: {error}")));
        }
    }
    if faults.is_empty() { Ok(roots) } else { Err(faults) }
}

fn lists(file: &PemFile) -> Result<SelectedCrls, FileError> {
    let mut lists = Vec::new();
    for (line, der) in file.items::<CertificateRevocationListDer<'static>>()? {
        lists.push(Crl::parse(line, der).ok_or_else(|| file.fault_at(line, "the revocation list is damaged"))?);
    }
    choose(lists).map_err(|(line, reason)| file.fault_at(line, reason))
}

/// Finds the lists that name an authority of the file, but that no key of this authority has signed: the verifier would
/// refuse every certificate of it. A list may name an intermediate authority, whose certificate only clients send.
///
/// If an authority has several keys, the verifier refuses the certificates of keys that did not sign: a remark says so.
fn find_unsigned_lists(
    crls: &SelectedCrls,
    (authorities, file): (&PemFile, &PemFile),
    provider: &CryptoProvider,
    warnings: &mut Vec<FileWarning>,
) -> Vec<FileError> {
    let ders = authorities.items::<CertificateDer<'static>>().unwrap_or_default();
    let parsed = ders.iter().filter_map(|(line, der)| Some((*line, parse(der)?)));
    let roots: Vec<_> = parsed.collect();
    let mut faults = Vec::new();
    for list in &crls.lists {
        let Ok((_, read)) = CertificateRevocationList::from_der(&list.der) else {
            continue;
        };
        let of_name = roots
            .iter()
            .filter(|(_, root)| root.subject().as_raw() == read.issuer().as_raw());
        let (signers, others): (Vec<_>, Vec<_>) = of_name.partition(|(_, root)| has_signed(root, &read, provider));
        let (issuer, path) = (&list.issuer, authorities.path.display());
        if signers.is_empty() && !others.is_empty() {
            let reason = format!(
                "the revocation list of {issuer} is signed by another key than {issuer} has in {path}, or with an \
                 algorithm that is not supported, such as SHA-1"
            );
            faults.push(file.fault_at(list.line, reason));
            continue;
        }
        for (line, _) in others {
            let reason = format!(
                "this key of {issuer} has not signed the revocation list in line {} of {}: its client certificates are refused",
                list.line,
                file.path.display()
            );
            warnings.push((authorities.fault_at(*line, reason), ALWAYS));
        }
    }
    faults
}

/// Returns whether the key of an authority has signed a list. A weak key passes: another remark says that its
/// certificates are refused.
fn has_signed(root: &X509Certificate<'_>, list: &CertificateRevocationList<'_>, provider: &CryptoProvider) -> bool {
    let key = root.public_key().subject_public_key.as_ref();
    let (message, signature) = (list.tbs_cert_list.as_ref(), list.signature_value.as_ref());
    let mut algorithms = provider.signature_verification_algorithms.all.iter();
    algorithms.any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok()) || weak_bits(root).is_some()
}

fn remark(crl_expired: CrlExpired, file: &PemFile, crls: &SelectedCrls, warnings: &mut Vec<FileWarning>) {
    for (list, newer) in &crls.replaced {
        let reason = format!(
            "the revocation list of {} does not count: the one in line {newer} is newer",
            list.issuer
        );
        warnings.push((file.fault_at(list.line, reason), ALWAYS));
    }
    for list in &crls.lists {
        let Some((time, date)) = &list.next_update else {
            continue;
        };
        let effect = match crl_expired {
            CrlExpired::Refuse => "client certificates of this authority are refused",
            CrlExpired::Accept => "certificates that were revoked since are accepted, by `crl_expired: accept`",
        };
        let reason = format!(
            "the revocation list of {} has expired: its nextUpdate was {date}, and {effect}",
            list.issuer
        );
        warnings.push((file.fault_at(list.line, reason), *time..i64::MAX));
    }
}

/// Returns the earliest nextUpdate of each authority, which may divide its certificates among lists.
fn next_updates(crls: &SelectedCrls) -> Vec<(String, i64)> {
    let mut updates = BTreeMap::new();
    for list in &crls.lists {
        if let Some((end, _)) = list.next_update {
            let earliest = updates.entry(list.issuer.clone()).or_insert(end);
            *earliest = end.min(*earliest);
        }
    }
    updates.into_iter().collect()
}

//! Chooses among the revocation lists of a file: the newest of each scope counts.
//!
//! The verifier uses the first list of a certificate's issuer. After a new list is appended to the file, the old one is
//! first: the verifier would accept a certificate that only the new list revokes.

use std::cmp::{Ordering, Reverse};

use rustls::pki_types::CertificateRevocationListDer;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::net::x509::names::distinguished;

/// A revocation list, and its version.
#[derive(Clone, Debug)]
pub(super) struct Crl {
    /// The line where it begins, from 1.
    pub(super) line: usize,
    /// The list itself.
    pub(super) der: CertificateRevocationListDer<'static>,
    /// The name of its authority, as text.
    pub(super) issuer: String,
    /// Its nextUpdate, in seconds since 1970 and as text; `None` if it has none.
    pub(super) next_update: Option<(i64, String)>,
    scope: Scope,
    version: CrlVersion,
}

/// The certificates that a list is about: the DER of its issuer, and of its issuing distribution point (RFC 5280
/// section 5.2.5), which divides the certificates of one authority among lists.
type Scope = (Vec<u8>, Option<Vec<u8>>);

/// The version of a list.
#[derive(Clone, Debug)]
struct CrlVersion {
    /// The CRL number, which only grows (RFC 5280 section 5.2.3): its length and its bytes.
    number: Option<(usize, Vec<u8>)>,
    /// Seconds since 1970.
    this_update: i64,
}

/// The lists that count, and those that a newer one replaces.
#[derive(Debug, Default)]
pub(super) struct SelectedCrls {
    /// One of each scope, the newest first: where scopes overlap, the verifier uses the newest.
    pub(super) lists: Vec<Crl>,
    /// A list, and the line of the newer one.
    pub(super) replaced: Vec<(Crl, usize)>,
}

impl Crl {
    /// Parses a list; `None` if it is not one.
    pub(super) fn parse(line: usize, der: CertificateRevocationListDer<'static>) -> Option<Self> {
        let (_, list) = CertificateRevocationList::from_der(&der).ok()?;
        let mut extensions = list.extensions().iter();
        let point = extensions.find(|extension| extension.oid.to_id_string() == ISSUING_DISTRIBUTION_POINT);
        let number = list.crl_number().map(|number| number.to_bytes_be());
        Some(Self {
            line,
            issuer: distinguished(list.issuer()),
            next_update: list.next_update().map(|time| (time.timestamp(), time.to_string())),
            scope: (list.issuer().as_raw().to_vec(), point.map(|point| point.value.to_vec())),
            version: CrlVersion {
                number: number.map(|bytes| (bytes.len(), bytes)),
                this_update: list.last_update().timestamp(),
            },
            der,
        })
    }
}

impl CrlVersion {
    /// Compares two lists; `None` if neither is clearly newer.
    fn compare(&self, other: &Self) -> Option<Ordering> {
        let by_time = self.this_update.cmp(&other.this_update);
        let by_number = match (&self.number, &other.number) {
            (Some(own), Some(others)) => own.cmp(others),
            (None, _) | (_, None) => Ordering::Equal,
        };
        let newer = by_number.then(by_time);
        let is_clear = newer != Ordering::Equal && by_time != newer.reverse();
        is_clear.then_some(newer)
    }
}

/// Chooses the newest list of each scope.
///
/// # Errors
/// The line of a list, and why it is unclear whether it counts.
pub(super) fn choose(lists: Vec<Crl>) -> Result<SelectedCrls, (usize, String)> {
    let mut crls = SelectedCrls::default();
    for list in lists {
        let rival = crls.lists.iter_mut().find(|other| other.scope == list.scope);
        let Some(rival) = rival else {
            crls.lists.push(list);
            continue;
        };
        if rival.der == list.der {
            continue;
        }
        match list.version.compare(&rival.version) {
            Some(Ordering::Greater) => {
                let line = list.line;
                let old = std::mem::replace(rival, list);
                crls.replaced.push((old, line));
            }
            Some(_) => crls.replaced.push((list, rival.line)),
            None => {
                let reason = format!(
                    "this list and the one in line {} are of the same authority, {}, and their CRL numbers and dates do \
                     not tell the newer one: remove the other",
                    rival.line, list.issuer
                );
                return Err((list.line, reason));
            }
        }
    }
    crls.lists
        .sort_by_cached_key(|list| Reverse((list.version.this_update, list.version.number.clone())));
    Ok(crls)
}

const ISSUING_DISTRIBUTION_POINT: &str = "2.5.29.28";

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        CertificateParams, CertificateRevocationListParams, CertifiedIssuer, CrlDistributionPoint,
        CrlIssuingDistributionPoint, DnType, KeyIdMethod, KeyPair, KeyUsagePurpose, SerialNumber, date_time_ymd,
    };

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::CrlSign];
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Returns a list with that number, of January of that year, for a part of the certificates or for all.
    fn list(issuer: &CertifiedIssuer<'static, KeyPair>, number: u64, year: i32, part: Option<&str>) -> Crl {
        let point = |uri: &str| CrlIssuingDistributionPoint {
            distribution_point: CrlDistributionPoint {
                uris: vec![uri.to_owned()],
            },
            scope: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(year, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: part.map(point),
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let der = params.signed_by(issuer).unwrap().der().clone();
        Crl::parse(usize::try_from(number).unwrap(), der).unwrap()
    }

    fn lines(crls: &SelectedCrls) -> (Vec<usize>, Vec<(usize, usize)>) {
        (
            crls.lists.iter().map(|list| list.line).collect(),
            crls.replaced.iter().map(|(list, newer)| (list.line, *newer)).collect(),
        )
    }

    #[test]
    fn the_newest_list_of_an_authority_counts_whatever_the_order() {
        let (one, two) = (authority("one"), authority("two"));
        let of = |number, year| list(&one, number, year, None);
        let other = list(&two, 9, 2019, None);
        for (lists, expected) in [
            (
                vec![of(1, 2020), of(2, 2021), other.clone()],
                (vec![2, 9], vec![(1, 2)]),
            ),
            (vec![other, of(2, 2021), of(1, 2020)], (vec![2, 9], vec![(1, 2)])),
            (
                vec![of(300, 2021), of(2, 2020), of(70_000, 2022)],
                (vec![70_000], vec![(2, 300), (300, 70_000)]),
            ),
            // Issued on one day.
            (vec![of(1, 2020), of(2, 2020)], (vec![2], vec![(1, 2)])),
        ] {
            let crls = choose(lists).unwrap();
            assert_eq!(lines(&crls), expected);
        }
        let same = of(1, 2020);
        assert_eq!(lines(&choose(vec![same.clone(), same]).unwrap()), (vec![1], vec![]));
    }

    #[test]
    fn without_numbers_the_date_decides() {
        let one = authority("one");
        let of = |line, year| {
            let mut list = list(&one, line, year, None);
            list.version.number = None;
            list
        };
        assert_eq!(
            lines(&choose(vec![of(1, 2020), of(2, 2021)]).unwrap()),
            (vec![2], vec![(1, 2)])
        );
        assert_eq!(
            lines(&choose(vec![of(2, 2021), list(&one, 1, 2020, None)]).unwrap()),
            (vec![2], vec![(1, 2)])
        );
        let mut fault = choose(vec![of(1, 2020), of(2, 2020)]).unwrap_err();
        assert_eq!(fault.0, 2);
        assert!(
            fault
                .1
                .contains("the one in line 1 are of the same authority, CN=one, "),
            "{fault:?}"
        );
        // A number that has grown on a list of an earlier date.
        fault = choose(vec![list(&one, 1, 2021, None), list(&one, 2, 2020, None)]).unwrap_err();
        assert_eq!(fault.0, 2);
    }

    #[test]
    fn lists_for_parts_of_the_certificates_stand_beside_each_other_the_newest_first() {
        let one = authority("one");
        let [a, b] = ["http://a.test/", "http://b.test/"].map(Some);
        let lists = vec![
            list(&one, 1, 2020, None),
            list(&one, 2, 2021, a),
            list(&one, 3, 2022, b),
            list(&one, 4, 2023, a),
        ];
        assert_eq!(lines(&choose(lists).unwrap()), (vec![4, 3, 1], vec![(2, 4)]));
    }

    #[test]
    fn what_is_no_list_is_none() {
        assert!(Crl::parse(1, vec![0x30, 0].into()).is_none());
    }
}

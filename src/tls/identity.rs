//! The identity in a verified client certificate.

use std::net::{Ipv4Addr, Ipv6Addr};

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Whether a certificate in DER is valid now: a resumed session is not verified again.
pub(super) fn is_current(certificate: &[u8]) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| certificate.validity().is_valid())
}

/// The names in a verified client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The subject, such as `CN=alice, O=team-a`.
    pub subject: Box<str>,
    /// The subject alternative names: DNS names in lower case, mail addresses, URIs and IP addresses.
    pub alternative_names: Vec<Box<str>>,
    common_name: Option<Box<str>>,
}

impl Identity {
    /// The names in a certificate in DER; `None` if it cannot be parsed, which a verified one can.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.iter().flat_map(|extension| &extension.value.general_names);
        let common_name = subject.iter_common_name().next();
        Some(Self {
            subject: subject.to_string().into(),
            alternative_names: names.filter_map(text).collect(),
            common_name: common_name.and_then(|name| name.as_str().ok()).map(Into::into),
        })
    }

    /// Whether the name is one of its alternative names, or the common name if it has no alternative names.
    ///
    /// As in RFC 6125 section 6.4.4: an authority that lets its users choose a common name must not let them choose the
    /// identity of another user by it.
    pub fn is(&self, name: &str) -> bool {
        if self.alternative_names.is_empty() {
            return self.common_name.as_deref() == Some(name);
        }
        self.alternative_names.iter().any(|own| **own == *name)
    }
}

fn text(name: &GeneralName<'_>) -> Option<Box<str>> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into()),
        GeneralName::RFC822Name(name) | GeneralName::URI(name) => Some((*name).into()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(address) => Some(Ipv4Addr::from(address).to_string().into()),
            Err(_) => {
                let address = <[u8; 16]>::try_from(*bytes).ok()?;
                Some(Ipv6Addr::from(address).to_string().into())
            }
        },
        GeneralName::OtherName(..)
        | GeneralName::X400Address(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EDIPartyName(_)
        | GeneralName::RegisteredID(_)
        | GeneralName::Invalid(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn identity(common_name: &str, names: &[SanType]) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = names.to_vec();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Identity::of(certificate.der()).unwrap()
    }

    #[test]
    fn a_certificate_is_current_between_its_two_dates() {
        for (from, to, expected) in [(2020, 2100, true), (2020, 2021, false), (2099, 2100, false)] {
            let mut params = CertificateParams::default();
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(to, 1, 1);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(is_current(certificate.der()), expected, "{from} to {to}");
        }
    }

    #[test]
    fn the_alternative_names_are_the_identity() {
        let names = [
            SanType::DnsName("Laptop.Example.com".try_into().unwrap()),
            SanType::Rfc822Name("alice@example.com".try_into().unwrap()),
            SanType::URI("spiffe://example.com/alice".try_into().unwrap()),
            SanType::IpAddress("192.0.2.7".parse().unwrap()),
            SanType::IpAddress("2001:db8::7".parse().unwrap()),
        ];
        let identity = identity("bob", &names);
        assert_eq!(&*identity.subject, "CN=bob");
        let expected = [
            "laptop.example.com",
            "alice@example.com",
            "spiffe://example.com/alice",
            "192.0.2.7",
            "2001:db8::7",
        ];
        assert!(identity.alternative_names.iter().map(|name| &**name).eq(expected));
        assert!(expected.iter().all(|name| identity.is(name)));
        assert!(
            !identity.is("bob"),
            "the common name counts only without alternative names"
        );
        assert!(!identity.is("example.com"));
    }

    #[test]
    fn without_alternative_names_the_common_name_is_the_identity() {
        let identity = identity("alice", &[]);
        assert!(identity.is("alice"));
        assert!(!identity.is("Alice") && !identity.is("") && !identity.is("CN=alice"));
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_identity() {
        assert_eq!(Identity::of(b""), None);
        assert_eq!(Identity::of(&[0x30, 0x03, 1, 2, 3]), None);
    }
}

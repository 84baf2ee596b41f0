//! The identity in a verified client certificate.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::names;

/// The names in a verified client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The subject, such as `O=team-a, CN=alice`, escaped: see [RFC 4514 section 2.4](https://www.rfc-editor.org/rfc/rfc4514).
    pub subject: Box<str>,
    /// The subject alternative names: DNS names in lower case, mail addresses, URIs and IP addresses.
    pub alternative_names: Vec<Box<str>>,
    /// Every organization of the subject.
    pub organizations: Vec<Box<str>>,
    /// When the certificate expires; `None` if that is before 1970.
    pub expires: Option<SystemTime>,
    /// True if the certificate has alternative names, also of kinds that are not read.
    has_alternative_names: bool,
    common_name: Option<Box<str>>,
    has_one_common_name: bool,
}

impl CertificateNames {
    /// Returns the names in a certificate in DER; `None` if it cannot be parsed. A verified certificate can.
    pub(crate) fn from_certificate(certificate: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let extension = certificate.subject_alternative_name();
        let has_alternative_names = !matches!(extension, Ok(None));
        let extension = extension.ok().flatten();
        let names = extension.iter().flat_map(|extension| &extension.value.general_names);
        let mut common_names = subject.iter_common_name();
        let common_name = common_names.next();
        let organizations = subject.iter_organization();
        let expires = u64::try_from(certificate.validity().not_after.timestamp()).ok();
        Some(Self {
            subject: names::distinguished(subject).into(),
            alternative_names: names.filter_map(text).collect(),
            organizations: organizations
                .filter_map(|name| name.as_str().ok())
                .map(Into::into)
                .collect(),
            expires: expires.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds)),
            has_alternative_names,
            has_one_common_name: common_names.next().is_none(),
            common_name: common_name.and_then(|name| name.as_str().ok()).map(Into::into),
        })
    }

    /// Returns the alternative names for logs, separated by commas and escaped as in RFC 4514.
    pub fn listed_names(&self) -> String {
        names::list(self.alternative_names.iter().map(|name| &**name))
    }

    /// Returns the user's name: the common name. `None` if there is none, or more than one, as programs differ in which
    /// they take.
    pub fn user_name(&self) -> Option<&str> {
        self.common_name
            .as_deref()
            .filter(|name| self.has_one_common_name && !name.is_empty())
    }

    /// Returns whether the name is one of its alternative names, or the common name if it has no alternative names.
    ///
    /// As in RFC 6125 section 6.4.4: an authority that lets its users choose a common name must not let them choose the
    /// identity of another user by it.
    pub fn is(&self, name: &str) -> bool {
        if !self.has_alternative_names {
            return self.user_name() == Some(name);
        }
        self.alternative_names.iter().any(|own| **own == *name)
    }
}

fn text(name: &GeneralName<'_>) -> Option<Box<str>> {
    if let GeneralName::DNSName(name) = name {
        return Some(name.to_ascii_lowercase().into());
    }
    if let GeneralName::RFC822Name(name) | GeneralName::URI(name) = name {
        return Some((*name).into());
    }
    let GeneralName::IPAddress(bytes) = *name else {
        return None;
    };
    let address = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = address.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    Some(address.ok()?.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn identity(common_name: &str, names: &[SanType]) -> CertificateNames {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = names.to_vec();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        CertificateNames::from_certificate(certificate.der()).unwrap()
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
    fn the_common_name_does_not_count_beside_names_that_are_not_read() {
        let name = (vec![1, 3, 6, 1, 4, 1, 311, 20, 2, 3], "alice@example.com".into());
        let identity = identity("admin", &[SanType::OtherName(name)]);
        assert!(identity.alternative_names.is_empty() && !identity.is("admin"));
    }

    #[test]
    fn without_alternative_names_the_common_name_is_the_identity() {
        let identity = identity("alice", &[]);
        assert!(identity.is("alice"));
        assert!(!identity.is("Alice") && !identity.is("") && !identity.is("CN=alice"));
    }

    #[test]
    fn a_name_that_looks_like_two_is_one_in_the_log_and_itself_for_the_allowlist() {
        let name = "alice@example.com,admin@example.com";
        let identity = identity("alice, O=admin", &[SanType::Rfc822Name(name.try_into().unwrap())]);
        assert_eq!(&*identity.subject, "CN=alice\\, O=admin");
        assert_eq!(identity.listed_names(), "alice@example.com\\,admin@example.com");
        assert!(identity.is(name) && !identity.is("admin@example.com"));
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_identity() {
        assert_eq!(CertificateNames::from_certificate(b""), None);
        assert_eq!(CertificateNames::from_certificate(&[0x30, 0x03, 1, 2, 3]), None);
    }
}

//! Writes the names of certificates as text in which one name cannot look like two (RFC 4514 section 2.4).

use std::fmt::Write;

use data_encoding::HEXUPPER;
use x509_parser::asn1_rs::{Any, BmpString, Tag, ToDer};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use crate::base::text::is_unprintable;

/// Returns a distinguished name in the order of the certificate, such as `O=team-a, CN=alice`.
pub(crate) fn distinguished(name: &X509Name<'_>) -> String {
    let parts = name.iter().map(|part| {
        let attributes: Vec<_> = part.iter().map(attribute).collect();
        attributes.join(" + ")
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns alternative names, separated by commas; commas and backslashes in a name are escaped.
pub(crate) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names
        .map(|name| escaped(name, |character| matches!(character, ',' | '\\')))
        .collect();
    names.join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let kind = attribute.attr_type();
    let kind = oid2abbrev(kind, oid_registry()).map_or_else(|_| kind.to_id_string(), str::to_owned);
    let value = attribute.attr_value();
    match text(value) {
        Some(text) => format!("{kind}={}", value_of(&text)),
        // "#" and the DER of a value that is not text.
        None => {
            let der = value.to_der_vec().unwrap_or_else(|_| value.data.to_vec());
            format!("{kind}=#{}", HEXUPPER.encode(&der))
        }
    }
}

/// Returns the text of a string type.
fn text(value: &Any<'_>) -> Option<String> {
    match value.tag() {
        Tag::Utf8String
        | Tag::PrintableString
        | Tag::Ia5String
        | Tag::NumericString
        | Tag::VisibleString
        | Tag::GeneralString
        | Tag::GraphicString
        | Tag::T61String => String::from_utf8(value.data.to_vec()).ok(),
        Tag::BmpString => BmpString::try_from(value.clone()).ok().map(|text| text.string()),
        _ => None,
    }
}

fn value_of(value: &str) -> String {
    let escaped = escaped(value, |character| {
        matches!(character, '"' | '+' | ',' | ';' | '<' | '>' | '\\')
    });
    if value.starts_with('#') {
        format!("\\{escaped}")
    } else {
        escaped
    }
}

/// Escapes a text: special characters, and a space at either end, get a backslash. Unprintable characters become the
/// bytes of their UTF-8, such as `\E2\80\AE`.
fn escaped(text: &str, is_special: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for (start, character) in text.char_indices() {
        let is_at_an_end = start == 0 || start + character.len_utf8() == text.len();
        if is_unprintable(character) {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                write!(escaped, "\\{byte:02X}").ok();
            }
            continue;
        }
        if is_special(character) || character == ' ' && is_at_an_end {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair};
    use x509_parser::prelude::{FromDer, X509Certificate};

    fn subject(parts: &[(DnType, DnValue)]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let (_, certificate) = X509Certificate::from_der(certificate.der()).unwrap();
        distinguished(certificate.subject())
    }

    #[test]
    fn no_value_can_look_like_two_or_hide_anything() {
        for (value, expected) in [
            ("alice", "CN=alice"),
            ("Zoë Müller-日本", "CN=Zoë Müller-日本"),
            ("alice, O=admin", "CN=alice\\, O=admin"),
            ("alice + OU=admin", "CN=alice \\+ OU=admin"),
            ("a\\,b", "CN=a\\\\\\,b"),
            ("\"a\";<b>", "CN=\\\"a\\\"\\;\\<b\\>"),
            ("a\nb\r\0", "CN=a\\0Ab\\0D\\00"),
            ("bob\u{202e}nimda", "CN=bob\\E2\\80\\AEnimda"),
            (" a ", "CN=\\ a\\ "),
            ("#a#", "CN=\\#a#"),
            ("", "CN="),
        ] {
            assert_eq!(subject(&[(DnType::CommonName, value.into())]), expected, "{value:?}");
        }
    }

    #[test]
    fn every_part_is_named_and_a_value_of_another_type_is_hexadecimal() {
        let own = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 99_999, 1]);
        let parts = [
            (DnType::OrganizationName, DnValue::Utf8String("team, a".into())),
            (own, DnValue::Utf8String("x".into())),
            (DnType::CommonName, DnValue::BmpString("b,c".try_into().unwrap())),
            (DnType::LocalityName, DnValue::UniversalString("d".try_into().unwrap())),
        ];
        assert_eq!(
            subject(&parts),
            "O=team\\, a, 1.3.6.1.4.1.99999.1=x, CN=b\\,c, L=#1C0400000064"
        );
    }

    #[test]
    fn a_list_keeps_its_names_apart() {
        let names = ["alice+ssh@example.com", "a,admin", "b\\", "c\u{2066}"];
        assert_eq!(
            list(names.into_iter()),
            "alice+ssh@example.com,a\\,admin,b\\\\,c\\E2\\81\\A6"
        );
    }
}

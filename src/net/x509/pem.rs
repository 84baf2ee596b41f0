//! Reads PEM (RFC 7468) as strictly as a file of certificates needs: nothing that looks like a section is skipped.
//!
//! The parser of `rustls-pki-types` takes what it does not understand for text between the sections. Two sections in
//! one line, or a mark with four hyphens, would silently lose a certificate or a revocation list.

use std::io;

use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::base::file;

/// An error in a file, with its line if known. Prints as `line 21: it is not PEM: …`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct PemError {
    /// Counted from 1; `None` for an error of the file as a whole.
    pub line: Option<usize>,
    /// The reason.
    pub reason: String,
}

impl PemError {
    pub(crate) fn in_file(reason: impl Into<String>) -> Self {
        Self {
            line: None,
            reason: reason.into(),
        }
    }

    pub(crate) fn at(line: usize, reason: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            reason: reason.into(),
        }
    }

    /// Creates the error of a file that could not be read.
    pub(crate) fn unreadable(error: &io::Error) -> Self {
        Self::in_file(file::unreadable(error))
    }
}

/// The kind of objects in a PEM file.
pub(crate) trait PemKind: PemObject {
    /// Its name in a sentence.
    const NAME: &'static str;
    /// The command of openssl(1) that writes it as PEM.
    const COMMAND: &'static str;

    /// Returns the error of a label that resembles this kind's, but is not read; `None` for any other label.
    fn refuse(label: &str) -> Option<&'static str>;
}

impl PemKind for CertificateDer<'static> {
    const NAME: &'static str = "certificate";
    const COMMAND: &'static str = "x509";

    fn refuse(label: &str) -> Option<&'static str> {
        let is_other = label != "CERTIFICATE" && label.ends_with("CERTIFICATE");
        is_other.then_some("a certificate of a label that is not read: `openssl x509` writes it as `CERTIFICATE`")
    }
}

impl PemKind for CertificateRevocationListDer<'static> {
    const NAME: &'static str = "revocation list";
    const COMMAND: &'static str = "crl";

    fn refuse(label: &str) -> Option<&'static str> {
        let is_other = label != "X509 CRL" && label.ends_with("CRL");
        is_other.then_some("a revocation list of a label that is not read: `openssl crl` writes it as `X509 CRL`")
    }
}

impl PemKind for PrivateKeyDer<'static> {
    const NAME: &'static str = "private key";
    const COMMAND: &'static str = "pkey";

    fn refuse(label: &str) -> Option<&'static str> {
        match label {
            "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY" => None,
            "ENCRYPTED PRIVATE KEY" => Some(ENCRYPTED),
            _ if label.ends_with("PRIVATE KEY") => {
                Some("a private key of a kind that TLS does not use: it must be RSA, ECDSA or Ed25519")
            }
            _ => None,
        }
    }
}

/// Returns all items of one kind in a file, each with the line where it begins; at least one.
///
/// # Errors
/// The first error in the file.
pub(crate) fn items<T: PemKind>(bytes: &[u8]) -> Result<Vec<(usize, T)>, PemError> {
    refuse_other_forms::<T>(bytes)?;
    let mut items = Vec::new();
    for section in sections(bytes)? {
        if let Some(reason) = T::refuse(section.label) {
            return Err(PemError::at(section.line, reason));
        }
        match T::from_pem_slice(section.text) {
            // A section of another kind, such as the key after a certificate.
            Err(Error::NoItemsFound) => {}
            _ if section.is_encrypted() => return Err(PemError::at(section.line, ENCRYPTED)),
            Ok(item) => items.push((section.line, item)),
            Err(error) => return Err(PemError::at(section.line, format!("it is not PEM: {error}"))),
        }
    }
    if items.is_empty() {
        Err(absent::<T>())
    } else {
        Ok(items)
    }
}

/// Returns the first item of one kind in a file.
///
/// # Errors
/// The first error in the file.
pub(crate) fn first<T: PemKind>(bytes: &[u8]) -> Result<T, PemError> {
    let first = items(bytes)?.into_iter().next();
    first.map(|(_, item)| item).ok_or_else(absent::<T>)
}

fn absent<T: PemKind>() -> PemError {
    PemError::in_file(format!("there is no {} in it", T::NAME))
}

/// Refuses a file that is not PEM at all, with a reason that names its format.
fn refuse_other_forms<T: PemKind>(bytes: &[u8]) -> Result<(), PemError> {
    let reason = match bytes {
        [0xef, 0xbb, 0xbf, ..] => "it begins with a byte order mark (BOM): save it without one, as plain ASCII".into(),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it is UTF-16: save it as plain ASCII".into(),
        // A SEQUENCE, as certificates, lists, keys and PKCS #12 are in DER. The second test is for a length below 128
        // bytes, such as of an Ed25519 key.
        [0x30, length, rest @ ..] if matches!(length, 0x81..=0x84) || usize::from(*length) == rest.len() => {
            let command = T::COMMAND;
            format!("it is DER, not PEM: `openssl {command} -inform der` converts it, `openssl pkcs12` a .p12 file")
        }
        _ => return Ok(()),
    };
    Err(PemError::in_file(reason))
}

/// One section, from its first mark to its last.
struct Section<'a> {
    label: &'a str,
    line: usize,
    text: &'a [u8],
}

impl Section<'_> {
    /// Returns whether a header of RFC 1421 says that its key is encrypted.
    fn is_encrypted(&self) -> bool {
        let mut lines = self.text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
        lines.any(|line| line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED"))
    }
}

/// Finds the sections of a file. A line with what looks like a mark must be one, and nothing else.
fn sections(bytes: &[u8]) -> Result<Vec<Section<'_>>, PemError> {
    let (mut sections, mut open, mut end) = (Vec::new(), None, 0);
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let start = end;
        end += line.len();
        let Some((is_end, label)) = mark(line, number)? else {
            continue;
        };
        open = match (is_end, open) {
            (false, None) => Some((number, label, start)),
            (true, Some((line, begun, start))) if begun == label => {
                let text = bytes.get(start..end).unwrap_or_default();
                sections.push(Section { label, line, text });
                None
            }
            (true, None) => {
                let reason = format!("there is no `-----BEGIN {label}-----` before this line");
                return Err(PemError::at(number, reason));
            }
            (_, Some((line, label, _))) => {
                let reason = format!("there is no `-----END {label}-----` for line {line} before this line");
                return Err(PemError::at(number, reason));
            }
        };
    }
    match open {
        None => Ok(sections),
        Some((line, label, _)) => {
            let reason = format!("there is no `-----END {label}-----` after this line");
            Err(PemError::at(line, reason))
        }
    }
}

/// Reads the first or the last line of a section: whether it is the last, and its label. `None` for any other line.
fn mark(line: &[u8], number: usize) -> Result<Option<(bool, &str)>, PemError> {
    let label = |start: &[u8]| {
        let label = line.trim_ascii_end().strip_prefix(start)?.strip_suffix(b"-----")?;
        let is_label = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'-';
        std::str::from_utf8(label).ok().filter(|_| label.iter().all(is_label))
    };
    let begin = label(b"-----BEGIN ").map(|label| (false, label));
    let mark = begin.or_else(|| Some((true, label(b"-----END ")?)));
    let has = |part: &[u8]| line.windows(part.len()).any(|at| at == part);
    if mark.is_none() && (has(b"-BEGIN ") || has(b"-END ")) {
        let reason =
            "`-----BEGIN …-----` and `-----END …-----` must each be a whole line, with five hyphens on both sides";
        return Err(PemError::at(number, reason));
    }
    Ok(mark)
}

const ENCRYPTED: &str = "the private key is encrypted: `openssl pkey` writes it without its passphrase";

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";

    fn certificates(text: &str) -> Result<Vec<usize>, String> {
        items::<CertificateDer<'static>>(text.as_bytes())
            .map(|items| items.into_iter().map(|(line, _)| line).collect())
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn each_section_is_found_with_its_line_whatever_stands_between() {
        for (text, expected) in [
            (format!("{BEGIN}\nAAAA\n{END}"), vec![1]),
            (
                format!("subject=CN = a\n\n{BEGIN}\nAAAA\n{END}\n\n{BEGIN}\nAAAA\n{END}\n"),
                vec![3, 7],
            ),
            (
                format!("{BEGIN}\r\nAAAA\r\n{END}\r\n{BEGIN}\r\nAAAA\r\n{END}\r\n"),
                vec![1, 4],
            ),
            (format!("{BEGIN}  \nAAAA\n{END} \t"), vec![1]),
            (
                format!("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n{BEGIN}\nAAAA\n{END}\n"),
                vec![4],
            ),
            (
                format!("-----BEGIN EC PARAMETERS-----\nAAAA\n-----END EC PARAMETERS-----\n{BEGIN}\n{END}\n"),
                vec![4],
            ),
        ] {
            assert_eq!(certificates(&text), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn what_looks_like_a_section_and_is_none_is_a_fault_with_its_line() {
        let whole =
            "`-----BEGIN …-----` and `-----END …-----` must each be a whole line, with five hyphens on both sides";
        for (text, expected) in [
            (
                format!("{BEGIN}\nAAAA\n{END}{BEGIN}\nAAAA\n{END}\n"),
                format!("line 3: {whole}"),
            ),
            (
                format!("{BEGIN}\nAAAA\n{END}\n text {BEGIN}\nAAAA\n{END}\n"),
                format!("line 4: {whole}"),
            ),
            (format!("{BEGIN}\nAAAA{END}\n"), format!("line 2: {whole}")),
            (
                format!("{BEGIN}\nAAAA\n{END}\n{}\nAAAA\n{END}\n", &BEGIN[1..]),
                format!("line 4: {whole}"),
            ),
            (format!("{BEGIN}AAAA\n{END}\n"), format!("line 1: {whole}")),
            // The parser would take a CR alone for the end of a line.
            (format!("text\r{BEGIN}\rAAAA\r{END}\n"), format!("line 1: {whole}")),
            (
                format!("{BEGIN}\nAAAA\n"),
                format!("line 1: there is no `{END}` after this line"),
            ),
            (
                format!("{BEGIN}\nAAAA\n{BEGIN}\nAAAA\n{END}\n"),
                format!("line 3: there is no `{END}` for line 1 before this line"),
            ),
            (
                format!("{BEGIN}\nAAAA\n-----END X509 CRL-----\n"),
                format!("line 3: there is no `{END}` for line 1 before this line"),
            ),
            (
                format!("AAAA\n{END}\n"),
                format!("line 2: there is no `{BEGIN}` before this line"),
            ),
            (
                "\n-----BEGIN TRUSTED CERTIFICATE-----\nAAAA\n-----END TRUSTED CERTIFICATE-----\n".to_owned(),
                "line 2: a certificate of a label that is not read: `openssl x509` writes it as `CERTIFICATE`"
                    .to_owned(),
            ),
            (String::new(), "there is no certificate in it".to_owned()),
            ("hello\n".to_owned(), "there is no certificate in it".to_owned()),
            (
                format!("\u{feff}{BEGIN}\nAAAA\n{END}\n"),
                "it begins with a byte order mark (BOM): save it without one, as plain ASCII".to_owned(),
            ),
        ] {
            assert_eq!(certificates(&text), Err(expected), "{text:?}");
        }
        let damaged = certificates(&format!("\n{BEGIN}\n!\n{END}\n")).unwrap_err();
        assert!(damaged.starts_with("line 2: it is not PEM: "), "{damaged}");
    }

    #[test]
    fn other_forms_of_a_file_are_named() {
        let fault = |bytes: &[u8]| items::<PrivateKeyDer<'static>>(bytes).unwrap_err().to_string();
        for der in [&[0x30, 0x82, 1, 2][..], &[0x30, 3, 2, 1, 0]] {
            assert_eq!(
                fault(der),
                "it is DER, not PEM: `openssl pkey -inform der` converts it, `openssl pkcs12` a .p12 file"
            );
        }
        assert_eq!(fault(b"\xff\xfe-\0-\0"), "it is UTF-16: save it as plain ASCII");
        for text in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
        ] {
            let expected = "line 1: the private key is encrypted: `openssl pkey` writes it without its passphrase";
            assert_eq!(fault(text.as_bytes()), expected);
        }
        let other = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n";
        let expected = "line 1: a private key of a kind that TLS does not use: it must be RSA, ECDSA or Ed25519";
        assert_eq!(fault(other.as_bytes()), expected);
    }
}

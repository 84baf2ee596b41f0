//! Reads PEM (RFC 7468) as strictly as a file of certificates needs: nothing that looks like a section is skipped.
//!
//! The parser of `rustls-pki-types` takes what it does not understand for text between the sections. Two sections in
//! one line, or a mark with four hyphens, would lose a certificate or a revocation list that way, in silence.

use std::fmt;
use std::io;

use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// A fault of a file, with the line where it is known. Prints as `line 21: this line must be …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFault {
    /// Counted from 1; `None` for a fault of the file as a whole.
    pub line: Option<usize>,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for PemFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for PemFault {}

impl PemFault {
    fn of_the_file(reason: impl Into<String>) -> Self {
        Self {
            line: None,
            reason: reason.into(),
        }
    }

    fn at(line: usize, reason: impl Into<String>) -> Self {
        Self {
            line: Some(line),
            reason: reason.into(),
        }
    }

    /// The fault of a file that could not be read.
    pub(crate) fn unreadable(error: &io::Error) -> Self {
        let kind = error.kind();
        let is_sentence = matches!(kind, io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge);
        Self::of_the_file(if kind == io::ErrorKind::NotFound {
            "there is no such file".to_owned()
        } else if is_sentence {
            error.to_string()
        } else {
            format!("cannot be read: {error}")
        })
    }
}

/// What a file is read for.
pub(crate) trait Item: PemObject {
    /// Its name in a sentence.
    const NAME: &'static str;
    /// The command of openssl(1) that writes it as PEM.
    const COMMAND: &'static str;

    /// The fault of a section with this label, which looks like one of them and is none.
    fn refuse(label: &str) -> Option<&'static str>;
}

impl Item for CertificateDer<'static> {
    const NAME: &'static str = "certificate";
    const COMMAND: &'static str = "x509";

    fn refuse(label: &str) -> Option<&'static str> {
        let is_other = label != "CERTIFICATE" && label.ends_with("CERTIFICATE");
        is_other.then_some("a certificate of a label that is not read: `openssl x509` writes it as `CERTIFICATE`")
    }
}

impl Item for CertificateRevocationListDer<'static> {
    const NAME: &'static str = "revocation list";
    const COMMAND: &'static str = "crl";

    fn refuse(label: &str) -> Option<&'static str> {
        let is_other = label != "X509 CRL" && label.ends_with("CRL");
        is_other.then_some("a revocation list of a label that is not read: `openssl crl` writes it as `X509 CRL`")
    }
}

impl Item for PrivateKeyDer<'static> {
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

/// All items of one kind in a file, each with the line where it begins; at least one.
///
/// # Errors
/// The first fault of the file.
pub(crate) fn items<T: Item>(bytes: &[u8]) -> Result<Vec<(usize, T)>, PemFault> {
    refuse_other_forms::<T>(bytes)?;
    let mut items = Vec::new();
    for section in sections(bytes)? {
        if let Some(reason) = T::refuse(section.label) {
            return Err(PemFault::at(section.line, reason));
        }
        match T::from_pem_slice(section.text) {
            Ok(_) if section.is_encrypted => return Err(PemFault::at(section.line, ENCRYPTED)),
            Ok(item) => items.push((section.line, item)),
            // A section of another kind, such as the key behind a certificate.
            Err(Error::NoItemsFound) => {}
            Err(_) if section.is_encrypted => return Err(PemFault::at(section.line, ENCRYPTED)),
            Err(error) => return Err(PemFault::at(section.line, format!("it is not PEM: {error}"))),
        }
    }
    if items.is_empty() {
        Err(absent::<T>())
    } else {
        Ok(items)
    }
}

/// The first item of one kind in a file.
///
/// # Errors
/// The first fault of the file.
pub(crate) fn first<T: Item>(bytes: &[u8]) -> Result<T, PemFault> {
    let first = items(bytes)?.into_iter().next();
    first.map(|(_, item)| item).ok_or_else(absent::<T>)
}

fn absent<T: Item>() -> PemFault {
    PemFault::of_the_file(format!("there is no {} in it", T::NAME))
}

/// Finds what is no PEM at all, and says what it is.
fn refuse_other_forms<T: Item>(bytes: &[u8]) -> Result<(), PemFault> {
    let reason = match bytes {
        [0xef, 0xbb, 0xbf, ..] => {
            "it begins with a byte order mark (BOM): save it without one, as plain ASCII".to_owned()
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it is UTF-16: save it as plain ASCII".to_owned(),
        // A SEQUENCE of more than 127 bytes: certificates, lists, keys and PKCS #12 are that in DER.
        [0x30, 0x81..=0x84, ..] => {
            let command = T::COMMAND;
            format!("it is DER, not PEM: `openssl {command} -inform der` converts it, `openssl pkcs12` a .p12 file")
        }
        _ => return Ok(()),
    };
    Err(PemFault::of_the_file(reason))
}

/// One section, from its first mark to its last.
struct Section<'a> {
    label: &'a str,
    line: usize,
    text: &'a [u8],
    /// It has a header of RFC 1421 that says so.
    is_encrypted: bool,
}

/// A section whose last mark has not come.
struct Open<'a> {
    label: &'a str,
    line: usize,
    start: usize,
    is_encrypted: bool,
}

/// The sections of a file. Every line with what looks like a mark is one, and nothing else stands in it.
fn sections(bytes: &[u8]) -> Result<Vec<Section<'_>>, PemFault> {
    let mut sections = Vec::new();
    let mut open: Option<Open<'_>> = None;
    for line in lines(bytes) {
        let number = line.number;
        match (Mark::of(line.text, number)?, open.take()) {
            (Some(Mark::Begin(label)), None) => {
                open = Some(Open {
                    label,
                    line: number,
                    start: line.start,
                    is_encrypted: false,
                });
            }
            (Some(Mark::Begin(_)), Some(before)) => return Err(before.unended(number)),
            (Some(Mark::End(label)), Some(begun)) if begun.label == label => sections.push(Section {
                label,
                line: begun.line,
                text: bytes.get(begun.start..line.end).unwrap_or_default(),
                is_encrypted: begun.is_encrypted,
            }),
            (Some(Mark::End(_)), Some(begun)) => return Err(begun.unended(number)),
            (Some(Mark::End(label)), None) => {
                return Err(PemFault::at(
                    number,
                    format!("there is no `-----BEGIN {label}-----` before this line"),
                ));
            }
            (None, None) => {}
            (None, Some(mut begun)) => {
                begun.is_encrypted |= is_encryption_header(line.text);
                open = Some(begun);
            }
        }
    }
    match open {
        None => Ok(sections),
        Some(begun) => Err(PemFault::at(
            begun.line,
            format!("there is no `-----END {}-----` after this line", begun.label),
        )),
    }
}

impl Open<'_> {
    fn unended(&self, line: usize) -> PemFault {
        let Self { label, line: begin, .. } = self;
        PemFault::at(
            line,
            format!("there is no `-----END {label}-----` for line {begin} before this line"),
        )
    }
}

fn is_encryption_header(line: &[u8]) -> bool {
    line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED")
}

/// The first or the last line of a section.
enum Mark<'a> {
    Begin(&'a str),
    End(&'a str),
}

impl<'a> Mark<'a> {
    fn of(line: &'a [u8], number: usize) -> Result<Option<Self>, PemFault> {
        let looks_like_one = [&b"-BEGIN "[..], b"-END "]
            .iter()
            .any(|part| line.windows(part.len()).any(|at| at == *part));
        if !looks_like_one {
            return Ok(None);
        }
        let label = |start: &[u8]| {
            let label = line.trim_ascii_end().strip_prefix(start)?.strip_suffix(HYPHENS)?;
            let is_label = |byte: &u8| byte.is_ascii_graphic() && *byte != b'-' || *byte == b' ';
            std::str::from_utf8(label)
                .ok()
                .filter(|label| label.as_bytes().iter().all(is_label))
        };
        match (label(b"-----BEGIN "), label(b"-----END ")) {
            (Some(label), _) => Ok(Some(Self::Begin(label))),
            (_, Some(label)) => Ok(Some(Self::End(label))),
            (None, None) => {
                let reason = "`-----BEGIN …-----` and `-----END …-----` must each be a whole line, with five hyphens on both sides";
                Err(PemFault::at(number, reason))
            }
        }
    }
}

/// One line, without its end.
struct Line<'a> {
    number: usize,
    text: &'a [u8],
    start: usize,
    end: usize,
}

/// The lines, which end as those of `rustls-pki-types` do: with LF, CR or both.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let (mut start, mut number) = (0, 1);
    bytes
        .split_inclusive(|byte| matches!(byte, b'\n' | b'\r'))
        .map(move |whole| {
            let text = whole
                .strip_suffix(b"\n")
                .or_else(|| whole.strip_suffix(b"\r"))
                .unwrap_or(whole);
            let line = Line {
                number,
                text,
                start,
                end: start + text.len(),
            };
            start += whole.len();
            // CR and LF together end one line: the LF alone is counted.
            let is_half = whole.ends_with(b"\r") && bytes.get(start) == Some(&b'\n');
            number += usize::from(whole.len() > text.len() && !is_half);
            line
        })
}

const HYPHENS: &[u8] = b"-----";
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
            (format!("{BEGIN}\rAAAA\r{END}\r{BEGIN}  \rAAAA\r{END} \t"), vec![1, 4]),
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
        assert_eq!(
            fault(&[0x30, 0x82, 1, 2]),
            "it is DER, not PEM: `openssl pkey -inform der` converts it, `openssl pkcs12` a .p12 file"
        );
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

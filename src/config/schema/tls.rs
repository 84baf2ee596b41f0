//! The section `tls`: what clients are shown, and what they have to show. Its files are read at once, to be checked.

use std::path::PathBuf;
use std::time::Duration;

use super::at_most_an_hour;
use crate::config::section::{Field, Section};
use crate::tls::{ClientAuth, Pair, Part, Settings};

/// Reads the section, and the files that it names.
pub(super) fn read(section: &mut Section<'_>) -> Settings {
    let faults = section.faults();
    let default = Settings::default();
    let pairs = pairs(section);
    let client_auth = section.value("client_auth", client_auth);
    let client_auth = client_auth.unwrap_or(default.client_auth);
    let client_ca = file(section.field("client_ca"));
    let crl = file(section.field("crl"));
    let poll = section.value("poll", poll).unwrap_or(default.poll);
    match (client_auth, &client_ca, &crl) {
        (ClientAuth::Off, None, None) | (ClientAuth::Optional | ClientAuth::Required, Some(_), _) => {}
        (ClientAuth::Off, Some((place, _)), _) | (ClientAuth::Off, None, Some((place, _))) => {
            place.fault("of no use without `client_auth`");
        }
        (ClientAuth::Optional | ClientAuth::Required, None, _) => {
            section.fault("`client_auth` needs `client_ca`: who may have issued the certificates");
        }
    }
    let settings = Settings {
        certificates: pairs.iter().map(|pair| pair.files.clone()).collect(),
        client_auth,
        client_ca: client_ca.as_ref().map(|(_, path)| path.clone()),
        crl: crl.as_ref().map(|(_, path)| path.clone()),
        poll,
    };
    if section.faults() == faults {
        for fault in settings.faults() {
            let place = match fault.part {
                Part::Certificate(index) => pairs.get(index).map(|pair| &pair.cert),
                Part::Key(index) => pairs.get(index).map(|pair| &pair.key),
                Part::ClientCa => client_ca.as_ref().map(|(place, _)| place),
                Part::Crl => crl.as_ref().map(|(place, _)| place),
                Part::None => None,
            };
            match place {
                Some(place) => place.fault(fault.to_string()),
                None => section.fault(fault.to_string()),
            }
        }
    }
    settings
}

/// An item of `certificates`, and where it stands.
struct PairField<'a> {
    files: Pair,
    cert: Field<'a>,
    key: Field<'a>,
}

fn pairs<'a>(section: &mut Section<'a>) -> Vec<PairField<'a>> {
    let entries = section.field("certificates").map(|field| field.items());
    let pair = |keys: &mut Section<'a>| {
        let (cert, key) = (keys.required("cert"), keys.required("key"));
        let ((cert, cert_path), (key, key_path)) = (file(cert)?, file(key)?);
        Some(PairField {
            files: Pair {
                cert: cert_path,
                key: key_path,
            },
            cert,
            key,
        })
    };
    let entries = entries.unwrap_or_default();
    entries
        .iter()
        .filter_map(|entry| entry.section(pair).flatten())
        .collect()
}

fn file(field: Option<Field<'_>>) -> Option<(Field<'_>, PathBuf)> {
    let field = field?;
    let path = field.parse(|text| match text {
        "" => Err("expected the path of a file"),
        _ => Ok(PathBuf::from(text)),
    })?;
    Some((field, path))
}

fn client_auth(text: &str) -> Result<ClientAuth, &'static str> {
    match text {
        "off" => Ok(ClientAuth::Off),
        "optional" => Ok(ClientAuth::Optional),
        "required" => Ok(ClientAuth::Required),
        _ => Err("expected `off`, `optional` or `required`"),
    }
}

fn poll(text: &str) -> Result<Duration, &'static str> {
    match at_most_an_hour(text)? {
        poll if poll.is_zero() => Err("must be more than 0s"),
        poll => Ok(poll),
    }
}

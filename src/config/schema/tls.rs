//! The section `tls`: the certificates of the proxy and of its clients. Their files are read at once, to be checked.

use std::path::PathBuf;

use crate::config::form::{BRIEF_TIMEOUT, Form, PATH, Schema};
use crate::config::section::{Field, Section};
use crate::tls::{CertificatePaths, ClientAuth, CrlExpired, Part, Settings};

/// Reads the section, and checks the files that it names.
pub(super) fn read(section: &mut Section<'_>) -> Settings {
    let faults = section.faults();
    let default = Settings::default();
    let pairs = pairs(section);
    let client_auth = section.value("client_auth", &CLIENT_AUTH);
    let client_auth = client_auth.unwrap_or(default.client_auth);
    let client_ca = file(section.field("client_ca"));
    let crl = file(section.field("crl"));
    let crl_expired = section.value("crl_expired", &CRL_EXPIRED);
    let poll = section.value("poll", &BRIEF_TIMEOUT).unwrap_or(default.poll);
    match (client_auth, &client_ca, &crl) {
        (ClientAuth::Off, None, None) | (ClientAuth::Optional | ClientAuth::Required, Some(_), _) => {}
        (ClientAuth::Off, Some(file), _) | (ClientAuth::Off, None, Some(file)) => {
            file.field.fault("has no effect without `client_auth`");
        }
        (ClientAuth::Optional | ClientAuth::Required, None, _) => {
            section.fault("`client_auth` needs `client_ca`: the authorities that issue client certificates");
        }
    }
    let settings = Settings {
        certificates: pairs.iter().map(PairField::paths).collect(),
        client_auth,
        client_ca: client_ca.as_ref().map(|file| file.path.clone()),
        crl: crl.as_ref().map(|file| file.path.clone()),
        crl_expired: crl_expired.unwrap_or_default(),
        poll,
    };
    if section.faults() == faults {
        for fault in settings.judge().faults {
            let file = match fault.part {
                Part::Certificate(index) => pairs.get(index).map(|pair| &pair.cert),
                Part::Key(index) => pairs.get(index).map(|pair| &pair.key),
                Part::ClientCa => client_ca.as_ref(),
                Part::Crl => crl.as_ref(),
                Part::None => None,
            };
            match file {
                Some(file) => file.field.fault(fault.to_string()),
                None => section.fault(fault.to_string()),
            }
        }
    }
    settings
}

/// The path of a file, and its place in the configuration.
struct FileField<'a> {
    field: Field<'a>,
    path: PathBuf,
}

/// An item of `certificates`.
struct PairField<'a> {
    cert: FileField<'a>,
    key: FileField<'a>,
}

impl PairField<'_> {
    fn paths(&self) -> CertificatePaths {
        CertificatePaths {
            cert: self.cert.path.clone(),
            key: self.key.path.clone(),
        }
    }
}

fn pairs<'a>(section: &mut Section<'a>) -> Vec<PairField<'a>> {
    let entries = section.field("certificates").map(|field| field.items());
    let pair = |keys: &mut Section<'a>| {
        let (cert, key) = (file(keys.required("cert")), file(keys.required("key")));
        Some(PairField { cert: cert?, key: key? })
    };
    let entries = entries.unwrap_or_default();
    entries
        .iter()
        .filter_map(|entry| entry.section(pair).flatten())
        .collect()
}

fn file(field: Option<Field<'_>>) -> Option<FileField<'_>> {
    let field = field?;
    let path = field.parse(&PATH)?;
    Some(FileField { field, path })
}

const CLIENT_AUTH: Form<ClientAuth> = Form {
    parse: client_auth,
    schema: Schema::Words(&["off", "optional", "required"]),
};

fn client_auth(text: &str) -> Result<ClientAuth, &'static str> {
    match text {
        "off" => Ok(ClientAuth::Off),
        "optional" => Ok(ClientAuth::Optional),
        "required" => Ok(ClientAuth::Required),
        _ => Err("expected `off`, `optional` or `required`"),
    }
}

const CRL_EXPIRED: Form<CrlExpired> = Form {
    parse: crl_expired,
    schema: Schema::Words(&["refuse", "accept"]),
};

fn crl_expired(text: &str) -> Result<CrlExpired, &'static str> {
    match text {
        "refuse" => Ok(CrlExpired::Refuse),
        "accept" => Ok(CrlExpired::Accept),
        _ => Err("expected `refuse` or `accept`"),
    }
}

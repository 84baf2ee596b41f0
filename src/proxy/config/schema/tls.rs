//! The section `tls`: the certificates of the proxy and of its clients, and the faults of their files.

use std::path::PathBuf;

use crate::net::tls::{CertificatePaths, ClientAuth, CrlExpired, Judgement, Part, Settings};
use crate::proxy::config::form::{BRIEF_TIMEOUT, Form, PATH, Schema};
use crate::proxy::config::section::{Field, Section};

/// The section as it was read. What it names has not been looked at.
#[derive(Default)]
pub(super) struct Tls<'a> {
    /// The settings; a value that is a fault has its default.
    pub(super) settings: Settings,
    /// Whether it names certificates, with faults or without.
    pub(super) has_certificates: bool,
    /// What its files are judged by: with `client_auth` a fault, they are meant to be used.
    judged_auth: ClientAuth,
    /// The section itself; `None` without one.
    section: Option<Field<'a>>,
    pairs: Vec<PairField<'a>>,
    client_ca: Option<FileField<'a>>,
    crl: Option<FileField<'a>>,
}

/// Reads the section, but not the files that it names.
pub(super) fn read<'a>(section: &mut Section<'a>) -> Tls<'a> {
    let default = Settings::default();
    let (pairs, has_certificates) = pairs(section);
    let auth_field = section.field("client_auth");
    let client_auth = auth_field.as_ref().map(|field| field.parse(&CLIENT_AUTH));
    let client_ca_field = section.field("client_ca");
    let crl_field = section.field("crl");
    let crl_expired = section.value("crl_expired", &CRL_EXPIRED);
    let poll = section.value("poll", &BRIEF_TIMEOUT).unwrap_or(default.poll);
    match (client_auth, client_ca_field.as_ref().or(crl_field.as_ref())) {
        (None | Some(Some(ClientAuth::Off)), Some(file)) => file.fault("has no effect without `client_auth`"),
        (Some(Some(ClientAuth::Optional | ClientAuth::Required)), _) if client_ca_field.is_none() => {
            let reason = "`client_auth` needs `client_ca`: the authorities that issue client certificates";
            section.itself().fault(reason);
        }
        (None | Some(_), None | Some(_)) => {}
    }
    let (client_ca, crl) = (file(client_ca_field), file(crl_field));
    Tls {
        settings: Settings {
            certificates: pairs.iter().map(PairField::paths).collect(),
            client_auth: client_auth.flatten().unwrap_or(default.client_auth),
            client_ca: client_ca.as_ref().map(|file| file.path.clone()),
            crl: crl.as_ref().map(|file| file.path.clone()),
            crl_expired: crl_expired.unwrap_or_default(),
            poll,
        },
        has_certificates,
        judged_auth: match client_auth {
            Some(None) => ClientAuth::Optional,
            Some(Some(auth)) => auth,
            None => default.client_auth,
        },
        section: Some(section.itself()),
        pairs,
        client_ca,
        crl,
    }
}

impl Tls<'_> {
    /// Reports the faults of the files that the section names, and what else is to be known of them, whatever else is a fault: a missing file hides no other
    /// fault, and is hidden by none.
    pub(super) fn check_files(&self) {
        let judged = Settings {
            client_auth: self.judged_auth,
            ..self.settings.clone()
        };
        let Judgement { faults, remarks } = judged.judge();
        for fault in faults {
            self.field_of(fault.part)
                .inspect(|field| field.fault(fault.to_string()));
        }
        for remark in remarks {
            self.field_of(remark.part)
                .inspect(|field| field.warning(remark.to_string()));
        }
    }

    fn field_of(&self, part: Part) -> Option<&Field<'_>> {
        let file = match part {
            Part::Certificate(index) => self.pairs.get(index).map(|pair| &pair.cert),
            Part::Key(index) => self.pairs.get(index).map(|pair| &pair.key),
            Part::ClientCa => self.client_ca.as_ref(),
            Part::Crl => self.crl.as_ref(),
            Part::None => None,
        };
        file.map(|file| &file.field).or(self.section.as_ref())
    }
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

/// The certificates without faults, and whether there is any with or without.
fn pairs<'a>(section: &mut Section<'a>) -> (Vec<PairField<'a>>, bool) {
    let Some(field) = section.field("certificates") else {
        return (Vec::new(), false);
    };
    let pair = |keys: &mut Section<'a>| {
        let (cert, key) = (file(keys.required("cert")), file(keys.required("key")));
        Some(PairField { cert: cert?, key: key? })
    };
    let entries = field.items();
    let pairs = entries.iter().filter_map(|entry| entry.section(pair).flatten());
    (pairs.collect(), !field.is_list() || !entries.is_empty())
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

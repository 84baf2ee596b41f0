//! The files of a directory as settings: what they are good for, what is said of them, and what is wrong with them.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::slice;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;

use super::*;

const HANDSHAKE: Duration = Duration::from_secs(5);

mod reload;

/// A directory with an authority, and files for settings.
struct Files {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate in PEM, its DER, and its key in PEM.
struct Made {
    pem: String,
    der: CertificateDer<'static>,
    key: String,
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Files {
    fn new() -> Self {
        let mut params = named("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = Self {
            folder: TempDir::new().unwrap(),
            authority,
        };
        files.write("ca", &files.authority.pem());
        files
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Returns a certificate with this serial number, from January of a year to that of another one.
    fn issue(&self, serial: u64, from: i32, to: i32) -> Made {
        let mut params = named("client");
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        self.made(&params)
    }

    fn made(&self, params: &CertificateParams) -> Made {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        Made {
            pem: certificate.pem(),
            der: certificate.der().clone(),
            key: key.serialize_pem(),
        }
    }

    /// Returns a list of this number on which these serial numbers stand, from that year to January of another one.
    fn list(&self, number: u64, revoked: &[u64], years: [i32; 2]) -> String {
        let revoked = revoked.iter().map(|&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(years[0], 1, 1),
            next_update: date_time_ymd(years[1], 1, 1),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.authority).unwrap().pem().unwrap()
    }

    /// Settings with the authority and these lists.
    fn with_lists(&self, lists: &str) -> Settings {
        Settings {
            client_auth: ClientAuth::Required,
            client_ca: Some(self.folder.path().join("ca")),
            crl: Some(self.write("crl", lists)),
            ..Settings::default()
        }
    }

    /// Settings with these authorities.
    fn with_authorities(&self, text: &str) -> Settings {
        Settings {
            client_auth: ClientAuth::Required,
            client_ca: Some(self.write("ca", text)),
            ..Settings::default()
        }
    }

    /// Settings with this chain and key.
    fn with_pair(&self, chain: &str, key: &str) -> Settings {
        Settings {
            certificates: vec![CertificatePaths {
                cert: self.write("cert", chain),
                key: self.write("key", key),
            }],
            ..Settings::default()
        }
    }

    /// Returns the errors and the remarks of these settings, without the name of the folder.
    fn said(&self, settings: &Settings) -> (Vec<String>, Vec<String>) {
        let judged = settings.check_files();
        let (faults, remarks) = match judged {
            Ok(remarks) => (Vec::new(), remarks),
            Err(faults) => (faults, Vec::new()),
        };
        let folder = format!("{}/", self.folder.path().display());
        let text = |found: Vec<FileError>| {
            found
                .iter()
                .map(|fault| fault.to_string().replace(&folder, ""))
                .collect()
        };
        (text(faults), text(remarks))
    }
}

/// How a client with these certificates fares now.
fn verdict(settings: &Settings, certificates: &[CertificateDer<'static>]) -> Result<(), FailureCause> {
    let tls = Tls::new(settings.clone(), HANDSHAKE).unwrap();
    let verified = tls.server.read().verify(certificates);
    verified.map_err(|error| FailureCause::from_tls(&error))
}

#[test]
fn a_client_certificate_is_judged_by_its_dates_its_issuer_and_its_list_as_of_now() {
    let (files, stranger) = (Files::new(), Files::new());
    let settings = files.with_lists(&files.list(1, &[6], [2020, 2090]));
    for (made, expected) in [
        (files.issue(5, 2020, 2090), Ok(())),
        (files.issue(6, 2020, 2090), Err(FailureCause::ClientCertificateRevoked)),
        (files.issue(5, 2001, 2002), Err(FailureCause::ClientCertificateExpired)),
        (files.issue(5, 2089, 2090), Err(FailureCause::ClientCertificateExpired)),
        (
            stranger.issue(5, 2020, 2090),
            Err(FailureCause::ClientCertificateInvalid),
        ),
    ] {
        assert_eq!(verdict(&settings, &[made.der]), expected);
    }
    assert_eq!(verdict(&settings, &[]), Err(FailureCause::ClientCertificateMissing));
    let optional = Settings {
        client_auth: ClientAuth::Optional,
        ..settings
    };
    assert_eq!(verdict(&optional, &[]), Ok(()));
    assert_eq!(verdict(&Settings::default(), &[]), Ok(()));
    let unasked = verdict(&Settings::default(), &[files.issue(5, 2020, 2090).der]);
    assert_eq!(unasked, Err(FailureCause::ClientCertificateInvalid));
}

/// Returns a certificate of an authority for itself, as `openssl req -x509` makes it.
fn self_signed(change: fn(&mut CertificateParams)) -> rcgen::Certificate {
    let mut params = named("127.0.0.1");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap()
}

fn expired() -> rcgen::Certificate {
    self_signed(|params| (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1)))
}

/// The table of `client_ca`; those of the places that trust servers are in tests/it/trust.rs.
#[test]
fn a_bundle_of_client_authorities_is_read_as_that_of_servers() {
    let (files, other) = (Files::new(), Files::new());
    let own = self_signed(|_| {});
    let for_servers = self_signed(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
    let expired = expired();
    let (root, leaf) = (files.authority.pem(), files.issue(5, 2020, 2090).der);
    let invalid = Err(FailureCause::ClientCertificateInvalid);
    for (title, text, shown, expected) in [
        ("itself", own.pem(), own.der(), Ok(())),
        ("another one", own.pem(), other.authority.der(), invalid),
        ("for servers", for_servers.pem(), for_servers.der(), invalid),
        (
            "expired",
            expired.pem(),
            expired.der(),
            Err(FailureCause::ClientCertificateExpired),
        ),
        (
            "an expired root before",
            format!("{}{root}", expired.pem()),
            &leaf,
            Ok(()),
        ),
        (
            "comments and CRLF",
            format!("# a\n{root}# b\n").replace('\n', "\r\n"),
            &leaf,
            Ok(()),
        ),
        ("no intermediate", other.authority.pem(), &leaf, invalid),
    ] {
        assert_eq!(
            verdict(&files.with_authorities(&text), slice::from_ref(shown)),
            expected,
            "{title}"
        );
    }
    let listed = Settings {
        crl: Some(files.write("crl", &files.list(1, &[], [2020, 2090]))),
        ..files.with_authorities(&format!("{}{root}", own.pem()))
    };
    let unlisted = verdict(&listed, slice::from_ref(own.der()));
    assert!(unlisted.is_err(), "no list could revoke it");
}

#[test]
fn a_bundle_of_client_authorities_that_cannot_be_read_is_reported() {
    let (files, expired) = (Files::new(), expired());
    let root = files.authority.pem();
    let labelled = root.replace("CERTIFICATE", "TRUSTED CERTIFICATE");
    for (text, expected) in [
        (
            labelled.as_str(),
            "ca: line 1: a certificate of a label that is not read",
        ),
        ("", "ca: there is no certificate in it"),
    ] {
        let (faults, _) = files.said(&files.with_authorities(text));
        assert!(faults.concat().starts_with(expected), "{faults:?}");
    }
    let (_, remarks) = files.said(&files.with_authorities(&format!("{}{root}", expired.pem())));
    assert!(remarks.concat().contains("has expired"), "{remarks:?}");
    fs::write(files.folder.path().join("der"), files.authority.der()).unwrap();
    for (path, expected) in [("der", "it is DER, not PEM"), (".", "it is a directory")] {
        let settings = Settings {
            client_ca: Some(files.folder.path().join(path)),
            ..files.with_authorities("")
        };
        let (faults, _) = files.said(&settings);
        assert!(faults.concat().contains(expected), "{faults:?}");
    }
}

#[test]
fn a_list_past_its_next_update_refuses_its_clients_unless_it_is_accepted() {
    let files = Files::new();
    let [good, revoked] = [5, 6].map(|serial| files.issue(serial, 2020, 2090).der);
    let refusing = files.with_lists(&files.list(1, &[6], [2020, 2021]));
    assert_eq!(
        verdict(&refusing, slice::from_ref(&good)),
        Err(FailureCause::CrlExpired)
    );
    let accepting = Settings {
        crl_expired: CrlExpired::Accept,
        ..refusing.clone()
    };
    assert_eq!(verdict(&accepting, &[good]), Ok(()));
    assert_eq!(
        verdict(&accepting, &[revoked]),
        Err(FailureCause::ClientCertificateRevoked)
    );
    let begin = "crl: line 1: the revocation list of CN=authority has expired: its nextUpdate was Jan  1 00:00:00 2021 +00:00, and ";
    for (settings, effect) in [
        (refusing, "client certificates of this authority are refused"),
        (
            accepting,
            "certificates that were revoked since are accepted, by `crl_expired: accept`",
        ),
    ] {
        assert_eq!(files.said(&settings), (vec![], vec![format!("{begin}{effect}")]));
        let tls = Tls::new(settings, HANDSHAKE).unwrap();
        assert_eq!(tls.new_remarks().len(), 1);
        assert_eq!(tls.new_remarks(), Vec::<String>::new(), "once");
        assert_eq!(tls.next_updates(), [("CN=authority".to_owned(), 1_609_459_200)]);
    }
}

#[test]
fn of_two_lists_of_one_authority_the_newer_one_counts() {
    let files = Files::new();
    let [first, second] = [5, 6].map(|serial| files.issue(serial, 2020, 2090).der);
    let [old, new] = [files.list(1, &[], [2020, 2090]), files.list(2, &[5], [2021, 2091])];
    for lists in [format!("{old}{new}"), format!("{new}{old}")] {
        let settings = files.with_lists(&lists);
        assert_eq!(
            verdict(&settings, slice::from_ref(&first)),
            Err(FailureCause::ClientCertificateRevoked)
        );
        assert_eq!(verdict(&settings, slice::from_ref(&second)), Ok(()));
        let (faults, remarks) = files.said(&settings);
        assert_eq!((faults.len(), remarks.len()), (0, 1));
        assert!(
            remarks[0].contains("the revocation list of CN=authority does not count: the one in line "),
            "{remarks:?}"
        );
    }
    let neither = format!("{old}{}", files.list(1, &[5], [2020, 2090]));
    let (faults, _) = files.said(&files.with_lists(&neither));
    assert!(
        faults[0].contains(" do not tell the newer one: remove the other"),
        "{faults:?}"
    );
}

/// The verifier would refuse every certificate of the authority.
#[test]
fn a_list_that_another_key_of_the_same_name_has_signed_is_a_fault() {
    let (files, stranger) = (Files::new(), Files::new());
    let (own, foreign) = (files.list(1, &[6], [2020, 2090]), stranger.list(2, &[], [2021, 2090]));
    let fault = |line: usize| {
        format!(
            "crl: line {line}: the revocation list of CN=authority is signed by another key than CN=authority has in \
             ca, or with an algorithm that is not supported, such as SHA-1"
        )
    };
    assert_eq!(files.said(&files.with_lists(&foreign)), (vec![fault(1)], vec![]));
    // It is the newer one.
    let second = 1 + own.lines().count();
    assert_eq!(
        files.said(&files.with_lists(&format!("{own}{foreign}"))),
        (vec![fault(second)], vec![])
    );
    // An authority with two keys, of which one has signed it.
    files.write("ca", &format!("{}{}", stranger.authority.pem(), files.authority.pem()));
    let remark = "ca: line 1: this key of CN=authority has not signed the revocation list in line 1 of crl: its client \
                  certificates are refused";
    let settings = files.with_lists(&own);
    assert_eq!(files.said(&settings), (vec![], vec![remark.to_owned()]));
    for (authority, is_accepted) in [(&files, true), (&stranger, false)] {
        let client = authority.issue(5, 2020, 2090);
        assert_eq!(verdict(&settings, &[client.der]).is_ok(), is_accepted);
    }
    // An intermediate authority may have signed it.
    files.write("ca", &files.made(&named("other")).pem);
    assert_eq!(files.said(&files.with_lists(&own)), (vec![], vec![]));
    // By its own key, with which the verifier does not verify it.
    let files = Files::new();
    files.write("key", &files.authority.key().serialize_pem());
    files.write("empty", "");
    files.write(
        "config",
        "[ca]\ndefault_ca = own\n[own]\ndatabase = empty\ndefault_crl_days = 30\n",
    );
    let made = Command::new("openssl")
        .args("ca -gencrl -config config -keyfile key -cert ca -md sha1".split(' '))
        .current_dir(&files.folder)
        .output()
        .unwrap();
    let list = String::from_utf8(made.stdout).unwrap();
    assert_eq!(files.said(&files.with_lists(&list)), (vec![fault(1)], vec![]), "{list}");
}

#[test]
fn certificates_are_remarked_on_before_and_after_their_time() {
    let files = Files::new();
    let own = "cert: line 1: the certificate of CN=client ";
    for (made, expected) in [
        (files.issue(5, 2020, 2090), vec![]),
        (
            files.issue(5, 2001, 2002),
            vec![format!("{own}has expired: it ended on Jan  1 00:00:00 2002 +00:00")],
        ),
        (
            files.issue(5, 2089, 2090),
            vec![format!(
                "{own}is not valid yet: it begins on Jan  1 00:00:00 2089 +00:00"
            )],
        ),
    ] {
        assert_eq!(files.said(&files.with_pair(&made.pem, &made.key)), (vec![], expected));
    }
    let mut params = named("old authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(2002, 1, 1);
    let ca = files.made(&params).pem;
    let settings = Settings {
        crl: None,
        client_ca: Some(files.write("old", &ca)),
        ..files.with_lists("")
    };
    let expected =
        "old: line 1: the certificate of CN=old authority has expired: it ended on Jan  1 00:00:00 2002 +00:00";
    assert_eq!(files.said(&settings), (vec![], vec![expected.to_owned()]));
}

#[test]
fn a_chain_in_the_wrong_order_is_named() {
    let files = Files::new();
    let made = files.issue(5, 2020, 2090);
    let (own, issuer) = (made.pem.as_str(), files.authority.pem());
    assert_eq!(
        files.said(&files.with_pair(&format!("{own}{issuer}"), &made.key)),
        (vec![], vec![])
    );
    let second = 1 + issuer.lines().count();
    let (faults, _) = files.said(&files.with_pair(&format!("{issuer}{own}"), &made.key));
    let expected = "the certificates are in the wrong order: this one, of the key in key, must be the first";
    assert_eq!(faults, [format!("cert: line {second}: {expected}")]);
    let stranger = files.made(&named("stranger")).pem;
    let (faults, remarks) = files.said(&files.with_pair(&format!("{own}{stranger}{issuer}"), &made.key));
    let line = 1 + own.lines().count();
    let expected = format!(
        "cert: line {line}: the certificates are in the wrong order: CN=stranger has issued none of those before it. First \
         the proxy's own, then its issuer, then the issuer of that"
    );
    assert_eq!((faults, remarks), (vec![], vec![expected]));
}

#[test]
fn an_rsa_key_of_less_than_2048_bits_is_named() {
    let files = Files::new();
    let [weak, key] = weak(&files);
    let (faults, _) = files.said(&files.with_pair(&weak, &key));
    assert_eq!(
        faults,
        ["cert: line 1: its RSA key has 1024 bits: TLS needs at least 2048"]
    );
    let settings = Settings {
        crl: None,
        client_ca: Some(files.write("weak", &weak)),
        ..files.with_lists("")
    };
    let expected = "weak: line 1: the RSA key of CN=weak has 1024 bits, and TLS needs at least 2048: no client certificate of \
                    it is accepted";
    assert_eq!(files.said(&settings), (vec![], vec![expected.to_owned()]));
}

/// Returns a certificate with an RSA key of 1024 bits, and the key: no library here makes one.
fn weak(files: &Files) -> [String; 2] {
    let [cert, key] = ["weak.crt", "weak.key"].map(|name| files.folder.path().join(name));
    let made = Command::new("openssl")
        .args("req -x509 -newkey rsa:1024 -nodes -subj /CN=weak -days 36500".split(' '))
        .args([
            OsStr::new("-out"),
            cert.as_os_str(),
            OsStr::new("-keyout"),
            key.as_os_str(),
        ])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    [cert, key].map(|path| fs::read_to_string(path).unwrap())
}

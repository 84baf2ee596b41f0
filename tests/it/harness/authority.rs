//! A certificate authority of one test, and the files that it writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

/// Issues certificates into a directory, which goes with it.
pub(crate) struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Issued {
    /// As the configuration names it.
    pub(crate) fn setting(&self) -> String {
        format!("{{cert: \"{}\", key: \"{}\"}}", self.cert.display(), self.key.display())
    }

    /// As rustls wants it.
    pub(crate) fn load(&self) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let cert = CertificateDer::from_pem_file(&self.cert).unwrap();
        (cert, PrivateKeyDer::from_pem_file(&self.key).unwrap())
    }
}

impl Authority {
    /// A new one, which no client trusts by itself.
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let mut params = named(&format!("the authority of {}", directory.path().display()));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { directory, issuer }
    }

    /// A file of its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its own certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// A certificate for a server: of these names, and of 127.0.0.1.
    pub(crate) fn server(&self, file: &str, names: &[&str]) -> Issued {
        let mut params = named(file);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = names
            .iter()
            .map(|name| SanType::DnsName((*name).try_into().unwrap()))
            .collect();
        params
            .subject_alt_names
            .push(SanType::IpAddress("127.0.0.1".parse().unwrap()));
        self.issue(file, &params)
    }

    /// A certificate for a client: its common name, its mail addresses, its serial number.
    pub(crate) fn client(&self, name: &str, mail: &[&str], serial: u64) -> Issued {
        self.issue(name, &client(name, mail, serial))
    }

    /// The same, and it was good only once.
    pub(crate) fn expired_client(&self, name: &str) -> Issued {
        let mut params = client(name, &[], 99);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.issue(name, &params)
    }

    /// A file with a list on which the certificates with these serial numbers are revoked.
    pub(crate) fn revoke(&self, serials: &[u64]) -> PathBuf {
        self.write_list(&self.list(1, serials))
    }

    /// The same, good until so many seconds from now.
    pub(crate) fn revoke_for(&self, serials: &[u64], seconds: u64) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let next_update = date_time_ymd(1970, 1, 1) + Duration::from_secs(now + seconds);
        let list = self.list(1, serials);
        self.write_list(&CertificateRevocationListParams { next_update, ..list })
    }

    /// The same, past its nextUpdate.
    pub(crate) fn revoke_once(&self, serials: &[u64]) -> PathBuf {
        let next_update = date_time_ymd(2021, 1, 1);
        let list = self.list(1, serials);
        self.write_list(&CertificateRevocationListParams { next_update, ..list })
    }

    fn write_list(&self, list: &CertificateRevocationListParams) -> PathBuf {
        let path = self.path("crl.pem");
        replace(&path, list.signed_by(&self.issuer).unwrap().pem().unwrap());
        path
    }

    fn list(&self, number: u64, serials: &[u64]) -> CertificateRevocationListParams {
        let revoked = serials.iter().map(|&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        }
    }

    fn issue(&self, file: &str, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let issued = Issued {
            cert: self.path(&format!("{file}.crt")),
            key: self.path(&format!("{file}.key")),
        };
        fs::write(&issued.cert, certificate.pem()).unwrap();
        fs::write(&issued.key, key.serialize_pem()).unwrap();
        issued
    }

    /// A directory as Kubernetes mounts a Secret: its files lead through a link that is swapped as a whole.
    pub(crate) fn mount(&self, issued: &Issued) -> Issued {
        let mount = self.path("mount");
        fs::create_dir_all(&mount).unwrap();
        self.swap(issued);
        for (name, target) in [("tls.crt", "..data/tls.crt"), ("tls.key", "..data/tls.key")] {
            std::os::unix::fs::symlink(target, mount.join(name)).unwrap();
        }
        Issued {
            cert: mount.join("tls.crt"),
            key: mount.join("tls.key"),
        }
    }

    /// Puts another certificate into the mounted directory.
    pub(crate) fn swap(&self, issued: &Issued) {
        self.swap_files(&issued.cert, &issued.key);
    }

    /// Puts other files there.
    pub(crate) fn swap_files(&self, cert: &Path, key: &Path) {
        let mount = self.path("mount");
        let data = tempfile::Builder::new().prefix("..").tempdir_in(&mount).unwrap().keep();
        fs::copy(cert, data.join("tls.crt")).unwrap();
        fs::copy(key, data.join("tls.key")).unwrap();
        let link = mount.join("..next");
        std::os::unix::fs::symlink(data, &link).unwrap();
        fs::rename(link, mount.join("..data")).unwrap();
    }
}

/// Puts a file of that text in the place of another one, all at once: a proxy that polls it reads no empty one.
pub(crate) fn replace(path: &Path, text: impl AsRef<[u8]>) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

fn named(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

fn client(name: &str, mail: &[&str], serial: u64) -> CertificateParams {
    let mut params = named(name);
    params.serial_number = Some(SerialNumber::from(serial));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let mail = mail.iter().map(|mail| SanType::Rfc822Name((*mail).try_into().unwrap()));
    params.subject_alt_names = mail.collect();
    params
}

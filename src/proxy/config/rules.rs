//! The faults that no key has alone: what several keys say together, and the files that they name.

use std::collections::HashMap;
use std::iter;
use std::path::{Path, PathBuf};

use http::uri::Scheme;

use super::file::ConfigFile;
use super::{Config, Overrides, listen};
use crate::base;
use crate::base::follow::ReloadResult;
use crate::base::yaml::field::Field;
use crate::kubernetes::{self, files};
use crate::net::tls::{self, ClientAuth, Settings, TlsFile};
use crate::policy::access::files::passwords::Users;
use crate::policy::access::files::ssh_authorities::AuthorityKeys;
use crate::policy::access::{self, Contents, FollowedFile, Issuer, Jwks, Mode, oidc};
use crate::policy::allowlist::StaticTarget;
use crate::proxy::connection::{SshMode, Timeouts};
use crate::tunnel::host_key_files::HostKeyFiles;

/// Reports the faults of the file, and returns its settings, overridden by the flags. `top`: the file, for the positions.
pub(super) fn check(mut file: ConfigFile, overrides: &Overrides, top: &Field<'_>) -> Config {
    let faults = top.faults();
    restrictions(top);
    let tls = top.at("tls");
    client_auth(&file.tls, &tls);
    let has_certificates = !file.tls.certificates.is_empty() || tls.at("certificates").has_faults();
    listen::check(&mut file.listen, top, has_certificates);
    jump_hosts(&file, top);
    // After a fault in these sections it is not known whether the ports are meant to ask for certificates.
    let is_unsure = top.faults() > faults || tls.has_faults() || top.at("listen").has_faults();
    let knows_clients = is_unsure || file.requests_client_certificates();
    files_of_tls(&file.tls, &tls);
    listen::check_admin(file.admin, &file.listen, top);
    certificates(&file.access, top, knows_clients);
    workload_kinds(
        &file.allowlist.kubernetes,
        &top.at("allowlist.kubernetes.workload_kinds"),
    );
    permission(&file.access, &top.at("access.kubernetes.permission"));
    let access_kubeconfig = clusters(&mut file, top);
    let takes_anchors = file.anchors.is_some() || file.allowlist.targets.iter().any(|target| target.dials_in.is_some());
    users(&file.access, &top.at("access"), takes_anchors);
    issuers(&file.access.oidc, &top.at("access.oidc"));
    targets(&file.allowlist.targets, &top.at("allowlist.static"), knows_clients);
    dials(&file.timeouts, &top.at("timeouts"));
    if file.allowlist.report_only && file.access.mode == Mode::Enforce {
        // Neither key may undo what the other one says.
        top.at("allowlist.report_only")
            .fault("what `access.mode: enforce` refuses is not served: set `access.mode: report`, or this to false");
    }
    file.into_config(overrides, access_kubeconfig)
}

/// Reports keys that restrict and have no value: their defaults admit more than the author of the key means.
fn restrictions(top: &Field<'_>) {
    let (listen, targets) = (top.at("listen"), top.at("allowlist.static"));
    let ports = listen.items().map(|port| (port, OF_A_PORT));
    let targets = targets.items().map(|target| (target, OF_A_TARGET));
    for (field, keys) in iter::once((top.clone(), RESTRICTING)).chain(ports).chain(targets) {
        for key in keys.split(' ').filter(|key| field.lacks_value(key)) {
            field.at(key).fault(NO_VALUE);
        }
    }
}

fn client_auth(settings: &Settings, tls: &Field<'_>) {
    let (client_ca, crl) = (tls.at("client_ca"), tls.at("crl"));
    match settings.client_auth {
        ClientAuth::Off if tls.at("client_auth").is_faulty() => {}
        ClientAuth::Off => {
            if let Some(file) = [client_ca, crl].into_iter().find(Field::is_given) {
                file.fault("has no effect without `client_auth`");
            }
        }
        ClientAuth::Optional | ClientAuth::Required if client_ca.is_given() => {}
        ClientAuth::Optional | ClientAuth::Required => {
            tls.fault("`client_auth` needs `client_ca`: the authorities that issue client certificates");
        }
    }
}

/// Reports jump hosts at ports where every client needs a certificate: a client of SSH has none.
fn jump_hosts(file: &ConfigFile, top: &Field<'_>) {
    if file.tls.client_auth != ClientAuth::Required {
        return;
    }
    for (port, field) in file.listen.iter().zip(top.at("listen").items()) {
        if port.tls == tls::Mode::Required && port.ssh != SshMode::Off {
            field.at("ssh").fault(
                "clients without a certificate would be served, which `tls.client_auth` refuses: a jump host needs a \
                 port of its own, with `ssh: only`",
            );
        }
    }
}

/// Checks the files of TLS in any case: a missing file hides no other fault, and is hidden by none.
fn files_of_tls(settings: &Settings, tls: &Field<'_>) {
    let mut judged = settings.clone();
    if tls.at("client_auth").is_faulty() {
        // The authorities and the revocation list are meant to be used.
        judged.client_auth = ClientAuth::Optional;
    }
    let pair = |index, key| {
        let pair = tls.at("certificates").items().nth(index);
        pair.map_or_else(|| tls.clone(), |pair| pair.at(key))
    };
    let field = |part| match part {
        TlsFile::Certificate(index) => pair(index, "cert"),
        TlsFile::Key(index) => pair(index, "key"),
        TlsFile::ClientCa => tls.at("client_ca"),
        TlsFile::Crl => tls.at("crl"),
        TlsFile::None => tls.clone(),
    };
    match judged.check_files() {
        Ok(remarks) => {
            for remark in remarks {
                field(remark.file).warning(remark.to_string());
            }
        }
        Err(faults) => {
            for fault in faults {
                field(fault.file).fault(fault.to_string());
            }
        }
    }
}

fn certificates(access: &access::Options, top: &Field<'_>, knows_clients: bool) {
    let field = top.at("access.kubernetes.certificates");
    let is_wanted = access.kubernetes.as_ref().is_some_and(|options| options.certificates);
    if is_wanted && field.is_given() && !field.is_faulty() && !knows_clients {
        field.note("has no effect: no client has a certificate without `tls.client_auth` and a port with `tls`");
    }
}

fn workload_kinds(cluster: &Option<kubernetes::Options>, list: &Field<'_>) {
    let kinds = cluster.iter().flat_map(|options| &options.workload_kinds);
    let mut lines = HashMap::new();
    for (kind, entry) in kinds.zip(list.items()) {
        let field = entry.at("name");
        if let Some(line) = lines.insert(&kind.name, field.line()) {
            field.fault(format!("{} is on line {line} too", kind.name));
        }
    }
}

fn permission(access: &access::Options, field: &Field<'_>) {
    let wrong = access.kubernetes.as_ref().and_then(|own| own.permission.check().err());
    if let Some((key, reason)) = wrong.filter(|_| !field.has_faults()) {
        field.at(key).fault(reason);
    }
}

/// Drops the settings that read a cluster unless they are enabled. All of `access` reads one cluster, which may be that
/// of the allowlist: returns its kubeconfig.
fn clusters(file: &mut ConfigFile, top: &Field<'_>) -> Option<PathBuf> {
    let (access, services) = (&mut file.access, &mut file.allowlist.kubernetes);
    let own = access.kubernetes.as_mut().and_then(|options| options.kubeconfig.take());
    access.kubernetes.take_if(|options| !options.enabled);
    access.tickets.take_if(|options| !options.enabled);
    access.ssh_keys.take_if(|options| !options.enabled);
    let is_shared = access.reads_cluster() && own.is_none();
    let of_services = services.as_ref().and_then(|options| options.kubeconfig.clone());
    services.take_if(|options| !options.enabled);
    for (key, path, is_used) in [
        (
            "access.kubernetes.kubeconfig",
            &own,
            access.reads_cluster() && !is_shared,
        ),
        (
            "allowlist.kubernetes.kubeconfig",
            &of_services,
            services.is_some() || is_shared,
        ),
    ] {
        let fault = match is_used {
            true => files::kubeconfig_fault(path.as_deref()),
            // Its author believes that it is used.
            false => path
                .as_ref()
                .map(|_| "nothing that is enabled reads this cluster".to_owned()),
        };
        if let Some(reason) = fault {
            top.at(key).dispensable_fault(reason);
        }
    }
    let snapshot = services.as_ref().and_then(|options| options.snapshot_file.as_deref());
    if let Some(reason) = snapshot.and_then(files::snapshot_fault) {
        top.at("allowlist.kubernetes.snapshot_file").dispensable_fault(reason);
    }
    if is_shared { of_services } else { own }
}

fn users(options: &access::Options, access: &Field<'_>, takes_anchors: bool) {
    let mode = access.at("mode");
    // A fault in a source of users is one thing to fix, not two.
    if options.mode != Mode::Open && !proves_users(options) && !access.has_faults() {
        mode.fault(
            "no user can be proved: it needs `kubernetes`, `oidc`, `users`, `tickets`, `ssh_keys` or `ssh_authorities`",
        );
    } else if takes_anchors && !proves_users_of_http(options) && !access.has_faults() {
        access.fault("no anchor can prove its user: it needs `kubernetes`, `oidc`, `users` or `tickets`");
    }
    let users = file_about_users::<Users>(options.users.as_ref(), &access.at("users.file"));
    if let Some((path, weakness)) = users.and_then(|(path, users)| Some((path, users.weakness()?))) {
        access
            .at("users.file")
            .warning(format!("{}: {weakness}", path.display()));
    }
    file_about_users::<AuthorityKeys>(options.ssh_authorities.as_ref(), &access.at("ssh_authorities.file"));
}

/// Reads a file, and reports its faults. Returns it with its path if it has none.
fn file_about_users<'a, T: Contents>(
    options: Option<&'a access::UserFileOptions>,
    field: &Field<'_>,
) -> Option<(&'a Path, FollowedFile<T>)> {
    let path = &*options?.file;
    match FollowedFile::open(path) {
        Ok(file) => return Some((path, file)),
        Err(faults) => {
            for fault in faults {
                field.fault_of_a_check(format!("{}: {fault}", path.display()));
            }
        }
    }
    None
}

/// Returns whether there is a source that authenticates users.
pub(super) fn proves_users(options: &access::Options) -> bool {
    proves_users_of_http(options) || options.ssh_authorities.is_some() || options.ssh_keys.is_some()
}

fn proves_users_of_http(options: &access::Options) -> bool {
    options.kubernetes.is_some() || !options.oidc.is_empty() || options.users.is_some() || options.tickets.is_some()
}

fn issuers(issuers: &[Issuer], list: &Field<'_>) {
    let mut lines = HashMap::new();
    for (issuer, entry) in issuers.iter().zip(list.items()) {
        let field = entry.at("issuer");
        // Two entries for one `iss` would be ambiguous.
        if let Some(line) = lines.insert(&issuer.issuer, field.line()) {
            field.fault(format!(
                "the same issuer is on line {line} too: add its audiences there"
            ));
        }
        let is_https = matches!(&issuer.jwks, Jwks::Url(url) if url.scheme() == Some(&Scheme::HTTPS));
        if issuer.no_env_proxy && !is_https {
            entry
                .at("no_env_proxy")
                .fault("has no effect: only a `jwks` at `https://` is requested through a proxy");
        }
        match (&issuer.jwks, &issuer.ca) {
            (Jwks::File(path), ca) => {
                if ca.is_some() {
                    entry.at("ca").fault("has no effect with a `jwks` that is a file");
                }
                if let Err(reason) = keys_of(path) {
                    entry
                        .at("jwks")
                        .dispensable_fault(format!("{}: {reason}", path.display()));
                }
            }
            (Jwks::Url(url), Some(_)) if url.scheme() == Some(&Scheme::HTTP) => {
                entry.at("ca").fault("has no effect with a `jwks` at `http://`");
            }
            (Jwks::Url(_), Some(ca)) => {
                if let Err(reason) = oidc::check_authorities(ca) {
                    entry.at("ca").dispensable_fault(reason);
                }
            }
            (Jwks::Url(_), None) => {}
        }
    }
}

fn keys_of(path: &Path) -> Result<usize, Box<str>> {
    let bytes = base::file::read(path, MAX_FILE_BYTES).map_err(|error| format!("cannot be read: {error}"))?;
    oidc::check_keys(&bytes)
}

fn targets(targets: &[StaticTarget], list: &Field<'_>, knows_clients: bool) {
    list.items().for_each(|entry| ways(&entry));
    let mut lines = HashMap::new();
    for (target, entry) in targets.iter().zip(list.items()) {
        if let Some(ReloadResult::Invalid(faults)) = target.host_keys.as_ref().map(HostKeyFiles::reload) {
            let field = entry.at("host_keys");
            faults.into_iter().for_each(|fault| field.dispensable_fault(fault));
        }
        let (name, field) = (&target.name, entry.at("name"));
        // A name of two targets would be ambiguous.
        if let Some(line) = lines.insert(name, field.line()) {
            field.fault(format!("{name} is on line {line} too"));
        }
        let clients = entry.at("allowed_clients");
        if clients.is_given() && !knows_clients {
            clients
                .fault("no client has a certificate: `allowed_clients` needs `tls.client_auth` and a port with `tls`");
        }
    }
}

/// Checks that a target, also one with other faults, either is dialled or dials in.
fn ways(entry: &Field<'_>) {
    let (addresses, dials_in) = (entry.at("addresses"), entry.at("dials_in"));
    if !dials_in.is_given() {
        if !addresses.is_given() {
            entry.fault("`addresses` is missing, or `dials_in` for a target that dials in");
        }
        return;
    }
    if addresses.is_given() {
        addresses.fault("a target that dials in has no address: remove this, or `dials_in`");
    }
    let sent = entry.at("send_proxy_protocol");
    if sent.is_given() && !sent.is_faulty() {
        sent.fault("has no effect on a target that dials in");
    }
    let names_users = dials_in.at("users").is_given() || dials_in.at("groups").is_given();
    if !names_users && !dials_in.has_faults() {
        dials_in.fault("`users` or `groups` is needed: who may serve the target");
    }
}

fn dials(options: &Timeouts, timeouts: &Field<'_>) {
    let (one, all) = (timeouts.at("connect"), timeouts.at("dial"));
    let (dial_try, dial) = (options.connect, options.dial);
    if dial_try > dial && !one.is_faulty() && !all.is_faulty() {
        let field = if one.is_given() { one } else { all };
        field.fault(format!(
            "one try ({dial_try:?}) may not take longer than the whole dial ({dial:?})"
        ));
    }
}

/// The keys that restrict, and do not by default.
const RESTRICTING: &str = "admin_scrape tls.client_auth tls.crl access.mode access.cleartext access.hide_names \
    access.on_expiry allowlist.kubernetes.namespaces allowlist.kubernetes.namespace_selector allowlist.kubernetes.pods.namespaces \
    allowlist.kubernetes.pods.selector access.kubernetes.permission.name allowlist.kubernetes.allowed_cidrs limits.ceiling.download limits.ceiling.upload limits.ceiling.ssh_only";
const OF_A_PORT: &str = "tls proxy_protocol trusted_proxies";
const NO_VALUE: &str = "it restricts, and without a value it does not: give it one, or remove the key";
const OF_A_TARGET: &str = "allowed_clients allowed_users allowed_groups";
/// The maximum size of a file of keys: a running process reads no more either.
const MAX_FILE_BYTES: u64 = 1 << 20;

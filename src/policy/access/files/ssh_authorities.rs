//! The authorities that sign the SSH keys of users, and the certificates that are accepted of them (PROTOCOL.certkeys of OpenSSH).

use std::net::IpAddr;
use std::time::SystemTime;

use super::followed_file::{Contents, FollowedFile, LineFaults, UserFault, lines};
use super::passwords::key::{Clients, plain_key};
use crate::base::values::is_name;
use crate::protocol::host_key::HostKey;
use crate::tunnel::ssh::jump::UserCertificate;

/// The file of authorities: a public key a line. Empty lines and those that begin with `#` are skipped.
pub type SshAuthorities = FollowedFile<AuthorityKeys>;

/// The public keys of authorities.
#[derive(Debug)]
pub struct AuthorityKeys(Vec<HostKey>);

impl Contents for AuthorityKeys {
    fn parse(bytes: &[u8], _old: Option<&Self>) -> Result<Self, Vec<UserFault>> {
        let (mut keys, mut faults) = (Vec::new(), LineFaults::default());
        for (number, line) in lines(bytes, "authorities")? {
            match plain_key(line) {
                Ok(key) if keys.contains(&key) => faults.add(number, "this key is there already".to_owned()),
                Ok(_) if keys.len() == MAX_KEYS => faults.add(number, "there are 64 authorities already".to_owned()),
                Ok(key) => keys.push(key),
                Err(reason) => faults.add(number, reason),
            }
        }
        faults.into_result().map(|()| Self(keys))
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

impl AuthorityKeys {
    /// Checks that a certificate, whose signatures are verified, proves the user of that name to be at that client. Its expiry
    /// is left to the caller.
    ///
    /// # Errors
    /// The reason why it does not.
    pub(in crate::policy::access) fn check(
        &self,
        name: &str,
        certificate: &UserCertificate,
        client: IpAddr,
    ) -> Result<(), &'static str> {
        let UserCertificate {
            principals, validity, ..
        } = certificate;
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        match () {
            () if !self.0.contains(&certificate.authority) => Err(UNKNOWN_AUTHORITY),
            () if !certificate.is_for_users => Err("the certificate is that of a host"),
            () if !is_name(name, MAX_NAME) || !principals.iter().any(|principal| principal == name) => {
                Err("the certificate does not name the user")
            }
            () if now.as_secs() < validity.start => Err("the certificate is not valid yet"),
            // As sshd does: a jump host forwards, and does nothing else.
            () if !certificate.permits_forwarding => Err("the certificate does not permit port forwarding"),
            () => certificate
                .critical_options
                .iter()
                .try_for_each(|(option, value)| check_option(option, value, client)),
        }
    }
}

fn check_option(option: &str, value: &str, client: IpAddr) -> Result<(), &'static str> {
    if option != "source-address" {
        return Err("the certificate has a critical option other than source-address");
    }
    // sshd knows no exceptions here.
    let clients = Clients::parse(value).ok().filter(|_| !value.contains('!'));
    match clients
        .ok_or("the certificate's source-address cannot be read")?
        .admits(client)
    {
        true => Ok(()),
        false => Err("the certificate is not accepted from this address"),
    }
}

pub(in crate::policy::access) const UNKNOWN_AUTHORITY: &str = "the authority of the certificate is not known here";
const MAX_KEYS: usize = 64;
/// In bytes, as in the file of users.
const MAX_NAME: usize = 256;

#[cfg(test)]
mod tests;

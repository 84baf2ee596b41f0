//! The keys of caches: keyed digests, so that no credential is kept, and no client can choose keys that collide.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use aws_lc_rs::hmac;
use aws_lc_rs::rand;
use serde::Serialize;

use crate::base::random::random;
use crate::net::tls::ClientTls;
use crate::policy::access::credentials::credential::Credential;
use crate::policy::access::reviewer::Action;
use crate::policy::access::reviewer::Right;
use crate::policy::access::user::User;
use crate::tunnel::limits::owners::network;

/// HMAC-SHA256 of a credential, a right or a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::policy::access) struct Digest([u8; 32]);

impl Digest {
    /// Returns a number from 0 to 1, which is the same for the same digest.
    pub(in crate::policy::access) fn fraction(&self) -> f64 {
        let [a, b, c, d, ..] = self.0;
        f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
    }
}

/// The key of a process's digests: random, and nowhere but here.
pub(in crate::policy::access) struct Key(hmac::Key);

impl Key {
    /// Creates a random key.
    pub(in crate::policy::access) fn new() -> Self {
        let mut bytes = [0; 32];
        // If the system's generator fails, the key is made of the random keys of the standard library's maps.
        if rand::fill(&mut bytes).is_err() {
            for part in bytes.chunks_mut(8) {
                part.copy_from_slice(&random().to_ne_bytes());
            }
        }
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    /// Returns the digest of a credential. That of a password includes the client's network: otherwise a network could
    /// repeat the guesses of others without being counted.
    pub(in crate::policy::access) fn credential(&self, credential: &Credential, client: IpAddr) -> Digest {
        match credential {
            Credential::Bearer(token) => self.digest(&("bearer", token.expose())),
            Credential::Basic { user, password } => {
                self.digest(&("basic", user, password.expose(), network(client).to_string()))
            }
            Credential::PublicKey { user, key } => self.digest(&("public-key", user, key.blob(), client)),
            Credential::SshCertificate { user, certificate } => {
                self.digest(&("ssh-certificate", user, certificate.digest))
            }
        }
    }

    /// Returns the digest of a user's right to an action, with all that the API server is sent of the user.
    pub(in crate::policy::access) fn right(&self, user: &User, action: &Action) -> Digest {
        self.digest(&(identity(user), action))
    }

    /// Returns the digest of a user, a right and what has proved the user.
    pub(in crate::policy::access) fn subject(
        &self,
        user: &User,
        right: Right,
        credential: Option<&Credential>,
        client_tls: Option<&ClientTls>,
        client: IpAddr,
    ) -> Digest {
        let proof = credential.map(|credential| match credential {
            // A change of `from` revokes it for some clients only.
            Credential::PublicKey { .. } => self.credential(credential, client).0,
            // A constant address: the digest of another subject does not depend on the network.
            Credential::Basic { .. } | Credential::Bearer(_) | Credential::SshCertificate { .. } => {
                self.credential(credential, Ipv4Addr::UNSPECIFIED.into()).0
            }
        });
        let own = client_tls.and_then(|client_tls| client_tls.certificates.first());
        self.digest(&(identity(user), right, proof, own.map(|own| own.as_ref())))
    }

    /// Returns the digest of a value's JSON, which differs for different values.
    fn digest(&self, value: &impl Serialize) -> Digest {
        let mut text = Text(hmac::Context::with_key(&self.0));
        // Fails only for maps with keys other than strings and for write errors: there are neither.
        serde_json::to_writer(&mut text, value).ok();
        Digest(text.0.sign().as_ref().try_into().unwrap_or_default())
    }
}

fn identity(user: &User) -> impl Serialize {
    (&user.name, &user.uid, user.method.label(), &user.groups, &user.extra)
}

/// The writer of a digest's text, so that no secret is copied.
struct Text(hmac::Context);

impl io::Write for Text {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.update(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints no key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::policy::access::test_support::user;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_digest_is_of_every_part_and_of_the_process() {
        let (key, other) = (Key::new(), Key::new());
        let basic = |user: &str, password: &str| Credential::Basic {
            user: user.into(),
            password: password.into(),
        };
        let bearer = |token: &str| Credential::Bearer(token.into());
        let public = |user: &str, key: &str| Credential::PublicKey {
            user: user.into(),
            key: Arc::new(
                format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEIPB3+pKidx74UYm+ucPHbqNjjkwTws4ffeZFtYGz{key}")
                    .parse()
                    .unwrap(),
            ),
        };
        let of = |credential: &Credential, network: [u8; 4]| key.credential(credential, network.into());
        assert_ne!(of(&basic("a", "x"), [1; 4]), of(&basic("a", "x"), [2; 4]));
        assert_eq!(of(&bearer("x"), [1; 4]), of(&bearer("x"), [2; 4]));
        assert_eq!(key.credential(&bearer("x"), HERE), key.credential(&bearer("x"), HERE));
        for (one, two) in [
            (bearer("x"), bearer("y")),
            (basic("ab", "c"), basic("a", "bc")),
            (basic("", "x"), bearer("x")),
            (public("a", "ob"), public("a", "oc")),
            (public("a", "ob"), public("b", "ob")),
        ] {
            assert_ne!(key.credential(&one, HERE), key.credential(&two, HERE));
        }
        assert_ne!(key.credential(&bearer("x"), HERE), other.credential(&bearer("x"), HERE));
        let alice = user("alice");
        let mut changed = [alice.clone(), alice.clone(), alice.clone(), alice.clone()];
        changed[0].groups.push("ops".into());
        changed[1].uid = Some("2".into());
        changed[2].extra.insert("scopes".into(), vec!["ssh".into()]);
        changed[3].extra.insert("scopes".into(), Vec::new());
        for user in &changed {
            assert_ne!(
                key.subject(&alice, Right::Connect, None, None, HERE),
                key.subject(user, Right::Connect, None, None, HERE),
                "{user:?}"
            );
        }
        assert_ne!(
            key.subject(&changed[2], Right::Connect, None, None, HERE),
            key.subject(&changed[3], Right::Connect, None, None, HERE)
        );
    }
}

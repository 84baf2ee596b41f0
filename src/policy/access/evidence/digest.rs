//! The keys of what is remembered: keyed digests, so that no credential is kept for its answer, and no client can choose
//! keys that collide.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr};

use aws_lc_rs::hmac;
use aws_lc_rs::rand;

use crate::net::tls::Peer;
use crate::policy::access::evidence::credential::Credential;
use crate::policy::access::reviewer::Action;
use crate::policy::access::user::User;
use crate::tunnel::limits::clients::network;

/// HMAC-SHA256 of what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::policy::access) struct Digest([u8; 32]);

/// The key of a process's digests: random, and nowhere but here.
pub(in crate::policy::access) struct Key(hmac::Key);

impl Key {
    /// A random key.
    pub(in crate::policy::access) fn new() -> Self {
        let mut bytes = [0; 32];
        // Without the system's random numbers, those of the standard library's maps, which came from there before.
        if rand::fill(&mut bytes).is_err() {
            for (index, part) in bytes.chunks_mut(8).enumerate() {
                part.copy_from_slice(&RandomState::new().hash_one(index).to_ne_bytes());
            }
        }
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    /// The digest of a credential; of a password, as that of the client's network. If it were remembered for all networks,
    /// they could try others on it without being counted.
    pub(in crate::policy::access) fn credential(&self, credential: &Credential, client: IpAddr) -> Digest {
        match credential {
            Credential::Bearer(token) => self.parts(["bearer", token.expose()]),
            Credential::Basic { user, password } => {
                self.parts(["basic", &**user, password.expose(), &network(client).to_string()])
            }
        }
    }

    /// The digest of the right of a user to do something. All that the API server is told of the user is in it.
    pub(in crate::policy::access) fn right(&self, user: &User, action: &Action) -> Digest {
        let own = user_parts(user);
        let action = [
            &action.verb,
            &action.group,
            &action.resource,
            &action.subresource,
            &action.namespace,
            &action.name,
        ];
        self.parts(own.into_iter().chain(action.into_iter().map(|part| Cow::from(&**part))))
    }

    /// The digest of a user and of what has proved it.
    pub(in crate::policy::access) fn subject(
        &self,
        user: &User,
        credential: Option<&Credential>,
        certificate: Option<&Peer>,
    ) -> Digest {
        let mut context = hmac::Context::with_key(&self.0);
        for part in user_parts(user) {
            update(&mut context, part.as_bytes());
        }
        // Wherever it comes from.
        let proof = credential.map(|credential| self.credential(credential, Ipv4Addr::UNSPECIFIED.into()));
        update(&mut context, proof.as_ref().map_or(&[], |digest| &digest.0));
        let own = certificate.and_then(|peer| peer.certificates.first());
        update(&mut context, own.map_or(&[], |own| own.as_ref()));
        finish(&context)
    }

    fn parts(&self, parts: impl IntoIterator<Item: AsRef<str>>) -> Digest {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            update(&mut context, part.as_ref().as_bytes());
        }
        finish(&context)
    }
}

/// Each list with its length before it, so that no two users have the same parts.
fn user_parts(user: &User) -> Vec<Cow<'_, str>> {
    let count = |list: usize| Cow::from(list.to_string());
    let mut parts = vec![
        Cow::from(&*user.name),
        user.uid.as_deref().unwrap_or_default().into(),
        user.method.label().into(),
        count(user.groups.len()),
    ];
    parts.extend(user.groups.iter().map(|group| Cow::from(&**group)));
    for (name, values) in &user.extra {
        parts.push(Cow::from(&**name));
        parts.push(count(values.len()));
        parts.extend(values.iter().map(|value| Cow::from(&**value)));
    }
    parts
}

/// With its length before it: `ab`, `c` is not `a`, `bc`.
fn update(context: &mut hmac::Context, part: &[u8]) {
    context.update(&part.len().to_be_bytes());
    context.update(part);
}

fn finish(context: &hmac::Context) -> Digest {
    let tag = context.clone().sign();
    let mut digest = [0; 32];
    for (byte, own) in digest.iter_mut().zip(tag.as_ref()) {
        *byte = *own;
    }
    Digest(digest)
}

/// Without the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
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
        let of = |credential: &Credential, network: [u8; 4]| key.credential(credential, network.into());
        assert_ne!(of(&basic("a", "x"), [1; 4]), of(&basic("a", "x"), [2; 4]));
        assert_eq!(of(&bearer("x"), [1; 4]), of(&bearer("x"), [2; 4]));
        assert_eq!(key.credential(&bearer("x"), HERE), key.credential(&bearer("x"), HERE));
        for (one, two) in [
            (bearer("x"), bearer("y")),
            (basic("ab", "c"), basic("a", "bc")),
            (basic("", "x"), bearer("x")),
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
                key.subject(&alice, None, None),
                key.subject(user, None, None),
                "{user:?}"
            );
        }
        assert_ne!(
            key.subject(&changed[2], None, None),
            key.subject(&changed[3], None, None)
        );
    }
}

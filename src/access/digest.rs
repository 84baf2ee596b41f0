//! The keys of what is remembered: keyed digests, so that no credential is kept for its answer, and no client can choose
//! keys that collide.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;

use aws_lc_rs::hmac;
use aws_lc_rs::rand;

use super::reviewer::Action;
use super::user::User;
use crate::credential::Credential;
use crate::tls::Peer;

/// HMAC-SHA256 of what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Digest([u8; 32]);

/// The key of a process's digests: random, and nowhere but here.
pub(super) struct Key(hmac::Key);

impl Key {
    /// A random key.
    pub(super) fn new() -> Self {
        let mut bytes = [0; 32];
        // Without the system's random numbers, those of the standard library's maps, which came from there before.
        if rand::fill(&mut bytes).is_err() {
            for (index, part) in bytes.chunks_mut(8).enumerate() {
                part.copy_from_slice(&RandomState::new().hash_one(index).to_ne_bytes());
            }
        }
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    /// The digest of a credential.
    pub(super) fn credential(&self, credential: &Credential) -> Digest {
        match credential {
            Credential::Bearer(token) => self.parts(["bearer", token.expose()]),
            Credential::Basic { user, password } => self.parts(["basic", user, password.expose()]),
        }
    }

    /// The digest of the right of a user to do something. All that the API server is told of the user is in it.
    pub(super) fn right(&self, user: &User, action: &Action) -> Digest {
        let own = user_parts(user);
        let action = [
            &action.verb,
            &action.group,
            &action.resource,
            &action.subresource,
            &action.namespace,
            &action.name,
        ];
        self.parts(own.into_iter().chain(action.into_iter().map(|part| &**part)))
    }

    /// The digest of a user and of what has proved it.
    pub(super) fn subject(&self, user: &User, credential: Option<&Credential>, certificate: Option<&Peer>) -> Digest {
        let mut context = hmac::Context::with_key(&self.0);
        for part in user_parts(user) {
            update(&mut context, part.as_bytes());
        }
        let proof = credential.map(|credential| self.credential(credential));
        update(&mut context, proof.as_ref().map_or(&[], |digest| &digest.0));
        let own = certificate.and_then(|peer| peer.certificates.first());
        update(&mut context, own.map_or(&[], |own| own.as_ref()));
        finish(&context)
    }

    fn parts<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Digest {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            update(&mut context, part.as_bytes());
        }
        finish(&context)
    }
}

/// Each list with its length before it, so that no two users have the same parts.
fn user_parts(user: &User) -> Vec<&str> {
    let mut parts = vec![
        &*user.name,
        user.uid.as_deref().unwrap_or_default(),
        user.method.label(),
    ];
    parts.extend(user.groups.iter().map(|group| &**group));
    parts.push(END);
    for (name, values) in &user.extra {
        parts.push(name);
        parts.extend(values.iter().map(|value| &**value));
        parts.push(END);
    }
    parts.push(END);
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

/// The end of a list: no text in JSON or in a certificate has a NUL that the API server would take for another's.
const END: &str = "\0";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::test_support::user;

    #[test]
    fn a_digest_is_of_every_part_and_of_the_process() {
        let (key, other) = (Key::new(), Key::new());
        let basic = |user: &str, password: &str| Credential::Basic {
            user: user.into(),
            password: password.into(),
        };
        let bearer = |token: &str| Credential::Bearer(token.into());
        assert_eq!(key.credential(&bearer("x")), key.credential(&bearer("x")));
        for (one, two) in [
            (bearer("x"), bearer("y")),
            (basic("ab", "c"), basic("a", "bc")),
            (basic("", "x"), bearer("x")),
        ] {
            assert_ne!(key.credential(&one), key.credential(&two));
        }
        assert_ne!(key.credential(&bearer("x")), other.credential(&bearer("x")));
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

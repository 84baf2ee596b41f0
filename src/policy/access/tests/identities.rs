//! Users that are refused, and those of certificates.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_user_that_proves_nothing_or_is_the_clusters_own_is_refused() {
    use RefusalReason::{CredentialsRefused, IdentityRefused};

    let world = World::new(|_| {});
    for (name, groups, method, refusal) in [
        (
            "system:anonymous",
            vec![],
            Method::TokenReview,
            Some(CredentialsRefused),
        ),
        (
            "x",
            vec!["system:unauthenticated"],
            Method::TokenReview,
            Some(CredentialsRefused),
        ),
        ("", vec![], Method::TokenReview, Some(CredentialsRefused)),
        (
            "system:serviceaccount:a:b",
            vec!["system:serviceaccounts"],
            Method::TokenReview,
            None,
        ),
        ("system:admin", vec![], Method::Oidc, Some(IdentityRefused)),
        ("alice", vec!["system:masters"], Method::Oidc, Some(IdentityRefused)),
        ("alice", vec!["system:masters"], Method::Password, Some(IdentityRefused)),
        ("alice", vec!["system:authenticated", "ops"], Method::Oidc, None),
    ] {
        world.script.set_token(move |_| {
            let mut user = user(name);
            user.groups = groups.iter().map(|group| Box::from(*group)).collect();
            user.method = method;
            Ok(Verdict::Authenticated(Arc::new(user)))
        });
        let token =
            format!("{name}{method:?}{refusal:?}").replace(|character: char| !character.is_ascii_alphanumeric(), "x");
        let identified = world.identify(&token, 1).await;
        assert_eq!(
            identified.err().map(|refusal| refusal.reason),
            refusal,
            "{name} {method:?}"
        );
    }
    // A token that begins with a space is answered as system:anonymous, so it is not asked about.
    let asked = world.script.asked();
    for token in [" alice", "al ice", "", "a\u{e9}"] {
        let refusal = world.identify(token, 1).await.unwrap_err();
        assert_eq!(refusal.reason, CredentialsRefused, "{token:?}");
    }
    assert_eq!(world.script.asked(), asked);
}

/// Returns the TLS session of a client whose certificate has this subject.
fn peer(subject: &[(rcgen::DnType, &str)]) -> Arc<ClientTls> {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, value) in subject {
        params.distinguished_name.push(kind.clone(), *value);
    }
    let own = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    Arc::new(ClientTls {
        version: "1.3",
        identity: CertificateNames::from_certificate(own.der()),
        certificates: vec![own.der().clone()],
    })
}

/// Returns a certificate of alice that expires after that time.
pub(super) fn certificate(lives: Duration) -> Arc<ClientTls> {
    let mut own = Arc::into_inner(peer(&[(rcgen::DnType::CommonName, "alice")])).unwrap();
    own.identity.as_mut().unwrap().expires = Some(SystemTime::now() + lives);
    Arc::new(own)
}

#[tokio::test(start_paused = true)]
async fn the_names_of_a_certificate_have_the_bounds_of_those_of_other_sources() {
    let world = World::new(|_| {});
    let identify = async |subject: &[(rcgen::DnType, &str)]| {
        let client_tls = peer(subject);
        let request = RequestCredentials {
            credential: None,
            client_tls: Some(&client_tls),
            client: IpAddr::from([192, 0, 2, 1]),
            is_local: false,
            is_encrypted: false,
            right: Right::Connect,
        };
        let identified = world.access.authenticate(request).await;
        identified
            .map(|subject| subject.user.groups.len())
            .map_err(|refusal| (refusal.reason, refusal.phrase().to_owned()))
    };
    let (name, group) = (rcgen::DnType::CommonName, rcgen::DnType::OrganizationName);
    let refused = |phrase: &str| Err((RefusalReason::IdentityRefused, phrase.to_owned()));
    let (max, more) = ("a".repeat(512), "a".repeat(513));
    assert_eq!(identify(&[(name.clone(), &max), (group.clone(), &max)]).await, Ok(2));
    for text in [
        &*more,
        "al\0ice",
        "al\tice",
        " alice",
        "alice ",
        "al\u{200b}ice",
        "al\u{202e}ice",
        "alice\u{3164}",
    ] {
        let phrase = " of the certificate is empty, too long or not printable, or has a space at an end";
        let of_name = identify(&[(name.clone(), text)]).await;
        assert_eq!(of_name, refused(&format!("the common name{phrase}")), "{text:?}");
        let of_group = identify(&[(name.clone(), "alice"), (group.clone(), text)]).await;
        assert_eq!(of_group, refused(&format!("an organization{phrase}")), "{text:?}");
    }
    for text in [" system:masters", "System:masters", "SYSTEM:node:a"] {
        let phrase = format!("a client certificate cannot prove {text}: it is the cluster's own");
        assert_eq!(identify(&[(name.clone(), text)]).await, refused(&phrase));
        assert_eq!(
            identify(&[(name.clone(), "alice"), (group.clone(), text)]).await,
            refused(&phrase)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_of_the_file_with_a_prefix_is_none_of_another_source() {
    let world = World::new(|_| {});
    let file = tempfile::NamedTempFile::new().unwrap();
    // The password is `correct`: made by htpasswd(1).
    let line = "alice:$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu\n";
    std::fs::write(file.path(), line).unwrap();
    let apply = |prefix: &str| {
        let users = PasswordFile::open(file.path())
            .unwrap()
            .with_prefix(Some(prefix.into()));
        let config = world.access.decider.config.load_full();
        let sources = Sources {
            users: Some(Arc::new(users)),
            ..config.sources.clone()
        };
        world.access.apply(config.options.clone(), sources);
    };
    apply("file:");
    let publish = |user: &str| {
        let lists = UserLists {
            users: [user.into()].into(),
            groups: [].into(),
        };
        world.publish(["a".to_owned()], Some(&lists));
    };
    publish("alice");
    let login = RequestCredentials {
        credential: Some(Ok(Credential::Basic {
            user: "alice".into(),
            password: "correct".into(),
        })),
        ..request("", 1)
    };
    let claimed = login
        .credential
        .as_ref()
        .and_then(|read| read.as_ref().ok())
        .and_then(|own| world.access.claimed_user(own));
    assert_eq!(claimed.as_deref(), Some("file:alice"));
    let subject = world.access.authenticate(login).await.unwrap();
    assert_eq!(&*subject.user.name, "file:alice");
    let refused = world.access.authorize(&subject, &world.target("a")).await;
    assert_eq!(refused.unwrap_err().reason, RefusalReason::NotAuthorized);
    publish("file:alice");
    let grant = world.access.authorize(&subject, &world.target("a")).await.unwrap();
    world.access.users_changed();
    sleep(seconds(1)).await;
    assert!(!has_ended(&grant));
    // Its users have other names.
    apply("other:");
    sleep(seconds(1)).await;
    assert!(has_ended(&grant));
}

#[test]
fn the_groups_of_a_certificate_are_bounded() {
    let mut alice = user("alice");
    alice.groups = vec!["ops".into(); 257];
    assert!(credentials::check_names(&alice).is_ok());
    alice.groups.push("ops".into());
    let refusal = credentials::check_names(&alice).unwrap_err();
    assert_eq!(refusal.phrase(), "the certificate has more than 256 organizations");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_a_user_and_agrees_with_the_credential() {
    let world = World::new(|_| {});
    let (name, group) = (rcgen::DnType::CommonName, rcgen::DnType::OrganizationName);
    let alice = peer(&[(name.clone(), "alice"), (group.clone(), "ops")]);
    let master = peer(&[(name.clone(), "alice"), (group, "system:masters")]);
    let node = peer(&[(name.clone(), "system:node:a")]);
    let bob = peer(&[(name, "bob")]);
    let nameless = peer(&[]);
    let client = IpAddr::from([192, 0, 2, 1]);
    let identify = async |client_tls: &Arc<ClientTls>, token: Option<&str>| {
        let request = RequestCredentials {
            credential: token.map(|token| Ok(Credential::Bearer(token.into()))),
            client_tls: Some(client_tls),
            client,
            is_local: false,
            is_encrypted: false,
            right: Right::Connect,
        };
        let identified = world.access.authenticate(request).await;
        identified
            .map(|subject| {
                format!(
                    "{} {} {:?}",
                    subject.user.name,
                    subject.user.groups.join(" "),
                    subject.user.method
                )
            })
            .map_err(|refusal| refusal.phrase().to_owned())
    };
    let own = |text: &str| Ok(text.to_owned());
    let refused = |text: &str| Err(text.to_owned());
    assert_eq!(
        identify(&alice, None).await,
        own("alice ops system:authenticated Certificate")
    );
    assert_eq!(
        identify(&alice, Some("alice")).await,
        own("alice system:authenticated TokenReview")
    );
    assert_eq!(
        identify(&bob, Some("alice")).await,
        refused("the certificate is that of bob, the credential that of alice")
    );
    let masters = "a client certificate cannot prove system:masters: it is the cluster's own";
    assert_eq!(identify(&master, None).await, refused(masters));
    assert_eq!(identify(&master, Some("alice")).await, refused(masters));
    assert!(identify(&node, None).await.unwrap_err().contains("system:node:a"));
    assert_eq!(
        identify(&nameless, None).await,
        refused(&RefusalReason::CredentialsRequired.phrase().to_string())
    );
    assert_eq!(
        identify(&nameless, Some("alice")).await,
        own("alice system:authenticated TokenReview")
    );
}

//! The caches of users and rights take less than 8 MiB, however many ask. Alone in its process, whose memory it measures.

#![expect(clippy::unwrap_used, reason = "a failed assumption fails the test")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use switchboard::base::secret::Secret;
use switchboard::policy::access::credentials::credential::Credential;
use switchboard::policy::access::{
    AUTHENTICATED, Access, Action, Decision, Kubernetes, Method, Mode, Options, RequestCredentials, Review, Reviewer,
    Right, Sources, User, Verdict,
};
use switchboard::policy::allowlist::{Endpoints, ServiceTarget, TargetId, TargetRules, Writer};
use switchboard::protocol::jwt::Jwt;
use switchboard::proxy::metrics::Metrics;

/// Proves tokens that begin with `good`, and allows what begins with `open`.
#[derive(Debug)]
struct Server;

impl Reviewer for Server {
    fn review_token<'a>(&'a self, token: &'a Secret, _jwt: Option<&'a Jwt>) -> Review<'a, Verdict> {
        let groups = (0..10).map(|number| format!("oidc:department-{number}").into());
        let verdict = match token.expose().strip_prefix("good") {
            Some(name) => Verdict::Authenticated(Arc::new(User {
                name: format!("{name}@example.com").into(),
                uid: Some("0b5ad2b7-1f0b-4d8c-a3a5-7d1c0e7a9a11".into()),
                groups: groups.chain([AUTHENTICATED.into()]).collect(),
                extra: BTreeMap::from([(
                    "authentication.kubernetes.io/credential-id".into(),
                    vec!["JTI=1".into()],
                )]),
                method: Method::TokenReview,
                expires: None,
            })),
            None => Verdict::Rejected("the token is none that the cluster knows, or has expired".into()),
        };
        Box::pin(async { Ok(verdict) })
    }

    fn review_access<'a>(&'a self, _user: &'a User, action: &'a Action) -> Review<'a, Decision> {
        let allowed = action.name.starts_with("open");
        let reason = "RBAC: allowed by RoleBinding \"ssh/team\" of Role \"ssh\" to Group \"oidc:department-1\"";
        Box::pin(async move {
            Ok(Decision {
                allowed,
                complete: true,
                reason: reason.into(),
            })
        })
    }
}

/// The process's memory in bytes.
fn resident(metrics: &Metrics) -> f64 {
    let page = metrics.encode().unwrap();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
    line.unwrap().parse().unwrap()
}

fn service(name: &str) -> ServiceTarget {
    ServiceTarget {
        id: TargetId {
            namespace: "team".into(),
            service: name.into(),
        },
        ports: [22, 22],
        endpoints: Endpoints::default(),
        rules: TargetRules::default(),
    }
}

#[tokio::test]
async fn full_caches_take_less_than_eight_mebibytes() {
    let options = Options {
        mode: Mode::Enforce,
        kubernetes: Some(Kubernetes::default()),
        ..Options::default()
    };
    let sources = Sources {
        reviewer: Some(Arc::new(Server)),
        ..Sources::default()
    };
    let metrics = Metrics::new().unwrap();
    let access = Access::new(options, sources, &metrics.access);
    let (writer, allowlist) = Writer::new();
    let names = |kind: &str| (0..4).map(|number| format!("{kind}{number}")).collect::<Vec<_>>();
    writer.replace(
        ["open", "shut"]
            .iter()
            .flat_map(|kind| names(kind))
            .map(|name| service(&name))
            .collect(),
        true,
    );
    let identify = async |token: String| {
        let evidence = RequestCredentials {
            credential: Some(Ok(Credential::Bearer(token.as_str().into()))),
            client_tls: None,
            client: Ipv4Addr::LOCALHOST.into(),
            is_local: true,
            is_encrypted: false,
            right: Right::Connect,
        };
        access.authenticate(evidence).await
    };
    let fill = async |from: u32, to: u32| {
        for number in from..to {
            identify(format!("invalid{number}")).await.unwrap_err();
            let subject = identify(format!("good{number}")).await.unwrap();
            for name in ["open0", "open1", "shut0", "shut1"] {
                let target = allowlist
                    .find_target(&format!("{name}.team:22").parse().unwrap())
                    .unwrap();
                access.authorize(&subject, &target).await.ok();
            }
        }
    };
    // Memory that the first ones take once is no cache.
    fill(0, 10).await;
    let before = resident(&metrics);
    fill(10, 12_000).await;
    let taken = resident(&metrics) - before;
    access.count();
    let page = metrics.encode().unwrap();
    for line in page.lines().filter(|line| line.contains("cache_entries{")) {
        println!("{line}");
    }
    println!("{taken} bytes");
    let mebibyte = 1_048_576.0;
    assert!((mebibyte..8.0 * mebibyte).contains(&taken), "{taken} bytes");
}

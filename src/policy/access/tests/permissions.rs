//! The object that a review names.

use super::*;

fn on(group: &str, resource: &str, name: NamedObject) -> Permission {
    Permission {
        group: group.into(),
        resource: resource.into(),
        name,
        ..Permission::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_review_names_the_service_the_pod_or_the_owner_and_else_all_objects_of_the_namespace() {
    let (service, pod, owner) = (NamedObject::Service, NamedObject::Pod, NamedObject::Owner);
    // The names in the reviews about a Service, one of its pods, a Service without a label, and a pod without a Service.
    for (permission, expected) in [
        (Permission::default(), ["web", "web", "bare", "box-0"]),
        (Permission::port_forward(), ["", "", "", "box-0"]),
        (on("", "pods", pod), ["", "web-0", "", "box-0"]),
        (on("kubeflow.org", "workspaces", owner), ["box", "box", "", "box"]),
        (
            on("agents.x-k8s.io", "sandboxes", service),
            ["web", "web", "bare", "box-0"],
        ),
    ] {
        let world = World::new(|options| {
            let own = options.kubernetes.as_mut().unwrap();
            own.permission = permission.clone();
        });
        let rules = |owner: Option<&str>, uid: Option<&str>| TargetRules {
            owner: owner.map(Into::into),
            uid: uid.map(Into::into),
            ..TargetRules::default()
        };
        let of = [
            ("web", Some("box")),
            ("web-0.web", Some("box")),
            ("bare", None),
            ("box-0._pod", Some("box")),
        ];
        let targets = of.map(|(name, owner)| ServiceTarget {
            id: TargetId {
                namespace: "team".into(),
                service: name.into(),
            },
            ports: [22, 22],
            endpoints: Endpoints::default(),
            rules: rules(owner, name.ends_with("._pod").then_some("u-1")),
        });
        world.writer.replace(targets.into(), true);
        for ((target, _), expected) in of.into_iter().zip(expected) {
            let (mut wanted, name) = (permission.clone(), Box::from(expected));
            let is_pod = target.ends_with("._pod");
            if is_pod && wanted == Permission::default() {
                wanted.resource = "pods".into();
            }
            let target = target.replace("._pod", ".team.pod");
            world.script.set_access(move |_, action| {
                let is_meant = action.permission == wanted && action.name == name && *action.namespace == *"team";
                Ok(decision(is_meant))
            });
            world.access.decider.reviews.clear();
            let subject = world.identify("alice", 1).await.unwrap();
            let name = if is_pod { target } else { format!("{target}.team") };
            let target = world
                .allowlist
                .find_target(&format!("{name}:22").parse().unwrap())
                .unwrap();
            world.access.authorize(&subject, &target).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_refusal_names_the_permission_that_is_missing() {
    let world = World::new(|options| {
        options.kubernetes.as_mut().unwrap().permission = Permission {
            verb: "connect".into(),
            group: "kubeflow.org".into(),
            resource: "workspaces".into(),
            subresource: "".into(),
            name: NamedObject::Owner,
        };
    });
    world.publish(["a".to_owned()], None);
    world.script.set_access(|_, _| Ok(decision(false)));
    let refusal = world.grant("alice", "a").await.unwrap_err();
    let needed = "needs connect workspaces.kubeflow.org of team";
    assert!(format!("{refusal:?}").contains(needed), "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn another_permission_counts_from_the_reload_on_and_no_approval_of_the_former_one() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let grant = world.grant("alice", "a").await.unwrap();
    world.script.set_access(|_, _| Err(away()));
    let workspaces = on("kubeflow.org", "workspaces", NamedObject::Owner);
    world.reload(|options| options.kubernetes.as_mut().unwrap().permission = workspaces);
    let refusal = world.grant("alice", "a").await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::AuthorizationUnavailable);
    assert!(!has_ended(&grant), "an error ends no tunnel");
    world
        .script
        .set_access(|_, action| Ok(decision(action.permission == Permission::default())));
    assert_eq!(grant.revoked_or_expired().await, CloseReason::AccessRevoked);
    assert_eq!(
        world.grant("alice", "a").await.unwrap_err().reason,
        RefusalReason::NotAuthorized
    );
}

//! The object that a review names.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_review_names_the_service_the_pod_or_the_owner_and_else_all_objects_of_the_namespace() {
    let on = |group: &str, resource: &str, name| Permission {
        group: group.into(),
        resource: resource.into(),
        name,
        ..Permission::default()
    };
    let (service, pod, owner) = (NamedObject::Service, NamedObject::Pod, NamedObject::Owner);
    // The names in the reviews about a Service, one of its pods, and a Service without a label.
    for (permission, expected) in [
        (Permission::default(), ["web", "web", "bare"]),
        (Permission::port_forward(), ["", "", ""]),
        (on("", "pods", pod), ["", "web-0", ""]),
        (on("kubeflow.org", "workspaces", owner), ["box", "box", ""]),
        (on("agents.x-k8s.io", "sandboxes", service), ["web", "web", "bare"]),
    ] {
        let world = World::new(|options| {
            let own = options.kubernetes.as_mut().unwrap();
            own.permission = permission.clone();
        });
        let rules = |owner: Option<&str>| TargetRules {
            owner: owner.map(Into::into),
            ..TargetRules::default()
        };
        let of = [("web", Some("box")), ("web-0.web", Some("box")), ("bare", None)];
        let targets = of.map(|(name, owner)| ServiceTarget {
            id: TargetId {
                namespace: "team".into(),
                service: name.into(),
            },
            ports: [22, 22],
            endpoints: Endpoints::default(),
            rules: rules(owner),
        });
        world.writer.replace(targets.into(), true);
        for ((target, _), expected) in of.into_iter().zip(expected) {
            let (wanted, name) = (permission.clone(), Box::from(expected));
            world.script.set_access(move |_, action| {
                let is_meant = action.permission == wanted && action.name == name && *action.namespace == *"team";
                Ok(decision(is_meant))
            });
            world.access.decider.reviews.clear();
            world.grant("alice", target).await.unwrap();
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

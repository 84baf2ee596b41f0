//! The allowlist: the names that clients may request, and their targets. A lookup reads an immutable table, which a
//! writer replaces as a whole, so that readers never wait.

pub use self::host_keys::TargetKeys;
pub use self::static_target::{AnchorUsers, StaticTarget};
pub use self::table::{Allowlist, ClusterView, NoRemarks, Options, Suffixes};
pub use self::target::{ClientNames, DialsIn, Endpoints, LastDial, Target, TargetId, TargetRules, UserLists};
pub use self::wake::{WakeRequest, WakeRequests, WakeResult};
pub use self::workload::{Stop, Workload, Workloads};
pub use self::writer::{Change, ServiceTarget, Writer};

mod host_keys;
mod static_target;
mod table;
mod target;
mod wake;
mod workload;
mod writer;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use crate::tunnel::direction::Direction;
    use crate::tunnel::limits::{Limits, TunnelLimits};
    use crate::tunnel::outcome::RefusalReason;

    fn target(name: &str, address: &str) -> StaticTarget {
        format!("{name}={address}").parse().unwrap()
    }

    fn tunnels(tunnel: TunnelLimits) -> Limits {
        Limits {
            tunnel,
            ..Limits::default()
        }
    }

    fn authorize(allowlist: &Allowlist, name: &str) -> Result<Arc<Target>, RefusalReason> {
        allowlist.find_target(&name.parse().unwrap())
    }

    fn addresses(target: &Target) -> Vec<SocketAddr> {
        target.endpoints().addresses.to_vec()
    }

    fn is_revoked(target: &Target) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(target.removed()).poll(&mut context).is_ready()
    }

    #[test]
    fn only_published_names_are_allowed() {
        let (mut writer, allowlist) = Writer::new();
        assert_eq!(authorize(&allowlist, "a:22").unwrap_err(), RefusalReason::NotAllowed);
        writer.publish(
            &[target("a:22", "127.0.0.1:1"), target("b:22", "127.0.0.1:2")],
            &Limits::default(),
        );
        assert_eq!(
            addresses(&authorize(&allowlist, "A.:22").unwrap()),
            ["127.0.0.1:1".parse().unwrap()]
        );
        assert_eq!(authorize(&allowlist, "a:23").unwrap_err(), RefusalReason::NotAllowed);
        assert_eq!(authorize(&allowlist, "c:22").unwrap_err(), RefusalReason::NotAllowed);
        assert_eq!(allowlist.targets(), 2);
    }

    #[test]
    fn a_target_that_stays_is_updated_and_one_that_goes_is_revoked() {
        let (mut writer, allowlist) = Writer::new();
        writer.publish(
            &[target("a:22", "127.0.0.1:1"), target("b:22", "127.0.0.1:2")],
            &Limits::default(),
        );
        let (stays, goes) = (
            authorize(&allowlist, "a:22").unwrap(),
            authorize(&allowlist, "b:22").unwrap(),
        );
        let slower = TunnelLimits {
            download: "1MiB/s".parse().unwrap(),
            lifetime: Some(Duration::from_secs(9)),
            ..TunnelLimits::default()
        };
        writer.publish(&[target("a:22", "127.0.0.1:9")], &tunnels(slower));
        assert_eq!(addresses(&stays), ["127.0.0.1:9".parse().unwrap()]);
        assert_eq!(stays.limit(Direction::Download).rate(), slower.download);
        assert!(stays.limit(Direction::Upload).rate().is_unlimited());
        assert_eq!(stays.lifetime(), slower.lifetime);
        assert!(!is_revoked(&stays));
        assert!(is_revoked(&goes));
        assert_eq!(authorize(&allowlist, "b:22").unwrap_err(), RefusalReason::NotAllowed);
    }

    #[test]
    fn a_target_may_override_the_default_limits() {
        let (mut writer, allowlist) = Writer::new();
        let mut fast = target("a:22", "127.0.0.1:1");
        fast.limits.download = Some("10MiB/s".parse().unwrap());
        let defaults = TunnelLimits {
            download: "1MiB/s".parse().unwrap(),
            ..TunnelLimits::default()
        };
        writer.publish(&[fast, target("b:22", "127.0.0.1:2")], &tunnels(defaults));
        for (name, rate) in [("a:22", "10MiB/s"), ("b:22", "1MiB/s")] {
            let target = authorize(&allowlist, name).unwrap();
            assert_eq!(target.limit(Direction::Download).rate(), rate.parse().unwrap());
        }
    }

    fn service(namespace: &str, name: &str, address: &str) -> ServiceTarget {
        ServiceTarget {
            id: TargetId {
                namespace: namespace.into(),
                service: name.into(),
            },
            ports: [2222, 22],
            endpoints: Endpoints::from(vec![address.parse().unwrap()]),
            rules: TargetRules::default(),
        }
    }

    fn set(target: ServiceTarget) -> Change {
        Change::Set(Box::new(target))
    }

    fn configured(keeps_removed: bool) -> (Writer, Arc<Allowlist>) {
        let (writer, allowlist) = Writer::new();
        writer.configure(Options {
            suffixes: Arc::new(Suffixes::new("cluster.local", ["ssh.example.com"])),
            keeps_removed,
            ..Options::default()
        });
        (writer, allowlist)
    }

    #[test]
    fn a_service_has_all_its_names_at_both_ports() {
        let (writer, allowlist) = configured(false);
        writer.replace(vec![service("team-a", "svc-a", "10.0.0.1:22")], true);
        assert_eq!(allowlist.targets(), 1);
        for name in [
            "svc-a.team-a:22",
            "svc-a.team-a.svc:2222",
            "SVC-A.team-a.svc.cluster.local.:22",
            "svc-a.team-a.ssh.example.com:2222",
        ] {
            let target = authorize(&allowlist, name).unwrap();
            assert_eq!(target.id().to_string(), "team-a/svc-a", "{name}");
        }
        for name in [
            "svc-a.team-a:23",
            "svc-a:22",
            "svc-a.team-b:22",
            "svc-a.team-a.example.com:22",
        ] {
            assert_eq!(
                authorize(&allowlist, name).unwrap_err(),
                RefusalReason::NotAllowed,
                "{name}"
            );
        }
    }

    #[test]
    fn a_service_keeps_its_target_while_it_changes() {
        let (writer, allowlist) = configured(false);
        writer.replace(
            vec![service("a", "x", "10.0.0.1:22"), service("a", "y", "10.0.0.2:22")],
            true,
        );
        let (stays, goes) = (
            authorize(&allowlist, "x.a:22").unwrap(),
            authorize(&allowlist, "y.a:22").unwrap(),
        );
        let mut moved = service("a", "x", "10.0.0.9:22");
        moved.ports = [22, 22];
        moved.rules.limits.tunnel.upload = "1MiB/s".parse().unwrap();
        writer.apply([set(moved.clone()), Change::Remove(goes.id().clone())]);
        assert!(Arc::ptr_eq(&stays, &authorize(&allowlist, "x.a:22").unwrap()));
        assert_eq!(addresses(&stays), ["10.0.0.9:22".parse().unwrap()]);
        assert_eq!(stays.limit(Direction::Upload).rate(), moved.rules.limits.tunnel.upload);
        assert!(authorize(&allowlist, "x.a:2222").is_err());
        assert!(!is_revoked(&stays) && is_revoked(&goes));
        assert_eq!(allowlist.targets(), 1);
    }

    #[test]
    fn a_change_of_the_users_that_a_target_names_is_told_and_no_other_change_is() {
        let (mut writer, allowlist) = configured(false);
        let alice = Some(UserLists {
            users: ["alice"].map(Into::into).into(),
            ..UserLists::default()
        });
        let mut changed = allowlist.user_lists_changed();
        let mut is_told = || {
            let told = changed.has_changed().unwrap();
            changed.mark_unchanged();
            told
        };
        let mut statics = [target("a:22", "127.0.0.1:1")];
        let mut of_cluster = service("a", "x", "10.0.0.1:22");
        writer.publish(&statics, &Limits::default());
        writer.replace(vec![of_cluster.clone()], true);
        assert!(!is_told(), "no target names users");
        for lists in [alice, Some(UserLists::default()), None] {
            statics[0].allowed_users = lists.as_ref().map(|lists| lists.users.clone());
            writer.publish(&statics, &Limits::default());
            assert!(is_told());
            writer.publish(&statics, &Limits::default());
            assert!(!is_told());
            assert_eq!(
                authorize(&allowlist, "a:22").unwrap().user_lists().as_deref(),
                lists.as_ref()
            );
            of_cluster.rules.user_lists = lists.clone().map(Arc::new);
            writer.apply([set(of_cluster.clone())]);
            assert!(is_told());
            of_cluster.ports = [22, 23];
            writer.apply([set(of_cluster.clone())]);
            assert!(!is_told());
            assert_eq!(
                authorize(&allowlist, "x.a:22").unwrap().user_lists().as_deref(),
                lists.as_ref()
            );
        }
        of_cluster.rules.owner = Some("box".into());
        writer.apply([set(of_cluster)]);
        assert!(is_told(), "the users of another object may reach it");
    }

    #[test]
    fn another_pod_of_a_name_is_another_target_and_the_tunnels_of_the_first_end() {
        let (writer, allowlist) = configured(false);
        let pod = |uid: &str| {
            let mut pod = service("a", "x._pod", "10.0.0.1:22");
            pod.rules.uid = Some(uid.into());
            pod
        };
        writer.replace(vec![pod("1"), service("a", "x", "10.0.0.9:22")], true);
        let first = authorize(&allowlist, "x.a.pod:22").unwrap();
        writer.apply([set(pod("1"))]);
        assert!(Arc::ptr_eq(&first, &authorize(&allowlist, "x.a.pod:22").unwrap()));
        for change in [&(|| writer.apply([set(pod("2"))])) as &dyn Fn(), &|| {
            writer.replace(vec![pod("3"), service("a", "x", "10.0.0.9:22")], true)
        }] {
            let before = authorize(&allowlist, "x.a.pod:22").unwrap();
            change();
            assert!(is_revoked(&before) && !is_revoked(&authorize(&allowlist, "x.a.pod:22").unwrap()));
        }
        // Its name is no Service's, and a Service's is none of it.
        assert_eq!(
            addresses(&authorize(&allowlist, "x.a:22").unwrap()),
            ["10.0.0.9:22".parse().unwrap()]
        );
        for name in ["x._pod.a:22", "x.pod.a:22", "x.b.pod:22"] {
            authorize(&allowlist, name).unwrap_err();
        }
        writer.await_pods(vec![Some("b".into())]);
        assert_eq!(
            authorize(&allowlist, "x.b.pod:22").unwrap_err(),
            RefusalReason::AllowlistNotReady
        );
        assert_eq!(
            authorize(&allowlist, "y.a.pod:22").unwrap_err(),
            RefusalReason::NotAllowed
        );
    }

    #[test]
    fn a_pod_may_have_a_further_name_which_counts_as_no_other_target() {
        let (writer, allowlist) = configured(false);
        let pod = |name: &str, uid: &str, alias: Option<&str>| {
            let mut pod = service("a", &format!("{name}._pod"), "10.0.0.1:22");
            pod.rules.uid = Some(uid.into());
            pod.rules.alias = alias.map(Into::into);
            pod
        };
        let named = |name: &str| {
            authorize(&allowlist, name)
                .map(|target| target.id().service.clone())
                .ok()
        };
        writer.replace(vec![pod("x", "1", Some("box"))], true);
        let first = authorize(&allowlist, "box.a.pod:22").unwrap();
        assert!(Arc::ptr_eq(&first, &authorize(&allowlist, "x.a.pod:2222").unwrap()));
        assert_eq!((allowlist.targets(), allowlist.all().len()), (1, 1));
        // It gives the name to another one, in any order of both.
        for changes in [
            [pod("x", "1", None), pod("y", "2", Some("box"))],
            [pod("x", "1", Some("box")), pod("y", "2", None)],
        ] {
            let holder = changes
                .iter()
                .find(|pod| pod.rules.alias.is_some())
                .unwrap()
                .id
                .service
                .clone();
            for order in [changes.clone(), [changes[1].clone(), changes[0].clone()]] {
                writer.apply(order.map(set));
                assert_eq!(named("box.a.pod:22"), Some(holder.clone()));
                assert_eq!(allowlist.targets(), 2);
            }
        }
        // Another pod of the name has another target under both names.
        writer.apply([set(pod("x", "3", Some("box")))]);
        let second = authorize(&allowlist, "box.a.pod:22").unwrap();
        assert!(is_revoked(&first) && !is_revoked(&second));
        writer.apply([set(pod("x", "3", Some("other")))]);
        assert_eq!(
            (named("box.a.pod:22"), named("other.a.pod:22")),
            (None, Some("x._pod".into()))
        );
        // A pod that is called so is not displaced.
        writer.apply([set(pod("other", "4", None)), set(pod("x", "3", Some("other")))]);
        assert_eq!(named("other.a.pod:22"), Some("other._pod".into()));
        writer.apply([set(pod("x", "3", Some("box")))]);
        writer.apply([Change::Remove(pod("x", "3", None).id)]);
        assert_eq!((named("x.a.pod:22"), named("box.a.pod:22")), (None, None));
        assert!(is_revoked(&second) && allowlist.targets() == 2);
    }

    #[test]
    fn a_removal_concerns_its_own_target_and_no_other_one_of_its_name() {
        let (writer, allowlist) = configured(false);
        // The pod `a` of the namespace `b`, and the pod `a` of the Service `b` in the namespace `pod`.
        let mut of_pod = service("b", "a._pod", "10.0.0.1:22");
        of_pod.rules.uid = Some("1".into());
        let of_service = service("pod", "a.b", "10.0.0.2:22");
        for (before, after) in [(&of_pod, &of_service), (&of_service, &of_pod)] {
            writer.replace(vec![before.clone()], true);
            writer.apply([set(after.clone()), Change::Remove(before.id.clone())]);
            assert_eq!(*authorize(&allowlist, "a.b.pod:22").unwrap().id(), after.id);
            writer.apply([Change::Remove(after.id.clone())]);
            authorize(&allowlist, "a.b.pod:22").unwrap_err();
        }
    }

    #[test]
    fn the_tunnels_of_a_removed_service_may_go_on() {
        let (writer, allowlist) = configured(true);
        writer.replace(vec![service("a", "x", "10.0.0.1:22")], true);
        let target = authorize(&allowlist, "x.a:22").unwrap();
        writer.replace(Vec::new(), true);
        assert!(authorize(&allowlist, "x.a:22").is_err());
        assert!(!is_revoked(&target));
    }

    #[test]
    fn a_name_is_unknown_and_not_forbidden_before_the_first_complete_list() {
        let (mut writer, allowlist) = configured(false);
        writer.await_services(None);
        writer.publish(&[target("a:22", "127.0.0.1:1")], &Limits::default());
        assert!(authorize(&allowlist, "a:22").is_ok());
        assert_eq!(
            authorize(&allowlist, "x.a:22").unwrap_err(),
            RefusalReason::AllowlistNotReady
        );
        writer.replace(Vec::new(), false);
        assert_eq!(
            authorize(&allowlist, "c.n:22").unwrap_err(),
            RefusalReason::AllowlistNotReady
        );
        writer.confirm();
        assert_eq!(authorize(&allowlist, "x.a:22").unwrap_err(), RefusalReason::NotAllowed);
        assert!(
            pin!(allowlist.completed())
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        );
    }

    #[test]
    fn only_names_of_the_namespaces_that_a_reload_has_added_are_unknown() {
        let (writer, allowlist) = configured(false);
        let is_unknown = |name: &str| {
            let refused = authorize(&allowlist, name).unwrap_err();
            assert!(matches!(
                refused,
                RefusalReason::NotAllowed | RefusalReason::AllowlistNotReady
            ));
            refused == RefusalReason::AllowlistNotReady
        };
        let unknown = || {
            [
                "x.a:22",
                "x.b.svc.cluster.local:22",
                "x.b:1",
                "x.c:22",
                "b:22",
                "a.x.b:22",
            ]
            .map(is_unknown)
        };
        writer.replace(Vec::new(), true);
        writer.await_services(Some(Vec::new()));
        assert_eq!(unknown(), [false; 6], "nothing is new");
        writer.await_services(Some(vec!["b".into()]));
        assert_eq!(
            unknown(),
            [false, true, true, false, false, true],
            "a pod may have the last name"
        );
        writer.await_services(Some(vec!["c".into()]));
        assert_eq!(unknown(), [false, true, true, true, false, true], "two reloads");
        writer.apply([Change::Set(Box::new(service("a", "x", "10.0.0.1:22")))]);
        assert!(is_unknown("x.b:22") && !is_unknown("y.a:22"));
        writer.await_services(None);
        writer.await_services(Some(vec!["c".into()]));
        assert!(is_unknown("y.a:22"), "all are awaited already");
        writer.confirm();
        assert!(!is_unknown("x.b:22"));
        writer.await_services(Some(vec!["c".into()]));
        assert!(
            !is_unknown("x.b:22") && is_unknown("x.c:22"),
            "nothing is left of the first time"
        );
        writer.confirm();
        for (pods, expected) in [
            (vec![None], [true, true, false, false]),
            (vec![Some("b".into())], [false, true, false, false]),
            (Vec::new(), [false; 4]),
        ] {
            writer.await_pods(pods);
            assert_eq!(
                ["x.a.pod:22", "x.b.pod:22", "y.b:22", "x.pod.b:22"].map(is_unknown),
                expected
            );
        }
    }

    #[test]
    fn a_static_target_takes_precedence_over_a_service() {
        let (mut writer, allowlist) = configured(false);
        writer.replace(vec![service("a", "x", "10.0.0.1:22")], true);
        writer.publish(&[target("x.a:22", "127.0.0.1:1")], &Limits::default());
        assert_eq!(&*authorize(&allowlist, "x.a:22").unwrap().id().namespace, "static");
        assert_eq!(&*authorize(&allowlist, "x.a.svc:22").unwrap().id().namespace, "a");
        assert_eq!(allowlist.conflicts(), 1);
        writer.apply([Change::Remove(service("a", "x", "10.0.0.1:22").id)]);
        assert_eq!(allowlist.conflicts(), 0);
        writer.apply([set(service("a", "x", "10.0.0.1:22"))]);
        assert_eq!(allowlist.conflicts(), 1);
        writer.publish(&[], &Limits::default());
        assert_eq!(allowlist.conflicts(), 0);
        assert_eq!(&*authorize(&allowlist, "x.a:22").unwrap().id().namespace, "a");
    }
}

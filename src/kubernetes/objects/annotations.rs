//! The annotations of a Service: their values, their errors, and the limits that the operator grants for them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::values::{self, boolean, timeout, unless};
use crate::kubernetes::options::{Options, WorkloadKind};
use crate::policy::allowlist::{ClientNames, Stop, UserLists, Workload, Workloads};
use crate::protocol::host_key::HostKeys;
use crate::tunnel::limits::{Limits, Rate, Size, TargetLimits, TunnelLimits};
use crate::tunnel::proxy_header::Version;

/// The values of a Service's annotations; `None` for no annotation, one that switches off a limit or header, or an
/// invalid one. An invalid one that restricts (`max-tunnels`, `allowed-clients`, `allowed-users`, `allowed-groups`,
/// `ssh-only`) has its strictest value instead, since its author means to keep clients out.
///
/// Snapshots contain the serde names of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Annotations {
    /// `download`: the rate of each tunnel, pod to client.
    pub(crate) download: Option<Rate>,
    /// `upload`: the rate of each tunnel, client to pod.
    pub(crate) upload: Option<Rate>,
    /// `burst`: the bytes that a direction may relay at once after it was idle.
    pub(crate) burst: Option<Size>,
    /// `max-tunnels`: the maximum number of tunnels; 0 closes the Service to new ones.
    pub(crate) max_tunnels: Option<u32>,
    /// `idle-timeout`: the longest idle time of a tunnel.
    pub(crate) idle_timeout: Option<IdleTimeout>,
    /// `allowed-clients`: names of client certificates, one of which a client must have.
    pub(crate) allowed_clients: Option<ClientNames>,
    /// `allowed-users` and `allowed-groups`: the users that may reach the Service, instead of those that the API server
    /// allows.
    pub(crate) user_lists: Option<Box<UserLists>>,
    /// `send-proxy-protocol`: the version of the PROXY header sent first to a pod.
    pub(crate) send_proxy_header: Option<Version>,
    /// `ssh-only`: true if both sides must begin with an SSH identification.
    pub(crate) ssh_only: Option<bool>,
    /// `dials-in`: true if anchors that dial in serve it, instead of its endpoints.
    pub(crate) dials_in: Option<bool>,
    /// `wake`: the workload that a request starts when the Service has no endpoint.
    pub(crate) wake: Option<Box<Workload>>,
    /// `report-activity`: the workload to report activity to.
    pub(crate) report_activity: Option<Box<Workload>>,
    /// `stopped`: no new tunnel, and nothing is started.
    pub(crate) stopped: Option<Stop>,
    /// `host-keys`: the keys of the SSH server, which clients are sent.
    pub(crate) host_keys: Option<Box<HostKeys>>,
    /// `name`: a further name of a pod without a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<Box<str>>,
}

/// The longest idle time of a tunnel. An enum, because JSON cannot tell `Some(None)` from `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IdleTimeout {
    /// No timeout.
    Off,
    /// A tunnel closes after being idle this long.
    After(Duration),
}

/// The value of the annotation `port`, which selects a port of the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortSelector {
    /// The port of the Service, not of its pods.
    Number(u16),
    /// The name of the port.
    Name(Box<str>),
}

/// The error of one annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AnnotationError {
    /// The annotation's name without the prefix.
    pub(crate) key: Box<str>,
    /// The reason, and what was expected instead.
    pub(crate) reason: Box<str>,
    /// True if no port of the Service is known to be SSH, and no valid annotation selects one.
    pub(crate) is_without_port: bool,
}

impl AnnotationError {
    /// Creates the error of an annotation that the Service has.
    pub(crate) fn new(key: &str, reason: String) -> Self {
        Self {
            key: key.into(),
            reason: reason.into(),
            is_without_port: false,
        }
    }

    /// Creates the error of a Service without a port that is known to be SSH.
    pub(crate) fn without_port(reason: String) -> Self {
        Self {
            is_without_port: true,
            ..Self::new("port", reason)
        }
    }
}

/// The result of [`parse`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedAnnotations {
    /// The values.
    pub(crate) annotations: Annotations,
    /// The annotation `port`.
    pub(crate) port: Option<PortSelector>,
    /// The errors of invalid and unknown annotations.
    pub(crate) faults: Vec<AnnotationError>,
}

/// Parses the annotations whose names begin with `prefix`.
pub(crate) fn parse(annotations: &BTreeMap<String, Option<String>>, prefix: &str) -> ParsedAnnotations {
    let mut parsed = ParsedAnnotations::default();
    for (key, text) in annotations {
        let Some(key) = key.strip_prefix(prefix) else {
            continue;
        };
        // A null counts as empty: treated as absent, it would lift a restriction.
        let text = text.as_deref().unwrap_or_default().trim();
        if let Err(reason) = parsed.set(key, text) {
            let reason = reason + parsed.restrict(key);
            // A tenant may write 15,000, and each is kept.
            if parsed.faults.len() < MAX_FAULTS {
                parsed.faults.push(AnnotationError::new(&values::shown(key), reason));
            }
        }
    }
    parsed
}

impl ParsedAnnotations {
    fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let values = &mut self.annotations;
        match key {
            "port" => self.port = Some(values::read(text, port_selector)?),
            "download" => values.download = Some(values::read(text, Rate::from_str)?),
            "upload" => values.upload = Some(values::read(text, Rate::from_str)?),
            "burst" => values.burst = Some(values::read(text, Size::from_str)?),
            "max-tunnels" => values.max_tunnels = values::read(text, |text| unless("unlimited", text, max_tunnels))?,
            "allowed-clients" => values.allowed_clients = Some(values::read(text, client_names)?),
            "allowed-users" => values.user_lists.get_or_insert_default().users = values::read(text, user_names)?,
            "allowed-groups" => values.user_lists.get_or_insert_default().groups = values::read(text, user_names)?,
            "idle-timeout" => {
                let idle = values::read(text, |text| unless("off", text, timeout))?;
                values.idle_timeout = Some(idle.map_or(IdleTimeout::Off, IdleTimeout::After));
            }
            "send-proxy-protocol" => {
                let version = |text: &str| unless("off", text, Version::from_str);
                values.send_proxy_header = values::read(text, version)?;
            }
            "ssh-only" => values.ssh_only = Some(values::read(text, boolean)?),
            "dials-in" => values.dials_in = Some(values::read(text, boolean)?),
            "wake" => values.wake = Some(Box::new(values::read(text, Workload::from_str)?)),
            "report-activity" => values.report_activity = Some(Box::new(values::read(text, Workload::from_str)?)),
            "stopped" => values.stopped = values::read(text, |text| unless("false", text, Stop::from_str))?,
            "host-keys" => values.host_keys = Some(Box::new(values::read(text, HostKeys::from_str)?)),
            "name" => values.name = Some(values::read(text, pod_name)?),
            // The label that puts a Service on the allowlist; as an annotation it has no effect.
            "expose" => {}
            _ => return Err(format!("unknown annotation; known here: {KNOWN}")),
        }
        Ok(())
    }

    /// Sets an invalid annotation to its strictest value, if it restricts. Returns the effect, for the end of the error.
    fn restrict(&mut self, key: &str) -> &'static str {
        let values = &mut self.annotations;
        match key {
            "max-tunnels" => values.max_tunnels = Some(0),
            "allowed-clients" => values.allowed_clients = Some(ClientNames::default()),
            // The invalid list names no user; the other list still counts.
            "allowed-users" | "allowed-groups" => drop(values.user_lists.get_or_insert_default()),
            "ssh-only" => values.ssh_only = Some(true),
            "stopped" => values.stopped = Some(Stop::Indefinite),
            // Without keys, the lines of an anchor would count.
            "host-keys" => values.host_keys = Some(Box::default()),
            _ => {}
        }
        match key {
            "max-tunnels" | "stopped" => ", so no new tunnel begins",
            "ssh-only" => ", so it counts as `true`",
            "host-keys" => ", so no key is published",
            // The errors of lists say it.
            _ => "",
        }
    }
}

/// Returns the limits that a Service gets for its annotations.
pub(crate) fn effective_limits(annotations: &Annotations, limits: &Limits) -> TargetLimits {
    let (ceiling, default) = (limits.ceiling, limits.tunnel);
    TargetLimits {
        // The ceiling bounds annotations only: a default of the operator may be above it.
        tunnel: TunnelLimits {
            download: annotations
                .download
                .map_or(default.download, |rate| rate.min(ceiling.download)),
            upload: annotations
                .upload
                .map_or(default.upload, |rate| rate.min(ceiling.upload)),
            burst: annotations
                .burst
                .map_or(default.burst, |burst| burst.min(largest_burst(limits))),
            lifetime: default.lifetime,
        },
        // The operator's number of tunnels is a maximum, not a default: an annotation can only lower it.
        caps: limits.target.lowered(annotations.max_tunnels.and_then(NonZeroU32::new)),
        is_closed: annotations.max_tunnels == Some(0),
        idle: annotations.idle_timeout.map(|idle| match idle {
            IdleTimeout::Off => None,
            IdleTimeout::After(idle) => Some(idle),
        }),
        // The ceiling forbids `false` only where the operator's own default is `true`.
        ssh_only: match annotations.ssh_only {
            Some(ssh_only) => ssh_only || (limits.ssh_only && ceiling.ssh_only),
            None => limits.ssh_only,
        },
        reports: limits.reports,
    }
}

/// Returns an error for each value that this proxy does not apply as written.
pub(crate) fn find_unmet(annotations: &Annotations, limits: &Limits, options: &Options) -> Vec<AnnotationError> {
    let (ceiling, burst, usable) = (limits.ceiling, largest_burst(limits), limits.annotations);
    let above = |found: Option<&dyn Display>, ceiling: &dyn Display| {
        let found = found.map(ToString::to_string).unwrap_or_default();
        format!("{found} is above the operator's ceiling: {ceiling} applies")
    };
    let lists = annotations.user_lists.as_deref();
    let list = match lists {
        Some(UserLists { users, groups }) if users.is_empty() && !groups.is_empty() => "allowed-groups",
        Some(_) | None => "allowed-users",
    };
    let without_users = "no effect: `access.mode` of this proxy is `open`, so every client reaches the Service";
    let without_clients = "no client of this proxy has a certificate, so every client is refused";
    let without_keys = "no effect: `allowlist.host_keys` of this proxy lacks `annotation`";
    let hides_keys = annotations.host_keys.is_some() && !usable.host_keys;
    let keeps_ssh_only = annotations.ssh_only == Some(false) && ceiling.ssh_only && limits.ssh_only;
    let checks = [
        (
            annotations.download > Some(ceiling.download),
            "download",
            above(annotations.download.as_ref().map(|rate| rate as _), &ceiling.download),
        ),
        (
            annotations.upload > Some(ceiling.upload),
            "upload",
            above(annotations.upload.as_ref().map(|rate| rate as _), &ceiling.upload),
        ),
        (
            annotations.burst > Some(burst),
            "burst",
            above(annotations.burst.as_ref().map(|burst| burst as _), &burst),
        ),
        (keeps_ssh_only, "ssh-only", above(Some(&false), &true)),
        (
            annotations.allowed_clients.is_some() && !usable.allowed_clients,
            "allowed-clients",
            without_clients.to_owned(),
        ),
        (lists.is_some() && !usable.allowed_users, list, without_users.to_owned()),
        (
            annotations.dials_in == Some(true) && !usable.dials_in,
            "dials-in",
            "no effect: this proxy takes no anchors, as it has no `anchors`".to_owned(),
        ),
        (hides_keys, "host-keys", without_keys.to_owned()),
    ];
    let checks = checks.into_iter().chain(unmet_workloads(annotations, limits, options));
    let unmet = checks.filter(|(is_unmet, ..)| *is_unmet);
    unmet
        .map(|(_, key, reason)| AnnotationError::new(key, reason))
        .collect()
}

/// Returns whether `wake` and `report-activity` are not applied as written, each with a reason.
fn unmet_workloads(annotations: &Annotations, limits: &Limits, options: &Options) -> [(bool, &'static str, String); 5] {
    let off = |option: &str| format!("no effect: `allowlist.kubernetes.{option}` of this proxy is false");
    let wakeable = known(&annotations.wake, options, |kind| kind.patch.is_some());
    let reportable = known(&annotations.report_activity, options, |kind| kind.activity.is_some());
    let unknown = |part: &str| {
        format!("no effect: `allowlist.kubernetes.workload_kinds` of this proxy has no such kind with `{part}`")
    };
    [
        (annotations.wake.is_some() && !options.wakes, "wake", off("wake")),
        (
            annotations.wake.is_some() && options.wakes && wakeable.is_none(),
            "wake",
            unknown("patch"),
        ),
        (
            annotations.wake.is_some() && dials_in(annotations, limits),
            "wake",
            "no effect: the Service dials in".to_owned(),
        ),
        (
            annotations.report_activity.is_some() && !options.reports_activity,
            "report-activity",
            off("report_activity"),
        ),
        (
            annotations.report_activity.is_some() && options.reports_activity && reportable.is_none(),
            "report-activity",
            unknown("activity"),
        ),
    ]
}

/// Returns the largest burst that an annotation may ask for: the bytes of one second at the lower of the ceiling's
/// rates, or the default burst if that is more. Without this bound a burst of gigabytes would evade the ceiling.
fn largest_burst(limits: &Limits) -> Size {
    let default = limits.tunnel.burst;
    let second = limits.ceiling.download.min(limits.ceiling.upload).get();
    Size::bytes(second).map_or(default, |second| second.max(default))
}

/// Returns whether anchors serve a Service, instead of its endpoints.
pub(crate) fn dials_in(annotations: &Annotations, limits: &Limits) -> bool {
    annotations.dials_in == Some(true) && limits.annotations.dials_in
}

/// Returns the host keys that clients of a Service are sent, none for an invalid annotation; `None` without one.
pub(crate) fn host_keys(annotations: &Annotations, limits: &Limits) -> Option<Arc<HostKeys>> {
    let keys = annotations
        .host_keys
        .as_deref()
        .filter(|_| limits.annotations.host_keys);
    keys.cloned().map(Arc::new)
}

/// Returns the workloads of a Service that this proxy starts or reports activity to. None is started if anchors serve
/// the Service.
pub(crate) fn workloads(annotations: &Annotations, options: &Options, dials_in: bool) -> Workloads {
    let wake = known(&annotations.wake, options, |kind| kind.patch.is_some());
    let report = known(&annotations.report_activity, options, |kind| kind.activity.is_some());
    Workloads {
        wake: wake.filter(|_| options.wakes && !dials_in).cloned(),
        report_activity: report.filter(|_| options.reports_activity).cloned(),
    }
}

/// Returns a workload, if its kind is known and can do that.
fn known<'a>(
    workload: &'a Option<Box<Workload>>,
    options: &Options,
    can: impl Fn(&WorkloadKind) -> bool,
) -> Option<&'a Workload> {
    let workload = workload.as_deref()?;
    options.kind(workload).is_some_and(can).then_some(workload)
}

fn port_selector(text: &str) -> Result<PortSelector, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let number = values::port(text).map(PortSelector::Number);
        return number.map_err(|error| format!("{error}, or the name of one"));
    }
    Ok(PortSelector::Name(text.into()))
}

fn pod_name(text: &str) -> Result<Box<str>, &'static str> {
    match values::is_label(text) {
        true => Ok(text.into()),
        false => Err("expected a DNS label such as `box`: the pod is then NAME.NAMESPACE.pod, too"),
    }
}

/// Parses the maximum number of tunnels, which may be 0.
fn max_tunnels(text: &str) -> Result<u32, &'static str> {
    text.parse()
        .map_err(|_| "expected a whole number; 0 closes the Service to new tunnels")
}

/// Parses names between commas; at least one.
fn client_names(text: &str) -> Result<ClientNames, &'static str> {
    let names: ClientNames = listed(text)?
        .filter_map(|name| values::client_name(name).ok())
        .collect();
    match names.is_empty() {
        true => Err("expected names of client certificates between commas: every client is refused"),
        false => Ok(names),
    }
}

/// Returns the non-empty strings between commas, or an error if they are too many or too long: a tenant may write 256 KiB
/// at each of any number of Services.
fn listed(text: &str) -> Result<impl Iterator<Item = &str>, &'static str> {
    let names = || text.split(',').map(str::trim).filter(|name| !name.is_empty());
    match text.len() <= MAX_LIST && names().count() <= MAX_NAMES {
        true => Ok(names()),
        false => Err("at most 256 names in 8 KiB are read, so it counts as empty"),
    }
}

/// Parses names of users or groups between commas; at least one.
fn user_names(text: &str) -> Result<Box<[Box<str>]>, String> {
    let names: Box<[_]> = listed(text)?.map(values::user_name).collect::<Result<_, _>>()?;
    match names.is_empty() {
        true => Err("expected names between commas: the list allows no user".to_owned()),
        false => Ok(names),
    }
}

/// The most errors of one Service that are kept and reported.
const MAX_FAULTS: usize = 20;
/// The most names in one list, and its most bytes: more users belong in a group.
const MAX_NAMES: usize = 256;
const MAX_LIST: usize = 8 << 10;

/// The names of all annotations, without the prefix.
const KNOWN: &str = "port, download, upload, burst, max-tunnels, idle-timeout, ssh-only, allowed-clients, allowed-users, \
                     allowed-groups, send-proxy-protocol, dials-in, wake, report-activity, stopped, host-keys, \
                     name";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    use crate::tunnel::limits::{Ceiling, UsableAnnotations};

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
        pairs
            .iter()
            .map(|(key, value)| (format!("switchboard.dev/{key}"), Some((*value).to_owned())))
            .collect()
    }

    fn parsed(pairs: &[(&str, &str)]) -> (Annotations, Option<PortSelector>, Vec<AnnotationError>) {
        let parsed = parse(&annotations(pairs), "switchboard.dev/");
        (parsed.annotations, parsed.port, parsed.faults)
    }

    #[test]
    fn the_errors_of_a_service_are_bounded_and_restrict_all_the_same() {
        let keys: Vec<_> = (0..15_000).map(|number| format!("a{number}")).collect();
        let unknown = keys.iter().map(|key| (&**key, "")).chain([("max-tunnels", "x")]);
        let (asked, _, faults) = parsed(&unknown.collect::<Vec<_>>());
        assert_eq!((faults.len(), asked.max_tunnels), (MAX_FAULTS, Some(0)));
    }

    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

    #[test]
    fn every_annotation_is_read() {
        let (asked, port, faults) = parsed(&[
            ("download", "10MiB/s"),
            ("upload", " 80Mbit/s"),
            ("burst", "64KiB"),
            ("max-tunnels", "3"),
            ("idle-timeout", "30m"),
            ("send-proxy-protocol", "v2"),
            ("ssh-only", "false"),
            ("allowed-clients", " alice,, spiffe://x/bob ,"),
            ("allowed-users", "alice@example.com, system:serviceaccount:n:ci"),
            ("allowed-groups", ",ops,"),
            ("dials-in", "true"),
            ("wake", "statefulset/devbox"),
            ("report-activity", "notebook/devbox"),
            ("stopped", "until 1970-01-01T01:00:00+01:00"),
            ("host-keys", &format!("{ED25519} root@devbox\n")),
            ("name", "box"),
            ("port", "2222"),
            ("expose", "true"),
        ]);
        assert_eq!((faults, port), (Vec::new(), Some(PortSelector::Number(2222))));
        let users = ["alice@example.com", "system:serviceaccount:n:ci"];
        let (users, groups) = (users.map(Into::into).into(), ["ops"].map(Into::into).into());
        assert_eq!(
            asked,
            Annotations {
                download: Rate::per_second(10 << 20),
                upload: Rate::per_second(10_000_000),
                burst: Size::bytes(64 << 10),
                max_tunnels: Some(3),
                idle_timeout: Some(IdleTimeout::After(Duration::from_secs(1800))),
                send_proxy_header: Some(Version::V2),
                ssh_only: Some(false),
                allowed_clients: Some(["alice", "spiffe://x/bob"].map(Into::into).into()),
                user_lists: Some(Box::new(UserLists { users, groups })),
                dials_in: Some(true),
                wake: Some(Box::new("statefulset/devbox".parse().unwrap())),
                report_activity: Some(Box::new("notebook/devbox".parse().unwrap())),
                stopped: Some(Stop::Until(UNIX_EPOCH)),
                host_keys: Some(Box::new(ED25519.parse().unwrap())),
                name: Some("box".into()),
            }
        );
        let json = serde_json::to_string(&asked).unwrap();
        assert_eq!(serde_json::from_str::<Annotations>(&json).unwrap(), asked);
    }

    #[test]
    fn an_annotation_may_switch_off_what_it_is_about() {
        let (asked, port, _) = parsed(&[
            ("port", "ssh"),
            ("idle-timeout", "off"),
            ("max-tunnels", "unlimited"),
            ("send-proxy-protocol", "off"),
            ("allowed-clients", ""),
        ]);
        assert_eq!(
            asked.allowed_clients,
            Some(Box::default()),
            "no client, and not every client"
        );
        assert_eq!(port, Some(PortSelector::Name("ssh".into())));
        assert_eq!(
            (asked.idle_timeout, asked.max_tunnels, asked.send_proxy_header),
            (Some(IdleTimeout::Off), None, None)
        );
    }

    #[test]
    fn a_faulty_annotation_is_reported_and_leaves_the_default() {
        for (key, value) in [
            ("download", "fast"),
            ("download", "0B/s"),
            ("upload", "10"),
            ("burst", "1MiB/s"),
            ("idle-timeout", "0s"),
            ("idle-timeout", "400d"),
            ("send-proxy-protocol", "yes"),
            ("port", "70000"),
            ("port", "0"),
            ("port", ""),
            ("wake", "devbox"),
            ("wake", "statefulset/a/scale"),
            ("report-activity", "statefulset"),
            ("host-keys", ""),
            ("host-keys", "ssh-dss AAAA"),
            ("host-keys", &format!("{ED25519}\nssh-ed25519 AAAA")),
            ("downlaod", "1MiB/s"),
            ("upload", "\u{1b}[31m\n"),
        ] {
            let (asked, port, faults) = parsed(&[(key, value), ("burst2", "")]);
            // Without keys, and not without the annotation: else an anchor's lines would count.
            let expected = Annotations {
                host_keys: (key == "host-keys").then(Box::default),
                ..Annotations::default()
            };
            assert_eq!((asked, port), (expected, None), "{key}: {value}");
            assert_eq!(faults.len(), 2);
            let fault = faults.iter().find(|fault| *fault.key == *key).unwrap();
            assert!(fault.reason.bytes().all(|byte| byte >= b' '), "{fault:?}");
        }
    }

    #[test]
    fn an_annotation_that_restricts_and_cannot_be_read_is_at_its_strictest() {
        let open = Limits {
            ssh_only: false,
            ..Limits::default()
        };
        for (key, text) in [
            ("max-tunnels", Some("ten")),
            ("max-tunnels", Some("-1")),
            ("max-tunnels", Some("")),
            ("max-tunnels", Some("4294967296")),
            ("max-tunnels", None),
            ("ssh-only", Some("off")),
            ("ssh-only", Some("True")),
            ("ssh-only", Some("")),
            ("ssh-only", None),
            ("allowed-clients", Some("")),
            ("allowed-clients", Some(" , ")),
            ("allowed-clients", None),
            ("stopped", Some("yes")),
            ("stopped", Some("until tomorrow")),
            ("stopped", None),
        ] {
            let texts = [(format!("switchboard.dev/{key}"), text.map(str::to_owned))].into();
            let ParsedAnnotations {
                annotations, faults, ..
            } = parse(&texts, "switchboard.dev/");
            let keys: Vec<_> = faults.iter().map(|fault| &*fault.key).collect();
            assert_eq!(keys, [key], "{text:?}");
            assert!(faults[0].reason.contains("expected "), "{key}: {}", faults[0].reason);
            let found = format!("(found `{}`)", text.unwrap_or_default().trim());
            assert!(faults[0].reason.contains(&found), "{key}: {}", faults[0].reason);
            let stopped = (key == "stopped").then_some(Stop::Indefinite);
            assert_eq!(annotations.stopped, stopped, "{key}: {text:?}");
            let granted = effective_limits(&annotations, &open);
            assert_eq!(granted.is_closed, key == "max-tunnels", "{key}: {text:?}");
            assert_eq!(granted.ssh_only, key == "ssh-only", "{key}: {text:?}");
            let clients = (key == "allowed-clients").then(Box::default);
            assert_eq!(annotations.allowed_clients, clients, "{key}: {text:?}");
        }
    }

    #[test]
    fn a_list_of_users_that_cannot_be_read_names_nobody() {
        let lists = |pairs: &[(&str, &str)]| {
            let (asked, _, faults) = parsed(pairs);
            let keys: Vec<_> = faults.into_iter().map(|fault| fault.key).collect();
            (asked.user_lists.map(|lists| *lists), keys)
        };
        let groups = UserLists {
            groups: ["ops"].map(Into::into).into(),
            ..UserLists::default()
        };
        for unreadable in ["", " , ", "alice,system:anonymous", "system:unauthenticated"] {
            for key in ["allowed-users", "allowed-groups"] {
                let nobody = (Some(UserLists::default()), vec![key.into()]);
                assert_eq!(lists(&[(key, unreadable)]), nobody, "{key}: {unreadable}");
            }
            let both = lists(&[("allowed-users", unreadable), ("allowed-groups", "ops")]);
            assert_eq!(both, (Some(groups.clone()), vec!["allowed-users".into()]));
        }
        assert_eq!(lists(&[("port", "22")]), (None, Vec::new()), "the API server is asked");
    }

    #[test]
    fn a_list_of_more_names_than_are_read_counts_as_empty() {
        let names = |count| vec!["a"; count].join(", ,");
        for key in ["allowed-users", "allowed-groups", "allowed-clients"] {
            assert_eq!(parsed(&[(key, &names(MAX_NAMES))]).2, []);
            for list in [names(MAX_NAMES + 1), format!("a,{}b", " ".repeat(MAX_LIST))] {
                let (asked, _, faults) = parsed(&[(key, &list)]);
                assert_eq!(*faults[0].key, *key);
                match key {
                    "allowed-clients" => assert_eq!(asked.allowed_clients, Some(Box::default())),
                    _ => assert_eq!(asked.user_lists, Some(Box::default())),
                }
            }
        }
    }

    #[test]
    fn lists_of_users_on_a_proxy_that_asks_for_none_are_reported() {
        for (pairs, key) in [
            (&[("allowed-users", "alice")][..], "allowed-users"),
            (&[("allowed-groups", "ops")], "allowed-groups"),
            (
                &[("allowed-users", "alice"), ("allowed-groups", "ops")],
                "allowed-users",
            ),
            (&[("allowed-users", "")], "allowed-users"),
        ] {
            let asked = parsed(pairs).0;
            let unmet = |allowed_users| {
                let limits = Limits {
                    annotations: UsableAnnotations {
                        allowed_users,
                        ..UsableAnnotations::default()
                    },
                    ..Limits::default()
                };
                let faults = find_unmet(&asked, &limits, &Options::default());
                faults.into_iter().map(|fault| fault.key).collect::<Vec<_>>()
            };
            assert_eq!(unmet(false), [key.into()]);
            assert!(unmet(true).is_empty());
        }
        assert_eq!(
            find_unmet(&Annotations::default(), &Limits::default(), &Options::default()),
            []
        );
    }

    #[test]
    fn no_tunnels_at_most_closes_a_service_and_is_no_fault() {
        let (asked, _, faults) = parsed(&[("max-tunnels", "0")]);
        assert_eq!(faults, []);
        let granted = effective_limits(&asked, &Limits::default());
        assert!(granted.is_closed);
        let json = serde_json::to_string(&asked).unwrap();
        assert_eq!(serde_json::from_str::<Annotations>(&json).unwrap(), asked);
        for open in ["1", "unlimited"] {
            assert!(!effective_limits(&parsed(&[("max-tunnels", open)]).0, &Limits::default()).is_closed);
        }
    }

    #[test]
    fn an_annotation_gets_no_more_than_the_ceiling() {
        let limits = Limits {
            ceiling: Ceiling {
                download: "10MiB/s".parse().unwrap(),
                upload: "5MiB/s".parse().unwrap(),
                ssh_only: true,
            },
            tunnel: TunnelLimits {
                download: "50MiB/s".parse().unwrap(),
                ..TunnelLimits::default()
            },
            ..Limits::default()
        };
        let (greedy, ..) = parsed(&[("download", "unlimited"), ("upload", "1MiB/s"), ("burst", "1GiB")]);
        let granted = effective_limits(&greedy, &limits).tunnel;
        assert_eq!(granted.download, limits.ceiling.download);
        assert_eq!(granted.upload, "1MiB/s".parse().unwrap());
        assert_eq!(granted.burst, "5MiB".parse().unwrap());
        let faults = find_unmet(&greedy, &limits, &Options::default());
        let faults: Vec<_> = faults.iter().map(|fault| (&*fault.key, &*fault.reason)).collect();
        let above = "is above the operator's ceiling";
        let expected = [
            ("download", format!("unlimited {above}: 10MiB/s applies")),
            ("burst", format!("1GiB {above}: 5MiB applies")),
        ];
        assert_eq!(faults, expected.each_ref().map(|(key, reason)| (*key, &**reason)));
        assert_eq!(effective_limits(&Annotations::default(), &limits).tunnel, limits.tunnel);
        assert_eq!(find_unmet(&greedy, &Limits::default(), &Options::default()), []);
    }

    #[test]
    fn ssh_only_is_the_choice_of_a_service_unless_the_ceiling_forbids_it() {
        let limits = |ssh_only, ceiling| Limits {
            ceiling: Ceiling {
                ssh_only: ceiling,
                ..Ceiling::default()
            },
            ssh_only,
            ..Limits::default()
        };
        // The operator's default and ceiling, what a Service gets without the annotation and for `false`, and the faults
        // of `false`.
        for (limits, without, for_false, faults) in [
            (limits(true, false), true, false, 0),
            (limits(true, true), true, true, 1),
            (limits(false, false), false, false, 0),
            (limits(false, true), false, false, 0),
        ] {
            let ssh_only = |value: &[(&str, &str)]| effective_limits(&parsed(value).0, &limits).ssh_only;
            assert_eq!(ssh_only(&[]), without, "{limits:?}");
            assert_eq!(ssh_only(&[("ssh-only", "false")]), for_false, "{limits:?}");
            assert!(ssh_only(&[("ssh-only", "true")]));
            let asked = parsed(&[("ssh-only", "false")]).0;
            assert_eq!(find_unmet(&asked, &limits, &Options::default()).len(), faults);
        }
    }
}

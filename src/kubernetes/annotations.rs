//! What a Service asks for in its annotations, and what an operator lets it have.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::allowlist::ClientNames;
use crate::limits::{Ceiling, Limits, Rate, Size, TargetLimits, TunnelLimits};
use crate::net::proxy_header::Version;

/// What the annotations of a Service ask for; `None` leaves the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// `download`: from the pod to the client, each tunnel.
    #[serde(with = "as_text", default)]
    pub(crate) download: Option<Rate>,
    /// `upload`.
    #[serde(with = "as_text", default)]
    pub(crate) upload: Option<Rate>,
    /// `burst`.
    #[serde(with = "as_text", default)]
    pub(crate) burst: Option<Size>,
    /// `max-tunnels`.
    pub(crate) most_tunnels: Option<NonZeroU32>,
    /// `idle-timeout`.
    pub(crate) idle: Option<Idle>,
    /// `allowed-clients`.
    #[serde(default)]
    pub(crate) allowed_clients: Option<ClientNames>,
    /// `send-proxy-protocol`: what the pod is told first of whose connection it is.
    #[serde(with = "as_text", default)]
    pub(crate) send_proxy_header: Option<Version>,
    /// `ssh-only`.
    #[serde(default)]
    pub(crate) ssh_only: Option<bool>,
}

/// The longest silence of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Idle {
    /// For ever.
    Off,
    /// That long.
    After(Duration),
}

/// Which port of a Service its annotation names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PortAsked {
    /// By the number that clients use.
    Number(u16),
    /// By its name.
    Name(Box<str>),
}

/// What is wrong with one annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    /// Its key without the prefix.
    pub(crate) key: Box<str>,
    /// Why, and what is expected.
    pub(crate) reason: Box<str>,
}

/// Reads the annotations that begin with the prefix. A faulty one is as if it were absent.
pub(crate) fn read(
    annotations: &BTreeMap<String, Option<String>>,
    prefix: &str,
    faults: &mut Vec<Fault>,
) -> (Asked, Option<PortAsked>) {
    let mut asked = Asked::default();
    let mut port = None;
    for (key, text) in annotations {
        let (Some(key), Some(text)) = (key.strip_prefix(prefix), text) else {
            continue;
        };
        let text = text.trim();
        let read = match key {
            "port" => parse(text, port_asked, &mut port),
            "download" => parse(text, Rate::from_str, &mut asked.download),
            "upload" => parse(text, Rate::from_str, &mut asked.upload),
            "burst" => parse(text, Size::from_str, &mut asked.burst),
            "max-tunnels" => match text {
                "unlimited" => Ok(()),
                _ => parse(text, most_tunnels, &mut asked.most_tunnels),
            },
            "allowed-clients" => {
                asked.allowed_clients = Some(names(text));
                Ok(())
            }
            "idle-timeout" => parse(text, idle, &mut asked.idle),
            "send-proxy-protocol" => match text {
                "off" => Ok(()),
                _ => parse(text, version, &mut asked.send_proxy_header),
            },
            "ssh-only" => parse(text, truth, &mut asked.ssh_only),
            // The label that opts in may stand among the annotations, too.
            "expose" => Ok(()),
            _ => Err(format!("unknown; known are {KNOWN}")),
        };
        if let Err(reason) = read {
            faults.push(Fault {
                key: short(key),
                reason: reason.into(),
            });
        }
    }
    (asked, port)
}

/// What a Service gets that asks for that.
pub(crate) fn grant(asked: &Asked, limits: &Limits) -> TargetLimits {
    let (ceiling, default) = (limits.ceiling, limits.tunnel);
    TargetLimits {
        // A default is the operator's own, and may be above the ceiling.
        tunnel: TunnelLimits {
            download: asked
                .download
                .map_or(default.download, |rate| rate.min(ceiling.download)),
            upload: asked.upload.map_or(default.upload, |rate| rate.min(ceiling.upload)),
            burst: asked.burst.map_or(default.burst, |burst| burst.min(most_burst(limits))),
            lifetime: default.lifetime,
        },
        shared: limits.target,
        // The operator's own number is no default but a bound: a target may ask for fewer.
        caps: limits.caps.target.lowered(asked.most_tunnels),
        idle: asked.idle.map(|idle| match idle {
            Idle::Off => None,
            Idle::After(idle) => Some(idle),
        }),
        any_protocol: match asked.ssh_only {
            Some(ssh_only) => !ssh_only && (limits.any_protocol || !ceiling.ssh_only),
            None => limits.any_protocol,
        },
    }
}

/// What is asked for above the ceiling.
pub(crate) fn exceeded(asked: &Asked, limits: &Limits) -> Vec<Fault> {
    let over = |key: &str, ceiling: &dyn Display| Fault {
        key: key.into(),
        reason: format!("above the operator's ceiling: {ceiling} applies").into(),
    };
    let Ceiling {
        download,
        upload,
        ssh_only,
    } = limits.ceiling;
    let burst = most_burst(limits);
    let is_over = |asked: Option<Rate>, ceiling| asked.is_some_and(|rate| rate > ceiling);
    [
        is_over(asked.download, download).then(|| over("download", &download)),
        is_over(asked.upload, upload).then(|| over("upload", &upload)),
        asked
            .burst
            .filter(|asked| *asked > burst)
            .map(|_| over("burst", &burst)),
        (asked.ssh_only == Some(false) && ssh_only && !limits.any_protocol).then(|| over("ssh-only", &"true")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What is asked for that nobody can do: such a Service keeps everybody out.
pub(crate) fn unmet(asked: &Asked, knows_clients: bool) -> Option<Fault> {
    (asked.allowed_clients.is_some() && !knows_clients).then(|| Fault {
        key: "allowed-clients".into(),
        reason: "nobody can show a certificate to this proxy, so nobody may come".into(),
    })
}

/// A burst has no rate: one of hours would be a way round the ceiling. It may be what the ceiling moves in a second.
fn most_burst(limits: &Limits) -> Size {
    let default = limits.tunnel.burst;
    let second = limits.ceiling.download.min(limits.ceiling.upload).get();
    Size::bytes(second).map_or(default, |second| second.max(default))
}

fn parse<T, E: Display>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
    into: &mut Option<T>,
) -> Result<(), String> {
    match parse(text) {
        Ok(value) => {
            *into = Some(value);
            Ok(())
        }
        Err(error) => Err(format!("{error} (found `{}`)", short(text))),
    }
}

fn port_asked(text: &str) -> Result<PortAsked, &'static str> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse() {
            Ok(number) if number > 0 => Ok(PortAsked::Number(number)),
            _ => Err("expected the number (1 to 65535) or the name of a port"),
        };
    }
    Ok(PortAsked::Name(text.into()))
}

/// Without a name in it nobody may come: who has written the annotation means to keep clients out.
fn names(text: &str) -> ClientNames {
    let names = text.split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).map(Into::into).collect()
}

fn most_tunnels(text: &str) -> Result<NonZeroU32, &'static str> {
    text.parse()
        .map_err(|_| "expected a whole number of at least 1, or `unlimited`")
}

fn version(text: &str) -> Result<Version, String> {
    text.parse().map_err(|error| format!("{error}, or `off`"))
}

fn truth(text: &str) -> Result<bool, &'static str> {
    text.parse().map_err(|_| "expected `true` or `false`")
}

fn idle(text: &str) -> Result<Idle, &'static str> {
    if text == "off" {
        return Ok(Idle::Off);
    }
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be more than 0s, or `off`"),
        Ok(idle) if idle <= LONGEST => Ok(Idle::After(idle)),
        Ok(_) => Err("must be at most 365d, or `off`"),
        Err(_) => Err("expected a duration such as `30m` or `1h30m`, or `off`"),
    }
}

/// What a tenant wrote, as a log line may show it: short, and unable to steer a terminal.
pub(super) fn short(text: &str) -> Box<str> {
    text.chars().take(LONGEST_SHOWN).flat_map(char::escape_debug).collect()
}

/// Serde for an optional value that has a text form.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        Option::<String>::deserialize(deserializer)?
            .map(|text| text.parse().map_err(Error::custom))
            .transpose()
    }
}

const KNOWN: &str =
    "port, download, upload, burst, max-tunnels, idle-timeout, ssh-only, allowed-clients and send-proxy-protocol";
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
const LONGEST_SHOWN: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
        pairs
            .iter()
            .map(|(key, value)| (format!("switchboard.dev/{key}"), Some((*value).to_owned())))
            .collect()
    }

    fn read_all(pairs: &[(&str, &str)]) -> (Asked, Option<PortAsked>, Vec<Fault>) {
        let mut faults = Vec::new();
        let (asked, port) = read(&annotations(pairs), "switchboard.dev/", &mut faults);
        (asked, port, faults)
    }

    #[test]
    fn what_is_well_written_is_read() {
        let (asked, port, faults) = read_all(&[
            ("download", "10MiB/s"),
            ("upload", " 80Mbit/s"),
            ("burst", "64KiB"),
            ("max-tunnels", "3"),
            ("idle-timeout", "30m"),
            ("send-proxy-protocol", "v2"),
            ("ssh-only", "false"),
            ("allowed-clients", " alice,, spiffe://x/bob ,"),
            ("port", "2222"),
            ("expose", "true"),
        ]);
        assert_eq!(faults, []);
        assert_eq!(port, Some(PortAsked::Number(2222)));
        assert_eq!(
            asked,
            Asked {
                download: Rate::per_second(10 << 20),
                upload: Rate::per_second(10_000_000),
                burst: Size::bytes(64 << 10),
                most_tunnels: NonZeroU32::new(3),
                idle: Some(Idle::After(Duration::from_secs(1800))),
                send_proxy_header: Some(Version::V2),
                ssh_only: Some(false),
                allowed_clients: Some(["alice", "spiffe://x/bob"].map(Into::into).into()),
            }
        );
        let json = serde_json::to_string(&asked).unwrap();
        assert_eq!(serde_json::from_str::<Asked>(&json).unwrap(), asked);
        let (asked, port, _) = read_all(&[
            ("port", "ssh"),
            ("idle-timeout", "off"),
            ("max-tunnels", "unlimited"),
            ("send-proxy-protocol", "off"),
            ("allowed-clients", ""),
        ]);
        assert_eq!(asked.allowed_clients, Some(Box::default()), "nobody, and not everybody");
        assert_eq!(port, Some(PortAsked::Name("ssh".into())));
        assert_eq!(
            (asked.idle, asked.most_tunnels, asked.send_proxy_header),
            (Some(Idle::Off), None, None)
        );
    }

    #[test]
    fn a_faulty_annotation_is_named_and_leaves_the_default() {
        for (key, value) in [
            ("download", "fast"),
            ("download", "0B/s"),
            ("upload", "10"),
            ("burst", "1MiB/s"),
            ("max-tunnels", "0"),
            ("max-tunnels", "-1"),
            ("idle-timeout", "0s"),
            ("idle-timeout", "400d"),
            ("send-proxy-protocol", "yes"),
            ("ssh-only", "off"),
            ("port", "70000"),
            ("port", "0"),
            ("port", ""),
            ("downlaod", "1MiB/s"),
            ("upload", "\u{1b}[31m\n"),
        ] {
            let (asked, port, faults) = read_all(&[(key, value), ("burst2", "")]);
            assert_eq!((asked, port), (Asked::default(), None), "{key}: {value}");
            assert_eq!(faults.len(), 2);
            let fault = faults.iter().find(|fault| *fault.key == *key).unwrap();
            assert!(fault.reason.bytes().all(|byte| byte >= b' '), "{fault:?}");
        }
    }

    #[test]
    fn nobody_gets_more_than_the_ceiling_by_asking() {
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
        let (greedy, ..) = read_all(&[("download", "unlimited"), ("upload", "1MiB/s"), ("burst", "1GiB")]);
        let granted = grant(&greedy, &limits).tunnel;
        assert_eq!(granted.download, limits.ceiling.download);
        assert_eq!(granted.upload, "1MiB/s".parse().unwrap());
        assert_eq!(granted.burst, "5MiB".parse().unwrap());
        let faults = exceeded(&greedy, &limits);
        let keys: Vec<_> = faults.iter().map(|fault| &*fault.key).collect();
        assert_eq!(keys, ["download", "burst"]);
        assert_eq!(grant(&Asked::default(), &limits).tunnel, limits.tunnel);
        assert_eq!(exceeded(&greedy, &Limits::default()), []);
    }

    #[test]
    fn whether_a_service_may_be_no_ssh_server_is_its_own_affair_unless_the_operator_says_otherwise() {
        let limits = |any_protocol, ssh_only| Limits {
            ceiling: Ceiling {
                ssh_only,
                ..Ceiling::default()
            },
            any_protocol,
            ..Limits::default()
        };
        for (limits, unsaid, no, told) in [
            (limits(false, false), false, true, 0),
            (limits(false, true), false, false, 1),
            (limits(true, true), true, true, 0),
        ] {
            let any = |value: &[(&str, &str)]| grant(&read_all(value).0, &limits).any_protocol;
            assert_eq!((any(&[]), any(&[("ssh-only", "false")])), (unsaid, no), "{limits:?}");
            assert!(!any(&[("ssh-only", "true")]));
            assert_eq!(exceeded(&read_all(&[("ssh-only", "false")]).0, &limits).len(), told);
        }
    }
}

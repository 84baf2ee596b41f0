//! Reads the older INI format of frp into the tree that today's format is read into, with today's keys.
//!
//! A section is a proxy. frp's reader, gopkg.in/ini.v1, also joins lines that end with a backslash and takes quotes of three
//! characters: both are faults here, since frp's documentation has neither.

use crate::base::values::shown;
use crate::base::yaml::finding::{Findings, Position};
use crate::base::yaml::tree::{Entry, Node, Scalar, Value};

/// The tree of a text; `None` after a fault.
pub(super) fn read(text: &str, findings: &Findings) -> Option<Node> {
    let mut top = Vec::new();
    let mut proxies: Vec<Node> = Vec::new();
    let mut section = Section::None;
    let mut names = std::collections::HashSet::new();
    for (line, number) in text.trim_start_matches('\u{feff}').lines().zip(1..) {
        let indent = line.chars().take_while(|character| character.is_whitespace()).count();
        let position = at(number, indent);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            if !names.insert(name) {
                findings.fault(position, "", format!("a second section {}", shown(name)));
            }
            section = Section::of(name);
            if let Section::Proxy = section {
                proxies.push(proxy(name, position));
            }
            continue;
        }
        let Some(entry) = entry(line, position, findings) else {
            continue;
        };
        match (&section, proxies.last_mut()) {
            (
                Section::Proxy,
                Some(Node {
                    value: Value::Map(entries),
                    ..
                }),
            ) => entries.push(entry),
            (Section::Common, _) => top.push(entry),
            _ => findings.fault(position, "", "a key outside of a section"),
        }
    }
    if findings.faults() > 0 {
        return None;
    }
    let position = proxies.first().map_or(Position::START, |first| first.position);
    top.push(Entry {
        key: "proxies".to_owned(),
        position,
        value: Node {
            position,
            value: Value::List(proxies),
        },
    });
    Some(Node {
        position: Position::START,
        value: Value::Map(top),
    })
}

enum Section {
    None,
    Common,
    Proxy,
}

impl Section {
    fn of(name: &str) -> Self {
        match name {
            "common" => Self::Common,
            _ => Self::Proxy,
        }
    }
}

fn proxy(name: &str, position: Position) -> Node {
    let value = Value::Map(vec![Entry {
        key: "name".to_owned(),
        position,
        value: text(name, position),
    }]);
    Node { position, value }
}

/// A `key = value`, or a key alone, which is true.
fn entry(line: &str, position: Position, findings: &Findings) -> Option<Entry> {
    let (key, value) = match line.split_once(['=', ':']) {
        Some((key, value)) => (key.trim(), value.trim()),
        None => (line, "true"),
    };
    let is_long = ["\"\"\"", "'''", "```"].iter().any(|quote| value.starts_with(quote));
    if is_long || value.ends_with('\\') || key.is_empty() {
        findings.fault(position, "", "a value of several lines, or a line without a key");
        return None;
    }
    let unquoted = ['"', '\'', '`'].iter().find_map(|quote| {
        let inner = value.strip_prefix(*quote)?.strip_suffix(*quote)?;
        Some(inner)
    });
    let value = unquoted.unwrap_or(value);
    let key = RENAMED.iter().find(|(old, _)| *old == key).map_or(key, |(_, new)| new);
    let value = match LISTS.contains(&key) {
        false => text(value, position),
        true => Node {
            position,
            value: Value::List(value.split(',').map(|item| text(item.trim(), position)).collect()),
        },
    };
    Some(Entry {
        key: key.to_owned(),
        position,
        value,
    })
}

fn text(text: &str, position: Position) -> Node {
    let value = Value::Text(Scalar {
        text: text.to_owned(),
        is_quoted: true,
    });
    Node { position, value }
}

fn at(line: u64, indent: usize) -> Position {
    Position {
        line,
        column: u64::try_from(indent).unwrap_or(u64::MAX).saturating_add(1),
    }
}

/// The keys of a proxy that have another name today.
const RENAMED: [(&str, &str); 15] = [
    ("local_ip", "localIP"),
    ("local_port", "localPort"),
    ("custom_domains", "customDomains"),
    ("http_user", "httpUser"),
    ("http_pwd", "httpPassword"),
    ("route_by_http_user", "routeByHTTPUser"),
    ("use_encryption", "transport.useEncryption"),
    ("use_compression", "transport.useCompression"),
    ("bandwidth_limit", "transport.bandwidthLimit"),
    ("bandwidth_limit_mode", "transport.bandwidthLimitMode"),
    ("proxy_protocol_version", "transport.proxyProtocolVersion"),
    ("group", "loadBalancer.group"),
    ("group_key", "loadBalancer.groupKey"),
    ("health_check_type", "healthCheck.type"),
    ("remote_port", "remotePort"),
];
/// The keys whose value is a list between commas.
const LISTS: [&str; 3] = ["customDomains", "start", "includes"];

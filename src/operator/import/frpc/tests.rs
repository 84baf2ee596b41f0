//! Files of frpc in each format, and what they become.

use super::*;
use crate::operator::import::{Extent, Frp};

const TOML: &str = r#"serverAddr = "frps.internal"
auth.token = "secret"

[[proxies]]
name = "box-1"
type = "tcpmux"
multiplexer = "httpconnect"
customDomains = ["box-1.research.ssh.example.com"]
localPort = 2222
"#;
const INI: &str = "[common]
server_addr = frps.internal
token = secret

[box-1]
type = tcpmux
multiplexer = httpconnect
custom_domains = box-1.research.ssh.example.com
local_port = 2222
";
const YAML: &str = "serverAddr: frps.internal
auth: {token: secret}
proxies:
- name: box-1
  type: tcpmux
  multiplexer: httpconnect
  customDomains: [box-1.research.ssh.example.com]
  localPort: 2222
";
const LIST: &str = "allowlist:
  static:
    - {name: \"box-1.research.ssh.example.com:22\", addresses: [\"10.1.2.3:2222\"]}
";
const EMPTY: &str = "allowlist:\n  static: []\n";

fn imported_with(files: &[(&str, &str)], format: Format, frp: &Frp) -> ImportResult {
    let input = |(name, text): &(&str, &str)| Input {
        name: (*name).to_owned(),
        bytes: text.as_bytes().to_vec(),
    };
    let inputs: Vec<_> = files.iter().map(input).collect();
    let options = Options {
        format,
        cluster_domain: "cluster.local".into(),
        alias_port: 22,
    };
    frpc(&inputs, &options, frp)
}

fn imported(name: &str, text: &str, format: Format) -> ImportResult {
    let frp = Frp {
        public_suffixes: vec!["ssh.example.com".into()],
        host: Some("10.1.2.3".parse().unwrap()),
        ..Frp::default()
    };
    imported_with(&[(name, text)], format, &frp)
}

#[test]
fn files_without_anything_to_translate_are_named_with_the_reason() {
    let filter = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: a}\n";
    for (name, text, reason) in [
        (
            "frpc.toml",
            "",
            "nothing to translate: no proxy of the type tcpmux is here",
        ),
        ("frpc.yaml", "serverAddr: a\n", "nothing to translate"),
        ("frpc.toml", "[[proxies]]\nname = \"a\"\ntype = \"tcp\"\n", "tcp"),
        (
            "a.yaml",
            filter,
            "a Kubernetes object of the kind EnvoyFilter: for EnvoyFilters use `switchboard import envoyfilter`",
        ),
        ("<stdin>", filter, "a Kubernetes object of the kind EnvoyFilter"),
        (
            "cm.yaml",
            "kind: ConfigMap\ndata:\n  frpc.toml: |\n    [[proxies]]\n",
            "of a ConfigMap give the file in its `data`",
        ),
        (
            "frpc.toml",
            "[[proxies]]\nname\u{a0}= \"a\"\n",
            "frpc.toml:2:1: error: a no-break space",
        ),
    ] {
        let imported = imported(name, text, Format::Kubectl);
        let diagnostics = imported.diagnostics.join("\n");
        assert!(
            imported.extent != Extent::Whole && diagnostics.contains(reason),
            "{text:?}: {diagnostics}"
        );
    }
}

#[test]
fn every_format_has_the_same_result() {
    let json = r#"{"serverAddr": "frps.internal", "proxies": [{"name": "box-1", "type": "tcpmux", "multiplexer":
        "httpconnect", "customDomains": ["box-1.research.ssh.example.com"], "localPort": 2222}]}"#;
    for (name, text) in [
        ("frpc.toml", TOML),
        ("<stdin>", TOML),
        ("frpc.yaml", YAML),
        ("frpc.json", json),
    ] {
        let list = imported(name, text, Format::Static);
        assert_eq!(
            (list.text.as_str(), list.extent),
            (LIST, Extent::Whole),
            "{name} {list:?}"
        );
        assert!(
            list.diagnostics.concat().contains("is not needed any more: server"),
            "{list:?}"
        );
        assert!(!list.diagnostics.concat().contains("secret"));
        let anchor =
            "switchboard anchor --dial https://PROXY --serve box-1.research.ssh.example.com:22 --to 127.0.0.1:2222";
        assert!(list.diagnostics.concat().contains(anchor), "{list:?}");
        let lines = imported(name, text, Format::Kubectl);
        assert_eq!(
            lines.text,
            "# The names need this setting of the proxy:\n#   allowlist.kubernetes.public_suffixes: [\"ssh.example.com\"]\n\
             kubectl -n research label service box-1 switchboard.dev/expose=true\n",
            "{name} {lines:?}"
        );
    }
}

#[test]
fn a_proxy_before_a_service_becomes_its_label() {
    let text = TOML.replace("localPort", "localIP = \"box-1.research.svc.cluster.local\"\nlocalPort");
    let text = text.replace("research.ssh.example.com", "research");
    let lines = imported_with(&[("a.toml", &text)], Format::Kubectl, &Frp::default());
    assert_eq!(
        lines.text,
        "kubectl -n research annotate service box-1 switchboard.dev/port=2222\n\
         kubectl -n research label service box-1 switchboard.dev/expose=true\n"
    );
    let list = imported("a.toml", &text, Format::Static);
    assert_eq!(list.text, EMPTY);
    assert!(
        list.diagnostics
            .concat()
            .contains("is a name, and names are not resolved"),
        "{list:?}"
    );
    assert!(!list.diagnostics.concat().contains("anchor"), "{list:?}");
}

#[test]
fn what_the_file_does_not_say_is_asked_for() {
    let subdomain = TOML.replace(
        "customDomains = [\"box-1.research.ssh.example.com\"]",
        "subdomain = \"box-1\"",
    );
    let frp = |subdomain_host: Option<&str>| Frp {
        subdomain_host: subdomain_host.map(Into::into),
        host: Some("10.1.2.3".parse().unwrap()),
        ports: vec![22, 2222],
        ..Frp::default()
    };
    let list = imported_with(&[("a.toml", &subdomain)], Format::Static, &frp(Some("ssh.example.com")));
    for port in [22, 2222] {
        let name = format!("{{name: \"box-1.ssh.example.com:{port}\", addresses: [\"10.1.2.3:2222\"]}}");
        assert!(list.text.contains(&name), "{list:?}");
    }
    for (text, format, frp, reason) in [
        (subdomain.as_str(), Format::Static, frp(None), "--subdomain-host"),
        (TOML, Format::Static, Frp::default(), "--frpc-host"),
        (TOML, Format::Kubectl, Frp::default(), "--public-suffix"),
    ] {
        let result = imported_with(&[("a.toml", text)], format, &frp);
        assert!(matches!(result.text.as_str(), EMPTY | ""), "{result:?}");
        assert!(result.diagnostics.concat().contains(reason), "{result:?}");
    }
}

/// Returns the static targets of a proxy with that option.
fn with(option: &str) -> ImportResult {
    imported("a.toml", &format!("{TOML}{option}\n"), Format::Static)
}

#[test]
fn an_option_that_may_restrict_keeps_the_name_off_the_list() {
    for (option, reason) in [
        (
            "httpUser = \"alice\"",
            "10:12: error: the proxy box-1: httpUser: it asks for a password",
        ),
        ("httpPassword = \"secret-2\"", "httpPassword: it asks for a password"),
        (
            "routeByHTTPUser = \"alice\"",
            "routeByHTTPUser: the user decides which target",
        ),
        (
            "plugin.type = \"socks5\"",
            "plugin.type: not translated, and it may restrict",
        ),
        ("localIP = \"$(id)\"", "localIP $(id) is a name"),
        ("transport.bandwidthLimit = \"1GB\"", "expected a number with KB or MB"),
        ("transport.proxyProtocolVersion = \"v3\"", "expected v1 or v2"),
        ("never_heard_of = 1", "never_heard_of: not translated"),
    ] {
        let list = with(option);
        assert_eq!((list.text.as_str(), list.extent), (EMPTY, Extent::Part), "{option}");
        assert!(list.diagnostics.concat().contains(reason), "{list:?}");
        assert!(!list.diagnostics.concat().contains("secret-2"));
    }
}

#[test]
fn an_option_that_restricts_nothing_is_translated_or_named() {
    for (option, in_list, extent, reason) in [
        (
            "transport.bandwidthLimit = \"1.5MB\"",
            ", limits: {download: 1536KiB/s, upload: 1536KiB/s}}",
            Extent::Part,
            "becomes the limit of each tunnel",
        ),
        (
            "transport.proxyProtocolVersion = \"v2\"",
            ", send_proxy_protocol: v2}",
            Extent::Whole,
            "",
        ),
        (
            "healthCheck.type = \"tcp\"",
            ":2222\"]}",
            Extent::Part,
            "healthCheck.type is left out",
        ),
        (
            "transport.useEncryption = true",
            ":2222\"]}",
            Extent::Whole,
            "transport.useEncryption is not needed",
        ),
        ("httpUser = \"\"", ":2222\"]}", Extent::Whole, ""),
        ("enabled = true", ":2222\"]}", Extent::Whole, ""),
    ] {
        let list = with(option);
        assert!(
            list.text.contains(in_list) && list.extent == extent,
            "{option} {list:?}"
        );
        assert!(list.diagnostics.concat().contains(reason), "{list:?}");
    }
    let off = with("enabled = false");
    assert_eq!((off.text.as_str(), off.extent), (EMPTY, Extent::Part));
    assert!(off.diagnostics.concat().contains("nothing to translate"), "{off:?}");
}

#[test]
fn a_proxy_that_no_name_leads_to_is_named() {
    for (from, to, reason) in [
        ("tcpmux", "tcp", "of the type tcp, whose clients send no CONNECT"),
        ("httpconnect", "other", "only the multiplexer httpconnect"),
        ("box-1.research", "*", "a pattern"),
        ("box-1.research", "a b", "forbidden character"),
        ("box-1.research.ssh.example.com", "", "has no host"),
        ("localPort = 2222", "localPort = 70000", "expected a port"),
        ("localPort = 2222", "", "no localPort"),
    ] {
        let list = imported("a.toml", &TOML.replacen(from, to, 1), Format::Static);
        assert_eq!((list.text.as_str(), list.extent), (EMPTY, Extent::Part), "{to}");
        assert!(list.diagnostics.concat().contains(reason), "{list:?}");
    }
}

#[test]
fn what_a_file_holds_besides_proxies_is_named() {
    for (line, reason) in [
        (
            "includes = [\"./more/*.toml\"]",
            "1:12: warning: includes: further files",
        ),
        ("store.path = \"./store.json\"", "store: further proxies"),
        ("visitors = [{name = \"a\", type = \"stcp\"}]", "visitors"),
    ] {
        let list = imported("a.toml", &format!("{line}\n{TOML}"), Format::Static);
        assert_eq!((list.text.as_str(), list.extent), (LIST, Extent::Part), "{line}");
        assert!(list.diagnostics.concat().contains(reason), "{list:?}");
    }
    let list = imported("a.toml", &format!("start = [\"other\"]\n{TOML}"), Format::Static);
    assert_eq!((list.text.as_str(), list.extent), (EMPTY, Extent::Part));
    let diagnostics = list.diagnostics.concat();
    assert!(
        diagnostics.contains("is not in `start`") && diagnostics.contains("nothing to translate"),
        "{list:?}"
    );
    // Two frpc of one group share a name; without a group one of them counts.
    let other = TOML.replace("2222", "2223");
    let group = "loadBalancer.group = \"g\"\n";
    let frp = || Frp {
        host: Some("10.1.2.3".parse().unwrap()),
        ..Frp::default()
    };
    let files = [TOML.to_owned() + group, other.clone() + group];
    let list = imported_with(&[("a.toml", &files[0]), ("b.toml", &files[1])], Format::Static, &frp());
    assert!(list.text.contains("[\"10.1.2.3:2222\", \"10.1.2.3:2223\"]"), "{list:?}");
    let list = imported_with(&[("a.toml", TOML), ("b.toml", &other)], Format::Static, &frp());
    assert_eq!(list.text, LIST);
    assert!(
        list.diagnostics.concat().contains("is already printed from"),
        "{list:?}"
    );
}

#[test]
fn what_is_not_of_its_format_is_refused_with_its_place() {
    let deep = format!("a = {}", "[".repeat(100_000));
    for (name, text, reason) in [
        ("a.toml", "a = \n", "a.toml:1:"),
        ("a.toml", "a = 1\na = 2\n", "a.toml:2:1: error: not TOML: "),
        ("a.toml", deep.as_str(), "not TOML"),
        ("a.ini", INI, "a.ini:1:1: error: the INI format"),
        ("<stdin>", INI, "<stdin>:1:1: error: the INI format"),
        ("a.yaml", "a: [\n", "not YAML"),
    ] {
        let list = imported(name, text, Format::Static);
        assert_eq!((list.text.as_str(), list.extent), (EMPTY, Extent::Unreadable), "{text}");
        assert!(list.diagnostics[0].contains(reason), "{list:?}");
    }
    for text in [
        TOML.replace("2222", "{{ .Envs.PORT }}"),
        format!("{INI}local_ip = {{{{ .Envs.IP }}}}\n"),
    ] {
        let list = imported("a", &text, Format::Static);
        assert_eq!((list.text.as_str(), list.extent), (EMPTY, Extent::Part), "{text}");
        assert!(list.diagnostics.concat().contains("a Go template"), "{list:?}");
    }
}

//! EnvoyFilters as they are written by hand for SSH containers, and what they become.

use super::*;
use crate::operator::import::Extent;

mod hostile;

/// Returns the patch of a gateway's port for one container, with these lines in place of some of its own.
fn filter(domain: &str, cluster: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata:
  name: box-1-research
  namespace: istio-system
spec:
  workloadSelector:
    labels:
      istio: gateway
  configPatches:
    - applyTo: NETWORK_FILTER
      match:
        context: GATEWAY
        listener:
          portNumber: 80
          filterChain:
            filter:
              name: envoy.filters.network.http_connection_manager
      patch:
        operation: MERGE
        value:
          typed_config:
            '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
            route_config:
              name: local_route
              virtual_hosts:
                - name: box-1
                  domains: [{domain}]
                  routes:
                    - match:
                        connect_matcher: {{}}
                      route:
                        cluster: >-
                          {cluster}
                        upgrade_configs:
                          - upgrade_type: CONNECT
                            enabled: true
                            connect_config: {{}}
"
    )
}

const NAME: &str = "box-1.research.svc.cluster.local:80";
const CLUSTER: &str = "outbound|80||box-1.research.svc.cluster.local";
const LINES: &str = "kubectl -n research annotate service box-1 switchboard.dev/port=80
kubectl -n research label service box-1 switchboard.dev/expose=true
";
const SERVICE: &str = "
---
kind: Service
metadata: {name: box-1, namespace: research}
spec:
  clusterIP: 10.96.0.9
  clusterIPs: [10.96.0.9]
  ports: [{port: 80, protocol: TCP}, {port: 53, protocol: UDP}]
";

fn options(format: Format) -> Options {
    Options {
        format,
        cluster_domain: "cluster.local".into(),
        alias_port: 22,
    }
}

fn imported(texts: &[&str], format: Format) -> ImportResult {
    let input = |(text, index): (&&str, i32)| Input {
        name: format!("{index}.yaml"),
        bytes: text.as_bytes().to_vec(),
    };
    let inputs: Vec<_> = texts.iter().zip(1..).map(input).collect();
    envoyfilter(&inputs, &options(format))
}

/// Returns the stdout, and the stderr in one string.
fn kubectl(text: &str) -> (String, String) {
    let imported = imported(&[text], Format::Kubectl);
    (imported.text, imported.diagnostics.join("\n"))
}

#[test]
fn a_route_of_connect_becomes_an_annotation_and_a_label() {
    assert_eq!(kubectl(&filter(NAME, CLUSTER)), (LINES.to_owned(), String::new()));
    // Names in any form that a Service answers to, and its port or 22.
    for name in ["box-1.research:80", "BOX-1.research.svc.:22"] {
        assert_eq!(kubectl(&filter(name, CLUSTER)).0, LINES, "{name}");
    }
    let (text, diagnostics) = kubectl(&filter("box-1.research.ssh.example.com:22", CLUSTER));
    let setting = "# The names need this setting of the proxy:\n#   allowlist.kubernetes.public_suffixes: [\"ssh.example.com\"]\n";
    assert_eq!((text, diagnostics.as_str()), (format!("{setting}{LINES}"), ""));
}

#[test]
fn lists_and_documents_and_other_spellings_are_read() {
    let one = filter(NAME, CLUSTER);
    let two = filter(
        "box-2.research.svc.cluster.local:22",
        "outbound|2222||box-2.research.svc.cluster.local",
    );
    let both = "kubectl -n research annotate service box-1 switchboard.dev/port=80
kubectl -n research label service box-1 switchboard.dev/expose=true
kubectl -n research annotate service box-2 switchboard.dev/port=2222
kubectl -n research label service box-2 switchboard.dev/expose=true
";
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let listed = format!(
        "apiVersion: v1\nkind: List\nitems:\n  -\n{}  -\n{}",
        indented(&one),
        indented(&two)
    );
    let camel = format!("{one}---\n{two}---\n")
        .replace("virtual_hosts", "virtualHosts")
        .replace("connect_matcher", "connectMatcher")
        .replace("upgrade_configs", "upgradeConfigs");
    for text in [listed, format!("{one}---\n{two}"), camel] {
        assert_eq!(kubectl(&text), (both.to_owned(), String::new()), "{text}");
    }
    let imported = imported(&[&one, &two], Format::Kubectl);
    assert_eq!((imported.text.as_str(), imported.extent), (both, Extent::Whole));
}

#[test]
fn a_static_target_has_the_address_of_its_service() {
    let text = filter(NAME, CLUSTER) + SERVICE;
    let list = format!("allowlist:\n  static:\n    - {{name: \"{NAME}\", addresses: [\"10.96.0.9:80\"]}}\n");
    let result = imported(&[&text], Format::Static);
    assert_eq!((result.text, result.diagnostics), (list, Vec::<String>::new()));
    for (services, reason) in [
        (
            String::new(),
            "the address of the Service research/box-1 is in none of the files",
        ),
        (SERVICE.replace("10.96.0.9", "None"), "has no cluster address"),
        (SERVICE.replace("port: 80", "port: 81"), "has no TCP port 80"),
    ] {
        let result = imported(&[&(filter(NAME, CLUSTER) + &services)], Format::Static);
        assert_eq!(result.text, "allowlist:\n  static: []\n");
        assert_eq!(result.extent, Extent::Part);
        assert!(result.diagnostics.concat().contains(reason), "{:?}", result.diagnostics);
    }
}

#[test]
fn clusters_of_the_files_lead_to_addresses_or_services() {
    let cluster = |endpoint: &str, more: &str| {
        format!(
            "---\nkind: EnvoyFilter\nspec:\n  configPatches:\n  - applyTo: CLUSTER\n    patch:\n      operation: ADD\n      \
             value:\n        name: box\n        type: STRICT_DNS\n        connect_timeout: 3s\n{more}        \
             load_assignment:\n          endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: \
             {{address: {endpoint}, port_value: 2222}}}}}}}}]}}]\n"
        )
    };
    let filter = filter(NAME.replace(":80", ":22").as_str(), "box");
    // In another file, and before the route.
    let (address, service) = (cluster("10.1.2.3", ""), cluster("box-1.research.svc.cluster.local", ""));
    let found = imported(&[&address, &filter], Format::Static);
    assert!(found.text.contains("addresses: [\"10.1.2.3:2222\"]"), "{found:?}");
    let found = imported(&[&service, &filter], Format::Kubectl);
    assert_eq!(found.text, LINES.replace("port=80", "port=2222"), "{found:?}");
    for (text, reason) in [
        (cluster("example.com", ""), "routes to example.com"),
        (
            cluster("10.1.2.3", "        transport_socket: {}\n"),
            "has the option transport_socket",
        ),
        (address.replace("STRICT_DNS", "EDS"), "has its endpoints from elsewhere"),
        (
            address.replace("name: box", "name: other"),
            "its cluster box is in none of the files",
        ),
    ] {
        let found = imported(&[&text, &filter], Format::Static);
        assert_eq!(found.text, "allowlist:\n  static: []\n", "{text}");
        assert!(
            found.diagnostics.concat().contains(reason),
            "{reason}: {:?}",
            found.diagnostics
        );
    }
}

/// A text of the filter, what stands in its place, and the remark about that.
const WITHOUT_COUNTERPART: &[(&str, &str, &str)] = &[
    (
        "connect_matcher: {}",
        "prefix: /",
        "31:25: error: the virtual host box-1: its route is not for CONNECT alone",
    ),
    (
        "connect_matcher: {}",
        "connect_matcher: {}\n                        headers: []",
        "32:25: error: the virtual host box-1: its route has the option headers: not printed",
    ),
    (
        "                  routes:",
        "                  typed_per_filter_config: {}\n                  routes:",
        "29:19: error: the virtual host box-1 has the option typed_per_filter_config",
    ),
    (
        "upgrade_type: CONNECT",
        "upgrade_type: websocket",
        "has no upgrade of the type CONNECT",
    ),
    ("enabled: true", "enabled: false", "is switched off"),
    (
        "connect_config: {}",
        "other: {}",
        "passes the CONNECT on to another proxy",
    ),
    ("80||box", "80|v1|box", "is a subset of a Service"),
    (
        "||box-1.research.svc.cluster.local",
        "||box-1.example.com",
        "is no Service of the cluster's domain",
    ),
    (
        "context: GATEWAY",
        "context: SIDECAR_INBOUND",
        "13:18: error: not for a gateway",
    ),
    ("operation: MERGE", "operation: REMOVE", "REMOVE"),
    (
        "applyTo: NETWORK_FILTER",
        "applyTo: HTTP_FILTER",
        "11:16: error: a patch of HTTP_FILTER: it stays with the gateway",
    ),
    (
        "operation: MERGE",
        "operation: MERGE\n        operation: ADD",
        "is there twice",
    ),
    (
        "research.svc.cluster.local:80",
        "research.svc.cluster.local:2222",
        "answers at its own port and at 22",
    ),
    (
        "research.svc.cluster.local:80",
        "research.svc.cluster.local",
        "has no port",
    ),
    (
        "box-1.research.svc.cluster.local:80",
        "\"*.example.com:80\"",
        "28:29: error: the domain *.example.com:80: a pattern",
    ),
    (
        "box-1.research.svc.cluster.local:80",
        "ssh.example.com:80",
        "a Service answers to box-1.research and a domain after it",
    ),
];

#[test]
fn labels_that_differ_in_case_or_spelling_are_different_keys() {
    let labels = "  labels: {App: a, app: b, appName: c, app_name: d}\n  annotations: {x-Y: a, x-y: b}\n  namespace: istio-system";
    let text = filter(NAME, CLUSTER)
        .replacen("  namespace: istio-system", labels, 1)
        .replacen("istio: gateway", "istio: gateway\n      Istio: gateway", 1);
    let list = format!("kind: List\nitems:\n- {}", text.trim_end().replace('\n', "\n  "));
    for text in [text, list] {
        let imported = imported(&[&text], Format::Kubectl);
        assert_eq!(
            (imported.text.as_str(), imported.extent),
            (LINES, Extent::Whole),
            "{:?}",
            imported.diagnostics
        );
    }
}

#[test]
fn files_without_anything_to_translate_are_named_with_the_reason() {
    for (text, extent, reason) in [
        (
            "",
            Extent::Part,
            "nothing to translate: no EnvoyFilter here has a route",
        ),
        ("# nothing\n---\n", Extent::Part, "nothing to translate"),
        (SERVICE, Extent::Part, "nothing to translate"),
        (
            "kind: ConfigMap\ndata: {frpc.toml: x}\n",
            Extent::Part,
            "kind ConfigMap: not read",
        ),
        (
            "serverAddr: a\nproxies: []\n",
            Extent::Part,
            "`switchboard import frpc` reads files of frpc",
        ),
        (
            "serverAddr = \"a\"\n[[proxies]]\nname = \"b\"\n",
            Extent::Part,
            "`switchboard import frpc`",
        ),
        (
            "kind: Service\nmetadata:\n\u{a0}\u{a0}name: a\n",
            Extent::Unreadable,
            "1.yaml:3:1: error: a no-break space",
        ),
        (
            "kind:\u{a0}Service\n",
            Extent::Unreadable,
            "1.yaml:1:1: error: a no-break space",
        ),
        (
            "# caf\u{e9}\u{a0}!\nkind: Service\n",
            Extent::Part,
            "nothing to translate",
        ),
    ] {
        let imported = imported(&[text], Format::Kubectl);
        let diagnostics = imported.diagnostics.join("\n");
        assert!(
            imported.extent == extent && diagnostics.contains(reason),
            "{text:?}: {:?} {diagnostics}",
            imported.extent
        );
        assert_eq!(imported.text, "");
    }
}

/// An option that may restrict keeps its name off the list, and each diagnostic has its location.
#[test]
fn what_has_no_counterpart_is_named_and_not_printed() {
    let whole = filter(NAME, CLUSTER);
    for &(from, to, remark) in WITHOUT_COUNTERPART {
        let text = whole.replacen(from, to, 1);
        assert_ne!(text, whole, "{from}");
        let imported = imported(&[&text], Format::Kubectl);
        let diagnostics = imported.diagnostics.join("\n");
        assert_eq!(
            (imported.text.as_str(), imported.extent),
            ("", Extent::Part),
            "{text}\n{diagnostics}"
        );
        assert!(diagnostics.starts_with("1.yaml:"), "{diagnostics}");
        if remark.starts_with(|first: char| first.is_ascii_digit()) {
            assert!(
                diagnostics.starts_with(&format!("1.yaml:{remark}")),
                "{remark} in {diagnostics}"
            );
        }
        let words = remark.split("error: ").last().unwrap();
        assert!(diagnostics.contains(words), "{remark} in {diagnostics}");
    }
}

#[test]
fn an_option_of_the_listener_is_named_and_the_routes_are_printed() {
    let text = filter(NAME, CLUSTER).replacen(
        "            route_config:",
        "            http2_protocol_options: {allow_connect: true}\n            http_filters: []\n            route_config:",
        1,
    );
    let imported = imported(&[&text], Format::Kubectl);
    assert_eq!((imported.text.as_str(), imported.extent), (LINES, Extent::Part));
    assert_eq!(
        imported.diagnostics,
        ["1.yaml:25:13: warning: http_filters stays with the gateway, and so does what it restricts"]
    );
}

#[test]
fn settings_of_a_route_become_annotations() {
    let text = filter(NAME, CLUSTER)
        .replace(
            "connect_config: {}",
            "connect_config: {proxy_protocol_config: {version: V2}}",
        )
        .replace(
            "upgrade_configs:",
            "idle_timeout: 3600s\n                        timeout: 0s\n                        upgrade_configs:",
        );
    let annotations = "kubectl -n research annotate service box-1 switchboard.dev/port=80 switchboard.dev/idle-timeout=3600s \
                       switchboard.dev/send-proxy-protocol=v2\n";
    let (printed, diagnostics) = kubectl(&text);
    assert!(printed.starts_with(annotations), "{printed} {diagnostics}");
    let list = imported(&[&(text + SERVICE)], Format::Static);
    assert!(
        list.text
            .ends_with("addresses: [\"10.96.0.9:80\"], send_proxy_protocol: v2}\n"),
        "{list:?}"
    );
    assert!(
        list.diagnostics.concat().contains("the idle timeout is left out"),
        "{list:?}"
    );
}

#[test]
fn two_names_of_one_service_and_two_targets_of_one_name() {
    let two = format!("{}---\n{}", filter(NAME, CLUSTER), filter("box-1.research:22", CLUSTER));
    assert_eq!(kubectl(&two), (LINES.to_owned(), String::new()));
    for (name, cluster, reason) in [
        (
            NAME,
            "outbound|80||box-2.research.svc.cluster.local",
            "is already printed from 1.yaml:28:29",
        ),
        (
            "box-1.research:22",
            "outbound|81||box-1.research.svc.cluster.local",
            "has another port or other settings",
        ),
    ] {
        let (text, diagnostics) = kubectl(&format!("{}---\n{}", filter(NAME, CLUSTER), filter(name, cluster)));
        assert_eq!(text, LINES);
        assert!(diagnostics.contains(reason), "{diagnostics}");
    }
}

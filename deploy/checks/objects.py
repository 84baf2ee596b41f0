"""Checks every rendered object: `objects.py FOLDER FILE…` reads YAML files and exits 1 if any is faulty.

Built-in kinds go through the strict schemas of the oldest and the newest Kubernetes that we support; custom ones are
written to FOLDER/custom.json for custom.mjs. Then come the promises of the manifests that no schema knows.
"""

import json
import re
import sys
from pathlib import Path

import kubernetes_validate
import yaml

VERSIONS = ["1.29", "1.37"]
BUILT_IN = re.compile(r"^(v1|apps/v1|batch/v1|policy/v1|autoscaling/v2|networking\.k8s\.io/v1|rbac\.authorization\.k8s\.io/v1)$")
# Those of the program.
WORKLOAD_KINDS = [
    {"resource": "statefulsets.v1.apps/scale", "patch": "{}"},
    {"resource": "deployments.v1.apps/scale", "patch": "{}"},
    {"resource": "notebooks.v1.kubeflow.org", "patch": "{}", "activity": "notebooks.kubeflow.org/last-activity"},
]
UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

faults = []


class Loader(yaml.CSafeLoader):
    """SafeLoader that refuses a key given twice, which would hide the first."""


def mapping(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.YAMLError(f"key {key!r} twice, {node.start_mark}")
    return yaml.CSafeLoader.construct_mapping(loader, node, deep=True)


Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)


def load(path):
    return [each for each in yaml.load_all(Path(path).read_text(), Loader=Loader) if each is not None]


def name(each):
    return f"{each['kind']} {each['metadata'].get('namespace', '-')}/{each['metadata']['name']}"


def fault(where, what):
    faults.append(f"{where}: {what}")


def against_schema(where, each):
    """Built-in kinds; the pod of a Notebook is one too."""
    if each["kind"] == "Notebook":
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": each["spec"]["template"]["spec"]}
        if set(each["spec"]) != {"template"} or each["apiVersion"] != "kubeflow.org/v1":
            fault(where, "not the Notebook that we know")
        return against_schema(where, pod)
    if not BUILT_IN.match(each["apiVersion"]):
        return False
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            fault(where, f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message[:300]}")
        except Exception as error:  # no schema: an API that this version does not have
            fault(where, f"Kubernetes {version}: {getattr(error, 'message', error)}")
    return True


def seconds(text):
    return sum(int(number) * UNIT[unit] for number, unit in re.findall(r"(\d+)(ms|[smhd])", text))


def pods(objects):
    """Every pod template with the labels that select it."""
    for each in objects:
        if each["kind"] in ("Deployment", "DaemonSet", "Job"):
            yield each, each["spec"]["template"]
        if each["kind"] == "Pod":
            yield each, {"metadata": each["metadata"], "spec": each["spec"]}
        if each["kind"] == "Notebook":
            labels = {"notebook-name": each["metadata"]["name"], "statefulset": each["metadata"]["name"]}
            yield each, {"metadata": {"labels": labels}, **each["spec"]["template"]}


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def promises_of_any(where, objects):
    """Names that must meet: selectors, ports, volumes, ConfigMaps; and no object twice."""
    seen = [name(each) for each in objects]
    for each in sorted(set(seen)):
        if seen.count(each) > 1:
            fault(where, f"{each} twice")
    templates = [(owner["metadata"].get("namespace"), template) for owner, template in pods(objects) if owner["kind"] not in ("Job", "Pod")]
    jobs = [template["metadata"]["labels"] for owner, template in pods(objects) if owner["kind"] in ("Job", "Pod")]
    maps = {each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap"}
    claims = {each["metadata"]["name"] for each in objects if each["kind"] == "PersistentVolumeClaim"}
    for owner, template in pods(objects):
        spec = template["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for container in containers(spec):
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    fault(where, f"{name(owner)} mounts {mount['name']}, which it does not have")
            if where.endswith(".yaml") and "requests" not in container.get("resources", {}):
                fault(where, f"{name(owner)}: container {container['name']} requests nothing")
        for volume in spec.get("volumes", []):
            if "configMap" in volume and volume["configMap"]["name"] not in maps:
                fault(where, f"{name(owner)}: there is no ConfigMap {volume['configMap']['name']}")
            if "persistentVolumeClaim" in volume and volume["persistentVolumeClaim"]["claimName"] not in claims:
                fault(where, f"{name(owner)}: there is no claim {volume['persistentVolumeClaim']['claimName']}")
        if owner["kind"] in ("Deployment", "DaemonSet"):
            selector = owner["spec"]["selector"]["matchLabels"]
            if not selector.items() <= template["metadata"]["labels"].items():
                fault(where, f"{name(owner)} does not select its own pods")
    for each in objects:
        selector = each.get("spec", {}).get("podSelector", each.get("spec", {}).get("selector", {}))
        selector = selector.get("matchLabels", selector)
        if any(selector and selector.items() <= labels.items() for labels in jobs):
            fault(where, f"{name(each)} selects the pods of a check")
        dials_in = each["metadata"].get("annotations", {}).get("switchboard.dev/dials-in") == "true"
        if each["kind"] == "Service" and not dials_in:
            selected = [
                template["spec"]
                for namespace, template in templates
                if namespace == each["metadata"].get("namespace")
                and each["spec"]["selector"].items() <= template["metadata"]["labels"].items()
            ]
            if not selected:
                fault(where, f"{name(each)} selects no pod")
            open_ports = {
                value
                for spec in selected
                for container in containers(spec)
                for port in container.get("ports", [])
                for value in (port["name"], port["containerPort"])
            }
            for port in each["spec"]["ports"]:
                if port["targetPort"] not in open_ports:
                    fault(where, f"{name(each)}: no container has the port {port['targetPort']}")
        if each["kind"] == "PodDisruptionBudget":
            selector = each["spec"]["selector"]["matchLabels"].items()
            if not any(selector <= template["metadata"]["labels"].items() for _, template in templates):
                fault(where, f"{name(each)} selects no pod")


def one_name_each(where, objects):
    """Names that any API server takes, and bindings of the account of the pods' own namespace."""
    [workload] = [each for each in objects if each["kind"] in ("Deployment", "DaemonSet")]
    home = workload["metadata"]["namespace"]
    for each in objects:
        own = each["metadata"]["name"]
        pattern = r"[a-z]([-a-z0-9]*[a-z0-9])?" if each["kind"] == "Service" else r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"
        if len(own) > 63 or not re.fullmatch(pattern, own):
            fault(where, f"{each['kind']} has the name {own!r}")
        for subject in each.get("subjects", []):
            if subject["namespace"] != home:
                fault(where, f"{name(each)} binds an account of {subject['namespace']}")
        spec = each.get("spec", {})
        for namespace in spec.get("namespaceSelector", {}).get("matchNames", []) if each["kind"].endswith("Monitor") else []:
            if namespace != home:
                fault(where, f"{name(each)} scrapes {namespace}")


def is_restricted(where, objects):
    """What the level `restricted` of Pod Security wants of every pod."""
    for owner, template in pods(objects):
        pod = template["spec"]
        of_pod = pod.get("securityContext", {})

        def must(true, what):
            if not true:
                fault(where, f"{name(owner)} is not `restricted`: {what}")

        must(not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), "it is in a namespace of the host")
        kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
        must(all(volume.keys() - {"name"} <= kinds for volume in pod.get("volumes", [])), "volumes")
        for container in containers(pod):
            own = container.get("securityContext", {})
            both = of_pod | own
            must(both.get("runAsNonRoot") is True and both.get("runAsUser") != 0, "runAsNonRoot")
            must(both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"), "seccompProfile")
            must(own.get("allowPrivilegeEscalation") is False, "allowPrivilegeEscalation")
            capabilities = own.get("capabilities", {})
            must("ALL" in capabilities.get("drop", []), "capabilities.drop")
            must(set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}, "capabilities.add")
            must(not own.get("privileged"), "privileged")
            must(not any("hostPort" in port for port in container.get("ports", [])), "hostPort")


def configurations(objects):
    """The proxy's configuration files, each with the name of its ConfigMap."""
    for each in objects:
        if each["kind"] == "ConfigMap" and "switchboard.yaml" in each.get("data", {}):
            yield each["metadata"]["name"], each["data"]["switchboard.yaml"]


def promises_of_switchboard(where, objects):
    """What deploy/README.md says of the proxy's own pods."""
    one_name_each(where, objects)
    [workload] = [each for each in objects if each["kind"] in ("Deployment", "DaemonSet")]
    spec = workload["spec"]["template"]["spec"]
    container = spec["containers"][0]
    files = [file for _, file in configurations(objects)]
    config = yaml.load(files[0], Loader=Loader)

    def must(true, what):
        if not true:
            fault(where, what)

    must(container["name"] == "switchboard", "the proxy's container is the first one")
    must(len(set(files)) == 1, "one configuration file, and the check before the rollout has the same")
    is_daemon = workload["kind"] == "DaemonSet"
    has_host_ports = spec.get("hostNetwork", False) or any("hostPort" in port for port in container["ports"])
    if is_daemon and has_host_ports:
        must(workload["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0, "a surge could not get the port")
    else:
        update = workload["spec"]["updateStrategy" if is_daemon else "strategy"]
        must(update["rollingUpdate"]["maxUnavailable"] == 0, "maxUnavailable is 0")
    must(is_daemon or workload["spec"].get("replicas", 2) >= 2, "two replicas")
    must(not is_daemon or not any(each["kind"] == "PodDisruptionBudget" for each in objects), "no budget of a DaemonSet")
    accounts = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ServiceAccount"}
    must(set(accounts) <= {spec["serviceAccountName"]}, "no account but the pods'")
    for job in [each for each in objects if each["kind"] in ("Job", "Pod")]:
        checked = job["spec"]["template"]["spec"] if job["kind"] == "Job" else job["spec"]
        must(checked["containers"][0]["args"][0] == "check", "the Job checks")
        must(checked["containers"][0]["image"] == container["image"], "it checks with the image that will serve")
        must(checked["automountServiceAccountToken"] is False, "it has no token")
        must(checked["securityContext"] == spec["securityContext"], "it runs as the pods do")
        mounts = [each["containers"][0]["volumeMounts"] for each in (checked, spec)]
        must(mounts[0] == mounts[1], "it sees what the pods see")
        if job["kind"] == "Pod":
            must(job["metadata"]["annotations"].get("helm.sh/hook") == "test", "a Pod alone is a test")
            continue
        for each in objects:
            if each["metadata"]["name"] == job["metadata"]["name"]:
                hook = each["metadata"]["annotations"].get("helm.sh/hook")
                must(hook == "pre-install,pre-upgrade", f"{name(each)} exists before the rollout")
    drain = sum(seconds(config["drain"][key]) for key in ("delay", "timeout", "spread"))
    must(spec["terminationGracePeriodSeconds"] >= drain, f"grace period shorter than a drain of {drain} s")
    alerts = [
        rule
        for each in objects
        if each["kind"] == "PrometheusRule"
        for group in each["spec"]["groups"]
        for rule in group["rules"]
        if rule["alert"].startswith("Switchboard")
    ]
    for alert in alerts:
        if alert["alert"] == "SwitchboardDrainStuck":
            must(seconds(alert["for"]) == drain + 300, f"SwitchboardDrainStuck waits for a drain of {drain} s")
    runbooks = {alert["annotations"]["runbook_url"].split("#")[0] for alert in alerts}
    must(len(runbooks) <= 1, f"one runbook, not {runbooks}")
    if where == "helm-namespaced.yaml":
        must(runbooks == {"https://wiki.example.com/ssh"}, "the runbook of the values")
    must(spec["enableServiceLinks"] is False, "service links would set SWITCHBOARD_PORT")
    pod, own = spec["securityContext"], container["securityContext"]
    must(pod["runAsNonRoot"] is True and pod["runAsUser"] == 65532, "runs as 65532")
    must(pod["seccompProfile"] == {"type": "RuntimeDefault"}, "seccomp RuntimeDefault")
    must(own["readOnlyRootFilesystem"] is True, "read-only root")
    must(own["allowPrivilegeEscalation"] is False, "no privilege escalation")
    must(own["capabilities"] == {"drop": ["ALL"]}, "all capabilities dropped")
    must("cpu" not in container["resources"].get("limits", {}), "no CPU limit")
    spread = spec.get("topologySpreadConstraints", [])
    must(is_daemon or {each["topologyKey"] for each in spread} >= {"kubernetes.io/hostname"}, "spread")
    for constraint in spread:
        must(constraint["labelSelector"]["matchLabels"], "a spread without a selector counts no pod")
    must(container["livenessProbe"]["httpGet"]["path"] == "/livez", "liveness on /livez")
    must(container["readinessProbe"]["httpGet"]["path"] == "/readyz", "readiness on /readyz")
    listening = {int(each["address"].rsplit(":", 1)[1]) for each in config["listen"]}
    listening.add(int(config["admin"].rsplit(":", 1)[1]))
    must(listening == {port["containerPort"] for port in container["ports"]}, "container ports are those of the file")

    kubernetes = (config["allowlist"].get("kubernetes") or {}).get("enabled", False)
    access = config.get("access") or {}
    reviews = (access.get("kubernetes") or {}).get("enabled", False)
    sections = [(access.get(key) or {}, name) for key, name in (("tickets", "tickets"), ("ssh_keys", "ssh-keys"))]
    read = [(options.get("secret") or f"switchboard-{name}").split("/") for options, name in sections if options.get("enabled")]
    has_replicas = (config.get("anchors") or {}).get("replicas") == "auto"
    must(spec["automountServiceAccountToken"] is (kubernetes or reviews or bool(read) or has_replicas), "a token exactly where the API is asked")
    bindings = [each for each in objects if each["kind"] in ("ClusterRoleBinding", "RoleBinding")]
    delegators = [each for each in bindings if each["roleRef"]["name"] == "system:auth-delegator"]
    must(len(delegators) == reviews, "system:auth-delegator exactly where the API server is asked about users")
    roles = [each for each in objects if each["kind"] in ("ClusterRole", "Role")]
    bound = {each["roleRef"]["name"] for each in bindings}
    granted = [rule for each in roles if each["metadata"]["name"] in bound for rule in each["rules"]]
    allowed = set()
    if kubernetes:
        allowed |= {"services", "endpointslices"}
        if config["allowlist"]["kubernetes"].get("pods", {}).get("enabled"):
            allowed.add("pods")
        if config["allowlist"]["kubernetes"].get("namespace_selector"):
            allowed.add("namespaces")
    if reviews and access["kubernetes"].get("watch_rbac", True):
        allowed |= {"roles", "rolebindings", "clusterroles", "clusterrolebindings", "serviceaccounts"}
    if read:
        allowed.add("secrets")
    if has_replicas:
        allowed.add("endpointslices")
        services = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
        must(config["anchors"]["service"] in services, "anchors learn the replicas from a Service of this proxy")
        names = [each for each in container.get("env", []) if each["name"] == "POD_NAME"]
        must(names and "fieldRef" in names[0]["valueFrom"], "each pod knows its name")
    secrets = [(each, rule) for each in roles for rule in each["rules"] if "secrets" in rule["resources"]]
    must(len(secrets) == len(read), "Secrets are read for tickets and public keys alone")
    namespaces = {secret: namespace for *namespace, secret in read}
    for role, rule in secrets:
        must(role["kind"] == "Role" and rule["resourceNames"][0] in namespaces and not rule["resourceNames"][1:], "one Secret of one namespace, by its name")
        namespace = namespaces[rule["resourceNames"][0]]
        must(not namespace or role["metadata"]["namespace"] == namespace[0], "the namespace of the Secret")
    kubernetes = config["allowlist"].get("kubernetes", {})
    writes = {}
    for kind in kubernetes.get("workload_kinds", WORKLOAD_KINDS):
        resource, *subresource = kind["resource"].split("/")
        resource = resource.split(".")[0]
        if kubernetes.get("wake") and "patch" in kind:
            writes["/".join([resource, *subresource])] = ["get", "patch"]
        if kubernetes.get("report_activity") and "activity" in kind:
            writes[resource] = ["get", "patch"]
    if kubernetes.get("events"):
        writes["events"] = ["create", "patch"]
    must({resource for rule in granted for resource in rule["resources"]} == allowed | set(writes), "RBAC")
    for rule in granted:
        for resource in rule["resources"]:
            verbs = writes.get(resource, ["get", "list", "watch"])
            must(sorted(rule["verbs"]) == verbs, f"RBAC of {resource}: what is switched on, and reads only beside that")
    of_pods = (kubernetes.get("pods") or {}) if kubernetes.get("pods", {}).get("enabled") else None
    for role in [each for each in roles if each["kind"] == "Role" and each["metadata"]["name"] in bound]:
        resources = {resource for rule in role["rules"] for resource in rule["resources"]}
        namespace = role["metadata"]["namespace"]
        names = kubernetes.get("namespaces", [])
        if resources & {"services", "pods"}:
            must(("services" in resources) == (namespace in names), f"Services of {namespace}")
            must(("pods" in resources) == (of_pods is not None and namespace in (of_pods.get("namespaces") or names)), f"pods of {namespace}")
            must("services" in resources or not any("/" in each for each in resources), f"only Services of {namespace} start workloads")
    for each in bindings:
        must(each["subjects"][0]["name"] == spec["serviceAccountName"], "RBAC binds the pods' account")
        if each not in delegators:
            must(each["roleRef"]["name"] == each["metadata"]["name"], "RBAC binds its own role")
    permission = (access.get("kubernetes") or {}).get("permission", "ssh")
    for_users = [each for each in roles if each["metadata"]["name"] not in bound]
    if permission != "ssh":
        asked = [permission.get(key, default) for key, default in (("verb", ""), ("group", ""), ("resource", ""), ("subresource", ""), ("name", "service"))]
        permission = "ssh" if asked == ["create", "", "services", "ssh", "service"] else permission
    must(len(for_users) == (reviews and permission == "ssh"), "a ClusterRole for users where they need a right of switchboard's own")
    for each in for_users:
        expected = ["services/ssh", "pods/ssh"] if "pods" in allowed else ["services/ssh"]
        must(each["rules"] == [{"apiGroups": [""], "resources": expected, "verbs": ["create"]}], f"{name(each)} has the right that is asked for")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    files = [(access.get("users") or {}).get("file")]
    files += [issuer.get(key) for issuer in access.get("oidc") or [] for key in ("jwks", "ca")]
    for file in [file for file in files if file and file.startswith("/")]:
        must(file.rsplit("/", 1)[0] in mounts, f"{file} is in no mount")
    [policy] = [each for each in objects if each["kind"] == "NetworkPolicy"]
    scrapes = [rule for rule in policy["spec"]["ingress"] if "metrics" in {port["port"] for port in rule["ports"]}]
    must(all(rule.get("from") for rule in scrapes), "the admin port admits no peer that is not named")
    outside = {port["port"] for rule in policy["spec"]["egress"] if "to" not in rule for port in rule["ports"]}
    by_url = [issuer["jwks"] for issuer in access.get("oidc") or [] if "://" in issuer["jwks"]]
    must((53 in outside) == bool(by_url), "DNS exactly where an issuer has a URL")
    for url in by_url:
        port = re.match(r"https?://[^/]*?(?::(\d+))?(?:/|$)", url).group(1) or ("443" if url.startswith("https") else "80")
        must(int(port) in outside, f"a way to {url}")
    for each in objects:
        if each["kind"] == "Service" and each["spec"]["type"] == "LoadBalancer":
            must(each["spec"]["externalTrafficPolicy"] == "Local", "externalTrafficPolicy Local")
            must("metrics" not in {port["name"] for port in each["spec"]["ports"]}, "the admin port is not public")


def comparable(objects):
    """What a chart and a kustomization can agree on: without their own bookkeeping and the order of lists of names."""
    found = {}
    for each in objects:
        if each["kind"] == "Namespace" or each["metadata"].get("annotations", {}).get("helm.sh/hook") == "test":
            continue
        text = json.dumps(each)
        text = re.sub(r'"switchboard-[a-z0-9]{10}"', '"switchboard"', text)
        each = json.loads(text)
        for meta in (each["metadata"], each.get("spec", {}).get("template", {}).get("metadata", {})):
            for key in ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"):
                meta.get("labels", {}).pop(key, None)
            meta.get("annotations", {}).pop("checksum/config", None)
            if not meta.get("annotations", True):
                del meta["annotations"]
        if "switchboard.yaml" in each.get("data", {}):
            each["data"]["switchboard.yaml"] = yaml.load(each["data"]["switchboard.yaml"], Loader=Loader)
        if "switchboard.json" in each.get("data", {}):
            each["data"]["switchboard.json"] = json.loads(each["data"]["switchboard.json"])
        found[(each["kind"], each["metadata"]["name"])] = each
    return found


def differences(one, other, path=""):
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other)):
            yield from differences(left, right, f"{path}[{index}]")
    elif one != other:
        yield f"{path}: chart {one!r}, kustomize {other!r}"


def agree(chart, kustomize):
    left, right = comparable(load(chart)), comparable(load(kustomize))
    where = f"{Path(chart).name} and {Path(kustomize).name}"
    for key in sorted(left.keys() ^ right.keys()):
        fault(where, f"{key} is in one of them only")
    for key in sorted(left.keys() & right.keys()):
        for difference in differences(left[key], right[key]):
            fault(where, f"{key} {difference}")


def dashboard(objects):
    """Grafana would load it, and no panel covers another. Returns its expressions as rules for promtool."""
    [text] = [each["data"]["switchboard.json"] for each in objects if "switchboard.json" in each.get("data", {})]
    board = json.loads(text)
    panels = board["panels"]
    ids = [panel["id"] for panel in panels]
    if len(ids) != len(set(ids)):
        fault("dashboard", "a panel id twice")
    cells = set()
    for panel in panels:
        grid = panel["gridPos"]
        mine = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        if mine & cells or grid["x"] + grid["w"] > 24:
            fault("dashboard", f"{panel['title']} does not fit its place")
        cells |= mine
        if panel["type"] != "row" and not panel["targets"]:
            fault("dashboard", f"{panel['title']} shows nothing")
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    plain = [each.replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$pod", ".*") for each in expressions]
    rules = [{"record": f"dashboard:{index}", "expr": each} for index, each in enumerate(plain)]
    return {"groups": [{"name": "dashboard", "rules": rules}]}


def main():
    folder, *files = sys.argv[1:]
    folder = Path(folder)
    custom, count = [], 0
    for path in files:
        objects, where = load(path), Path(path).name
        for each in objects:
            count += 1
            if not against_schema(f"{where}: {name(each)}", each):
                custom.append({"where": f"{where}: {name(each)}", "object": each})
        try:
            promises_of_any(where, objects)
            if where.startswith(("helm-", "kustomize-")):
                promises_of_switchboard(where, objects)
            if where.startswith("example-"):
                is_restricted(where, objects)
        except KeyError as missing:
            fault(where, f"{missing} is missing")
    agree(folder / "helm-default.yaml", folder / "kustomize-base.yaml")
    agree(folder / "helm-everything.yaml", folder / "kustomize-everything.yaml")
    elsewhere = {each["metadata"].get("namespace") for each in load(folder / "kustomize-elsewhere.yaml")}
    if elsewhere != {None, "elsewhere"}:
        fault("kustomize-elsewhere.yaml", f"objects in {elsewhere}")
    everything = load(folder / "helm-everything.yaml")
    (folder / "dashboard-rules.yaml").write_text(yaml.safe_dump(dashboard(everything), width=10000))
    [rule] = [each for each in everything if each["kind"] == "PrometheusRule"]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rule["spec"]["groups"]}, width=10000))
    for path in folder.glob("helm-*.yaml"):
        config = next(file for _, file in configurations(load(path)))
        (folder / f"config-{path.name}").write_text(config)
    (folder / "custom.json").write_text(json.dumps([each for each in custom if each["object"]["kind"] != "Notebook"]))
    for each in faults:
        print(each)
    print(f"{count} objects in {len(files)} files, {len(custom)} of them custom, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()

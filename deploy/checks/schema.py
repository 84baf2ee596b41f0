"""Compares the chart's schema with the program's own: `schema.py PROGRAM CHART [--write]`.

The program prints the schema of `config` (`switchboard check --schema`), and values.yaml says which values cannot be
absent: --write puts both into values.schema.json. Without --write the file must have both, and the program must judge the
texts of a table as the schema does.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import yaml

WIDTH = 120
# With a default, and valid without one.
OPTIONAL = {"maxUnavailable", "maxSurge", "rollingUpdate", "requests", "limits", "runAsUser", "runAsGroup", "fsGroup", "spec"}

# Where, a value, and whether a file with it is accepted. A value that the schema accepts and the program refuses would
# crash a pod; one that only the schema refuses could not be set through the chart.
TABLE = [
    ("limits.tunel", {}, False),
    ("allowlist.kubernetes.workload_kinds", [{"name": "a", "resource": "bs.v1.c/scale", "patch": '{"a": 1}', "activity": "c/d"}], True),
    ("allowlist.kubernetes.workload_kinds", [{"name": "a", "resource": "bs.c.d"}], False),
    ("allowlist.kubernetes.workload_kinds", [{"name": "a", "resource": "bs.v1.c", "patch": "spec"}], False),
    ("access.tickets.ttl", "4h", True),
    ("access.tickets.ttl", "soon", False),
    ("access.tickets.secret", "tickets", True),
    ("access.tickets.secret", "ssh/tickets", True),
    ("access.tickets.secret", "a/b/c", False),
    ("access.tickets.secret", "Tickets", False),
    ("anchors.replicas", 17, False),
    ("anchors.replicas", "all", False),
    ("anchors.service", "team/ssh", False),
    ("limits.tunnel.download", "fast", False),
    ("limits.tunnel.download", "50MiB/s", True),
    ("limits.tunnel.download", "80 Mbit/s", True),
    ("limits.tunnel.download", "80kB/s", True),
    ("limits.tunnel.download", "1B/s", True),
    ("limits.tunnel.download", "0B/s", False),
    ("limits.tunnel.download", "unlimited", True),
    ("limits.tunnel.download", "50MiB", False),
    ("limits.tunnel.download", "50Mb/s", False),
    ("limits.tunnel.download", "50Kibit/s", False),
    ("limits.tunnel.download", None, True),
    ("limits.tunnel.burst", "512KiB", True),
    ("limits.tunnel.burst", "unlimited", False),
    ("limits.tunnel.burst", "1MiB/s", False),
    ("limits.tunnel.lifetime", "unlimited", True),
    ("limits.tunnel.lifetime", "off", False),
    ("limits.tunnel.lifetime", "1h30m", True),
    ("limits.tunnel.lifetime", "2 days 4 hours", True),
    ("limits.tunnel.lifetime", "1.5h", True),
    ("limits.tunnel.lifetime", "250ms", True),
    ("limits.tunnel.lifetime", "5M", False),
    ("limits.tunnel.lifetime", "1hour", True),
    ("limits.tunnel.lifetime", "10", False),
    ("limits.tunnel.lifetime", "10sek", False),
    ("limits.tunnel.lifetime", "-1s", False),
    ("limits.tunnel.max_tunnels", 5, False),
    ("limits.client.max_tunnels", 5, True),
    ("limits.client.max_tunnels", 2000000, True),
    ("limits.client.max_tunnels", 4294967295, True),
    ("limits.client.max_tunnels", 4294967296, False),
    ("limits.client.max_tunnels", 0, False),
    ("limits.client.max_tunnels", -1, False),
    ("limits.client.max_tunnels", 1.5, False),
    ("limits.client.max_tunnels", "unlimited", True),
    ("limits.client.max_tunnels", "none", False),
    ("limits.client.connects_burst", "unlimited", False),
    ("limits.ceiling.ssh_only", True, True),
    ("limits.ceiling.ssh_only", "yes", False),
    ("limits", [], False),
    ("limits", None, True),
    ("allowlist.report_only", True, True),
    ("allowlist.report_only", "true", False),
    ("ssh_only", False, True),
    ("ssh_only", "off", False),
    ("ssh_only", "false", False),
    ("limits.client.max_tunnels", "5", False),
    ("allowlist.kubernetes.alias_port", "22", False),
    ("timeouts.idle", "off", True),
    ("timeouts.idle", "unlimited", False),
    ("timeouts.request_header", "off", False),
    ("timeouts.request_header", "10s", True),
    ("timeouts.dail", "10s", False),
    ("drain.delay", "0s", True),
    ("drain.delay", "0", True),
    ("drain.delay", ["0s"], False),
    ("listen", "0.0.0.0:8080", True),
    ("listen", "[::]:8080", True),
    ("listen", ["0.0.0.0:8080", {"address": "0.0.0.0:8081", "reuse_port": True}], True),
    ("listen", {"address": "0.0.0.0:8080", "proxy_protocol": "required", "trusted_proxies": ["10.0.0.0/8"]}, True),
    ("listen", {"address": "0.0.0.0:8080", "proxy_protocol": "optional"}, False),
    ("listen", {"address": "0.0.0.0:8080", "refusals": "auto"}, True),
    ("listen", {"address": "0.0.0.0:8080", "refusals": "off"}, False),
    ("listen", {"tls": "off"}, False),
    ("listen", {"address": None}, False),
    ("listen", 8080, False),
    ("listen", "localhost:8080", False),
    ("admin", "127.0.0.1:9091", True),
    ("admin", ":9091", False),
    ("admin_scrape", "loopback", True),
    ("admin_scrape", ["10.0.0.0/8", "fd00::/8"], True),
    ("admin_scrape", "networks", False),
    ("admin_scrape", ["10.0.0.1"], False),
    ("tls.client_auth", "maybe", False),
    ("tls.certificates", [{"cert": "/tls.crt"}], False),
    ("tls.poll", "10s", True),
    ("allowlist.static", [{"name": "a.local:22", "addresses": ["10.0.0.1:22"]}], True),
    ("allowlist.static", [{"name": "a.local:22", "addresses": ["10.0.0.1:22"], "send_proxy_protocol": "v2"}], True),
    ("allowlist.static", [{"name": "a.local:22", "addresses": ["10.0.0.1:22"], "send_proxy_protocol": "v3"}], False),
    ("allowlist.static", [{"name": "a.local:22", "addresses": ["sshd:22"]}], False),
    ("allowlist.static", [{"addresses": ["10.0.0.1:22"]}], False),
    ("allowlist.static", [{"name": "a.local:22", "dials_in": {"user": ["a"]}}], False),
    ("anchors", {"replica": 3}, False),
    ("anchors", {"replicas": 17}, False),
    ("allowlist.static", [{"name": "a.local", "addresses": ["10.0.0.1:22"]}], False),
    ("allowlist.static", ["a.local:22"], False),
    ("allowlist.kubernetes.selektor", "a=b", False),
    ("allowlist.kubernetes.selector", "a in (b, c),!d", True),
    ("allowlist.kubernetes.selector", "", False),
    ("allowlist.kubernetes.selector", " ", False),
    ("allowlist.kubernetes.namespaces", ["team-a"], True),
    ("allowlist.kubernetes.namespaces", ["Team"], False),
    ("allowlist.kubernetes.annotation_prefix", "ssh.example.com/", True),
    ("allowlist.kubernetes.annotation_prefix", "ssh.example.com", False),
    ("allowlist.kubernetes.alias_port", 22, True),
    ("allowlist.kubernetes.alias_port", 65536, False),
    ("allowlist.kubernetes.allowed_cidrs", ["10.0.0.0/8", "fd00::/8"], True),
    ("allowlist.kubernetes.allowed_cidrs", ["10.0.0.1"], False),
    ("allowlist.kubernetes.on_removal", "keep", True),
    ("allowlist.kubernetes.on_removal", "ask", False),
    ("allowlist.kubernetes.wait_for_ready", "0s", True),
    ("access.mode", "open", True),
    ("access.mode", "closed", False),
    ("access.cleartext", "loopback", True),
    ("access.cleartext", "sidecar", False),
    ("access", {"mode": "enforce", "kubernetes": {"enabled": True}}, True),
    ("access", {"mode": "enforce", "kubernetes": {"enabled": True, "audiences": ["switchboard", ""]}}, True),
    ("access.kubernetes.permission", "ssh", True),
    ("access.kubernetes.permission", "port-forward", True),
    ("access.kubernetes.permission", "exec", False),
    ("access.kubernetes.permission", {"verb": "create", "resource": "services", "group": "", "subresource": "ssh"}, True),
    ("access.kubernetes.permission", {"verb": "connect", "resource": "workspaces", "group": "kubeflow.org", "name": "owner"}, True),
    ("access.kubernetes.permission", {"verb": "create", "resource": "pods", "name": "deployment"}, False),
    ("access.kubernetes.permission", {"verb": "create"}, False),
    ("access.kubernetes.permission", {"verb": "create", "resource": "services/ssh"}, False),
    ("access.kubernetes.permission", None, True),
    ("access.kubernetes.audiences", [None], False),
    ("access.kubernetes.recheck", "5m", True),
    ("access.kubernetes.recheck", "often", False),
    ("access.oidc", [{"issuer": "i", "audiences": ["a"], "jwks": "https://id.example.com/keys"}], True),
    ("access.oidc", [{"issuer": "i", "audiences": ["a"]}], False),
    ("access.oidc", [{"issuer": "i", "audiences": "a", "jwks": "https://id.example.com/keys"}], False),
    ("access.oidc", [{"issuer": "i", "audiences": ["a"], "jwks": "https://a/keys", "username_prefix": "oidc:"}], True),
    ("access.users", {}, False),
    ("access.user", {}, False),
    ("limits.user.max_tunnels", 8, True),
    ("limits.user.connects_burst", 8, False),
    ("allowlist.static", [{"name": "a:22", "addresses": ["10.0.0.1:22"], "allowed_users": ["alice"]}], True),
    ("allowlist.static", [{"name": "a:22", "addresses": ["10.0.0.1:22"], "allowed_groups": [""]}], False),
    ("extra", 1, False),
]


def own(program):
    return json.loads(subprocess.run([program, "check", "--schema"], capture_output=True, check=True, text=True).stdout)


def printed(value, indent, room):
    """JSON on one line where it fits, as the rest of values.schema.json is written."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(line) <= room:
        return line
    inner = indent + "  "
    if isinstance(value, list):
        parts = [inner + printed(each, inner, WIDTH - len(inner)) for each in value]
        return "[\n" + ",\n".join(parts) + f"\n{indent}]"
    parts = []
    for key, each in value.items():
        name = f"{inner}{json.dumps(key)}: "
        parts.append(name + printed(each, inner, WIDTH - len(name)))
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def require(schema, defaults):
    """Demands every key that values.yaml gives a value: null removes it, and what would then be left is looser or invalid."""
    if "properties" not in schema:
        return
    given = {key for key in schema["properties"] if defaults.get(key) is not None and key not in OPTIONAL}
    wanted = [key for key in schema["properties"] if key in given | set(schema.get("required", []))]
    if wanted:
        schema["required"] = wanted
    for key in given:
        if isinstance(defaults[key], dict) and key != "config":
            require(schema["properties"][key], defaults[key])


def complete(chart, config):
    """The whole schema of the chart: `config` is the program's, and what has a default is required."""
    schema = json.loads((chart / "values.schema.json").read_text())
    schema["properties"]["config"] = config
    require(schema, yaml.safe_load((chart / "values.yaml").read_text()))
    return schema


def tree(where, value):
    for key in reversed(where.split(".")):
        value = {key: value}
    return value


def judged(program, config, folder):
    """JSON is YAML. Whether the program accepts it, and what it says."""
    file = Path(folder) / "switchboard.yaml"
    file.write_text(json.dumps(config))
    done = subprocess.run([program, "check", "--config", str(file)], capture_output=True, text=True)
    return done.returncode == 0, done.stderr.strip()


def main():
    program, chart = sys.argv[1], Path(sys.argv[2])
    path = chart / "values.schema.json"
    schema = {key: value for key, value in own(program).items() if key not in ("$schema", "title")}
    schema = {"description": "The configuration file: written by deploy/checks/schema.py, from the program's own schema.", **schema}
    whole = complete(chart, schema)
    if "--write" in sys.argv:
        path.write_text(printed(whole, "", WIDTH) + "\n")
        return
    faults = []
    if json.loads(path.read_text()) != whole:
        faults.append(f"values.schema.json is not the program's schema: run deploy/checks/schema.py {program} {chart} --write")
    validator = jsonschema.Draft7Validator(schema)
    with tempfile.TemporaryDirectory() as folder:
        for where, value, expected in TABLE:
            config = tree(where, value)
            accepted, answer = judged(program, config, folder)
            if accepted != expected:
                faults.append(f"{where}: {value!r} is {'accepted' if accepted else 'refused'} by the program: {answer}")
            if validator.is_valid(config) != expected:
                faults.append(f"{where}: {value!r} is {'refused' if expected else 'accepted'} by the schema")
    for each in faults:
        print(each)
    print(f"{len(TABLE)} values, {len(faults)} faults")
    sys.exit(bool(faults))


main()

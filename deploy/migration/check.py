#!/usr/bin/env python3
"""Logs in through the real Envoy, by its own route and by the one that passes CONNECT on to switchboard.

    ENVOY=path/to/envoy deploy/migration/check.py path/to/switchboard

The virtual hosts are those of old.yaml and forward.yaml beside this file, read from their EnvoyFilters; the clusters
that Istio would make of Services lead to an sshd and to switchboard on loopback. `switchboard import` translates
old.yaml. It needs ssh, sshd and PyYAML; `benches/compare/run` installs an Envoy into target/compare/venv. Everything
is on free ports of loopback and in a temporary directory, and ends with the script. Istio itself takes no part: that
it merges a patch into a gateway is its own promise.
"""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests/it/openssh"
OLD = "svc-old.team-a.svc.cluster.local"
NEW = "svc-new.team-a.svc.cluster.local"
SWITCHBOARD = "outbound|80||switchboard.switchboard.svc.cluster.local"
DEADLINE = 60


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def merged(*names):
    """The virtual hosts of these EnvoyFilters."""
    hosts = []
    for name in names:
        for patch in yaml.safe_load((HERE / name).read_text())["spec"]["configPatches"]:
            hosts += patch["patch"]["value"]["typed_config"]["route_config"]["virtual_hosts"]
    return hosts


def cluster(name, port):
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "3s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def bootstrap(port, hosts, clusters):
    """Envoy's own configuration: a port as Istio's gateways have it, with these virtual hosts."""
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "upgrade_configs": [{"upgrade_type": "CONNECT"}],
        "route_config": {"name": "local_route", "virtual_hosts": hosts},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": "gateway",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def accepts(port):
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Scene:
    """The processes and files of one run; all end with it."""

    def __init__(self, stack, switchboard):
        self.stack = stack
        self.switchboard = switchboard
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="switchboard-")))

    def start(self, port, *command):
        log = self.stack.enter_context((self.folder / f"{Path(command[0]).name}-{port}.log").open("wb"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def end():
            process.kill()
            process.wait()

        self.stack.callback(end)
        accepts(port)

    def sshd(self):
        for name in ("host_key", "client_key"):
            path = self.folder / name
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        port = free_port()
        text = (TESTS / "sshd_config").read_text()
        configuration = self.folder / "sshd_config"
        configuration.write_text(text.replace("@PORT@", str(port)).replace("@DIRECTORY@", str(self.folder)))
        self.start(port, shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", configuration)
        return port

    def serve(self, allowlist):
        port = free_port()
        configuration = self.folder / f"switchboard-{port}.yaml"
        configuration.write_text(f"listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:0\n{allowlist}")
        self.start(port, self.switchboard, "serve", "--config", configuration)
        return port

    def envoy(self, hosts, clusters):
        port = free_port()
        configuration = self.folder / f"envoy-{port}.yaml"
        configuration.write_text(yaml.safe_dump(bootstrap(port, hosts, clusters)))
        flags = ["--log-level", "warning", "--use-dynamic-base-id", "--concurrency", "1"]
        self.start(port, os.environ["ENVOY"], *flags, "-c", configuration)
        return port

    def tunnel(self, sshd, to):
        """A port of a host outside, which leads to that port by ssh -R from within."""
        port = free_port()
        flags = self.flags({"ExitOnForwardFailure": "yes"}, f"[127.0.0.1]:{sshd}")
        forward = f"127.0.0.1:{port}:127.0.0.1:{to}"
        self.start(port, "ssh", *flags, "-p", str(sshd), "-N", "-R", forward, "127.0.0.1")
        return port

    def login(self, name, by):
        """What ssh prints after a login to port 80 of that name, through that port of this host."""
        command = f"{self.switchboard} connect --proxy http://127.0.0.1:{by} %h:%p"
        flags = self.flags({"ProxyCommand": command}, f"[{OLD}]:80,[{NEW}]:80")
        command = ["ssh", *flags, "-p", "80", name, "echo in"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL)
        return result.stdout.strip() or result.stderr.strip().splitlines()[0]

    def flags(self, further, hosts):
        """The options of ssh with the keys of this run: a session with a server of another key would not begin."""
        known_hosts = self.folder / "known_hosts"
        known_hosts.write_text(f"{hosts} {(self.folder / 'host_key.pub').read_text()}")
        options = {
            "User": getpass.getuser(),
            "IdentityFile": self.folder / "client_key",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "UserKnownHostsFile": known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            **further,
        }
        return ["-F", "/dev/null", *(flag for key, value in options.items() for flag in ("-o", f"{key}={value}"))]


def imported(switchboard, sshd):
    """The static allowlist that `import` makes of old.yaml, with its Service at the sshd."""
    text = (HERE / "old.yaml").read_text().replace("outbound|80|", f"outbound|{sshd}|")
    service = {
        "kind": "Service",
        "metadata": {"name": "svc-old", "namespace": "team-a"},
        "spec": {"clusterIP": "127.0.0.1", "ports": [{"port": sshd}]},
    }
    command = [switchboard, "import", "envoyfilter", "--format", "static", "-"]
    text += "\n---\n" + yaml.safe_dump(service)
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def expect(what, found, expected):
    print(f"{'ok' if expected in found else 'WRONG'}: {what}: {found}")
    return expected in found


def main():
    switchboard = str(Path(sys.argv[1]).resolve())
    with contextlib.ExitStack() as stack:
        scene = Scene(stack, switchboard)
        sshd = scene.sshd()
        old_only = scene.serve(imported(switchboard, sshd))
        names = "".join(f"    - {{name: \"{name}:80\", addresses: [\"127.0.0.1:{sshd}\"]}}\n" for name in (OLD, NEW))
        both = scene.serve(f"allowlist:\n  static:\n{names}")
        clusters = [cluster(f"outbound|80||{OLD}", sshd), cluster(SWITCHBOARD, both)]
        before = scene.envoy(merged("old.yaml"), clusters[:1])
        beside = scene.envoy(merged("old.yaml", "forward.yaml"), clusters)
        after = scene.envoy(merged("forward.yaml"), clusters[1:])
        results = [
            expect("before the move, by the old gateway", scene.login(OLD, before), "in"),
            expect("a new container is unknown to it", scene.login(NEW, before), "404"),
            expect("beside, an old container by the old gateway", scene.login(OLD, beside), "in"),
            expect("beside, a new container by the old gateway", scene.login(NEW, beside), "in"),
            expect("after its filter is deleted, by the old gateway", scene.login(OLD, after), "in"),
            expect("by switchboard itself, both names", scene.login(OLD, both) + scene.login(NEW, both), "inin"),
            expect("what `import` made of old.yaml", scene.login(OLD, old_only), "in"),
            expect("by a port outside that ssh -R leads in", scene.login(NEW, scene.tunnel(sshd, both)), "in"),
            expect("a name on neither list, by the old gateway", scene.login("x" + NEW, after), "Forbidden"),
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

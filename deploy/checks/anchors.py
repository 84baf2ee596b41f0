"""Checks the anchors of the SSH examples against the rest of each: `anchors.py EXAMPLES RENDERED…` exits 1 after a fault.
With the program in the variable SWITCHBOARD, their flags are compared with those of its `anchor --help`, too.

The Service leads to the anchor and the anchor to sshd, which is reached by no other path if it is in the same pod. The keepalives
of sshd and ssh outlast the anchor's --grace, also those of an example without an anchor whose users log in to another one's.
The container's memory has room for --memory, and probes and scrapes reach --admin.
"""

import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"Mi": 1 << 20, "Gi": 1 << 30, "MiB": 1 << 20, "GiB": 1 << 30}
# What the process takes beside the bytes that it keeps.
OWN = 64 << 20
faults = []


def expect(holds, what):
    if not holds:
        faults.append(what)


def with_unit(text, units):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * units[unit]


def flags_of(arguments):
    return dict(argument.removeprefix("--").split("=", 1) for argument in arguments if argument.startswith("--"))


def known_flags(program):
    """The flags of the program, or None without one."""
    if not program:
        return None
    page = subprocess.run([program, "anchor", "--help"], check=True, capture_output=True, text=True).stdout
    flags = set(re.findall(r"^\s+(?:-\w, )?--([a-z-]+)", page, re.MULTILINE))
    expect("listen" in flags, f"{program} anchor --help shows no flags")
    return flags


KNOWN = known_flags(os.environ.get("SWITCHBOARD"))


def port_of(address):
    return int(address.rsplit(":", 1)[1])


def setting(text, name):
    """The values of a keyword of sshd_config or ssh_config, in whatever line."""
    return re.findall(rf"^\s*{name} (\S+)", text, re.MULTILINE)


def keepalive(text, side):
    """Without an interval, which is OpenSSH's default, there are no keepalives."""
    interval, count = setting(text, f"{side}AliveInterval"), setting(text, f"{side}AliveCountMax")
    return min(map(int, interval), default=0) * min(map(int, count), default=3) or math.inf


def anchors_of(objects):
    """Each container that is an anchor, with its pod template."""
    for each in objects:
        template = each.get("spec", {}).get("template", {})
        pod = template.get("spec", {})
        for container in pod.get("initContainers", []) + pod.get("containers", []):
            if container.get("args", [""])[0] == "anchor":
                yield template, container


def check_container(name, template, container, flags):
    is_sidecar = container in template["spec"].get("initContainers", []) and container.get("restartPolicy") == "Always"
    expect(is_sidecar or container in template["spec"].get("containers", []), f"{name}: the anchor would end at once")
    admin = flags.get("admin", ":0")
    expect(not admin.startswith("127."), f"{name}: the kubelet's probes do not reach --admin={admin}")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        asked = container.get(probe, {}).get("httpGet", {})
        reached = ports.get(asked.get("port"), asked.get("port"))
        expect((asked.get("path"), reached) == (path, port_of(admin)), f"{name}: {probe} does not ask --admin for {path}")
    annotations = template["metadata"].get("annotations", {})
    expect(annotations.get("prometheus.io/port") == str(port_of(admin)), f"{name}: no scrape of --admin")
    limit = with_unit(container["resources"]["limits"]["memory"], BYTES)
    expect(limit >= with_unit(flags["memory"], BYTES) + OWN, f"{name}: --memory and the process need more than its limit")
    shell = template["spec"].get("securityContext", {}).get("runAsUser")
    expect(container["securityContext"].get("runAsUser") not in (None, shell), f"{name}: a shell can signal the anchor")
    return ports


def check(name, folder, objects):
    """The anchor of an example: `(Service, its longest --grace)` for each Service that leads to it."""
    beside = next(folder.rglob("sshd_config"), None)
    readme = (folder / "README.md").read_text()
    # An sshd elsewhere has its lines in a block of the README.
    config = beside.read_text() if beside else readme
    if (folder / "anchor.yaml").exists():
        config = (folder.parent / "ssh-container/sshd_config").read_text()
    found = list(anchors_of(objects))
    if found:
        template, container = found[0]
        flags = flags_of(container["args"])
        ports = check_container(name, template, container, flags)
    else:
        script = (folder / "image/s6-run-anchor").read_text().replace("\\\n", " ")
        flags, ports = flags_of(shlex.split(script.split("\nexec ")[-1])), {}
    unknown = sorted(set(flags) - KNOWN) if KNOWN is not None else []
    expect(not unknown, f"{name}: the anchor has no {unknown}")
    to = flags["to"].rsplit(":", 1)
    services = [each for each in objects if each["kind"] == "Service"]
    reached = {ports.get(port["targetPort"], port["targetPort"]) for each in services for port in each["spec"]["ports"]}
    dials_in = "dial" in flags
    if dials_in:
        services = list(yaml.safe_load_all((folder / "service.yaml").read_text()))[:1]
        served = "{name}.{namespace}:22".format(**services[0]["metadata"])
        expect(flags["serve"] == served and not reached, f"{name}: --serve={flags['serve']} is not {served}, or a Service leads past it")
    else:
        expect(port_of(flags["listen"]) in reached, f"{name}: no Service leads to --listen={flags['listen']}")
    if dials_in:
        expect(to[0] == "127.0.0.1", f"{name}: --to={flags['to']} is not in the pod")
    elif beside:
        expect([to[0]] == setting(config, "ListenAddress") == ["127.0.0.1"], f"{name}: sshd is not on loopback alone")
        expect([to[1]] == setting(config, "Port"), f"{name}: --to={flags['to']} is not the port of sshd")
        expect(int(to[1]) not in reached, f"{name}: a Service leads past the anchor")
    else:
        check_alone(name, objects, to[0])
    grace = with_unit(flags["grace"], SECONDS)
    expect(keepalive(config, "Client") >= grace, f"{name}: ClientAlive… of sshd_config ends a session before --grace")
    return {f"{each['metadata']['name']}.{each['metadata']['namespace']}": grace for each in services}


def check_alone(name, objects, to):
    """An anchor in a pod of its own: there is one, and no Service has addresses that pass it by."""
    expect(to not in ("127.0.0.1", "localhost"), f"{name}: there is no sshd in the pod of the anchor")
    for each in objects:
        if each["kind"] == "Deployment":
            expect(each["spec"]["replicas"] == 1, f"{name}: a session finds its own anchor only")
            expect(each["spec"]["strategy"] == {"type": "Recreate"}, f"{name}: a new anchor would answer beside the old one")
        if each["kind"] == "Service":
            expect(each["spec"].get("selector"), f"{name}: the Service does not lead to the anchor")
        expect(each["kind"] not in ("Endpoints", "EndpointSlice"), f"{name}: {each['kind']} leads past the anchor")


def check_users(name, readme, graces):
    """Each block of a user's ~/.ssh/config that leads to an anchor, whichever example has it."""
    for block in re.findall(r"^```ssh-config\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL):
        for host in re.split(r"^Host ", block, flags=re.MULTILINE)[1:]:
            service = ".".join(setting(host, "HostName")[0].split(".")[:2])
            expect(service in graces, f"{name}: no example has the Service {service}")
            expect(
                keepalive(host, "Server") >= graces.get(service, 0),
                f"{name}: ServerAlive… of README.md ends a session before --grace",
            )


def has_anchor(folder, objects):
    return any(folder.rglob("sshd_config")) or any(anchors_of(objects))


def main(examples, *rendered):
    folders = {Path(examples) / Path(file).stem.removeprefix("example-"): file for file in rendered}
    graces, checked = {}, 0
    for folder, file in folders.items():
        objects = list(yaml.safe_load_all(Path(file).read_text()))
        if has_anchor(folder, objects):
            graces |= check(folder.name, folder, objects)
            checked += 1
    for folder in folders:
        check_users(folder.name, (folder / "README.md").read_text(), graces)
    print("\n".join(faults) or f"{checked} anchors")
    sys.exit(bool(faults) or checked < 5)


main(*sys.argv[1:])

"""Holds rules and dashboard to a real scrape: `scrape.py PROGRAM RULES DASHBOARD` exits 1 after a fault.

A proxy runs on loopback, with TLS, access, an API server and an anchor's target, and carries some tunnels. Every metric that
an expression names is on its page, with every label by which an expression selects or groups, and every value that it
selects by.
"""

import json
import re
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from record import USERS, ApiServer, Instance, ssh_server

# What Prometheus adds to each series.
OF_SCRAPE = {"namespace", "job", "pod", "instance", "le"}
SELECTOR = re.compile(r"\b((?:switchboard|process)_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")


def certificates(folder):
    """A certificate, and a revocation list of its own authority."""
    key, crt, crl = (str(folder / name) for name in ("tls.key", "tls.crt", "ca.crl"))
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=ssh.example.com"]
    subprocess.run(["openssl", "req", "-x509", *curve, "-keyout", key, "-out", crt], **quiet)
    (folder / "index").touch()
    (folder / "number").write_text("01\n")
    (folder / "ca.conf").write_text(
        f"[ca]\ndefault_ca = own\n[own]\ndatabase = {folder}/index\ncrlnumber = {folder}/number\ndefault_md = sha256\n"
        "crl_extensions = extensions\n[extensions]\nauthorityKeyIdentifier = keyid:always\n"
    )
    own = ["-config", str(folder / "ca.conf"), "-keyfile", key, "-cert", crt]
    subprocess.run(["openssl", "ca", "-gencrl", *own, "-crldays", "30", "-out", crl], **quiet)
    return key, crt, crl


def scraped(program, folder):
    """The page of a proxy that has done a little of everything."""
    key, crt, crl = certificates(folder)
    (folder / "users").write_text(USERS)
    kubeconfig = ApiServer().kubeconfig(folder)
    target = ssh_server()
    config = {
        "tls": {"certificates": [{"cert": crt, "key": key}], "client_auth": "optional", "client_ca": crt, "crl": crl},
        "access": {
            "mode": "report",
            "kubernetes": {"enabled": True, "kubeconfig": kubeconfig},
            "tickets": {"enabled": True},
            "users": {"file": str(folder / "users")},
        },
        "allowlist": {
            "kubernetes": {"enabled": True, "kubeconfig": kubeconfig, "wake": True, "report_activity": True, "events": True},
            "static": [
                {"name": "devbox:22", "addresses": [target], "limits": {"download": "1MiB/s"}},
                {"name": "lab:22", "dials_in": {"users": ["alice"]}},
            ],
        },
    }
    proxy = Instance(program, folder, config, "ssh", "a", tls="optional")
    deadline = time.time() + 60
    while proxy.scrape() is None:
        if proxy.process.poll() is not None or time.time() > deadline:
            raise SystemExit(f"the proxy does not run:\n{proxy.log.read_text()}")
        time.sleep(0.1)
    try:
        tunnel = proxy.connect()
        context = ssl.create_default_context(cafile=crt)
        context.check_hostname = False
        secure = proxy.connect(context=context)
        if not tunnel or not secure:
            raise SystemExit(f"no tunnel:\n{proxy.log.read_text()}")
        secure.close()
        return proxy.scrape()
    finally:
        proxy.process.kill()
        proxy.process.wait()


def main():
    program, rules, dashboard = sys.argv[1], *map(Path, sys.argv[2:])
    alerts = [rule["expr"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    panels = json.loads(dashboard.read_text())["panels"]
    expressions = alerts + [target["expr"] for panel in panels for target in panel.get("targets", [])]
    with tempfile.TemporaryDirectory() as folder:
        page = scraped(program, Path(folder))
    series = {}
    for key in page:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', key))
        series.setdefault(key.split("{")[0], []).append(labels)
    faults, seen = [], 0
    for text in expressions:
        # Each grouping belongs to one of the metrics of its expression.
        grouped = {label.strip() for inside in GROUPED.findall(text) for label in inside.split(",")} - OF_SCRAPE - {""}
        known = set()
        for name, matchers in SELECTOR.findall(text):
            seen += 1
            if name not in series:
                faults.append(f"{name} is not on the page: {text}")
                continue
            known |= {label for labels in series[name] for label in labels}
            for label, how, wanted in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers or ""):
                values = {labels.get(label) for labels in series[name]} - {None}
                if label in OF_SCRAPE:
                    continue
                if not values:
                    faults.append(f"{name} has no label {label}: {text}")
                elif how in ("=", "=~") and not set(wanted.split("|") if how == "=~" else [wanted]) <= values:
                    faults.append(f"{name} has no {label} {wanted}, but {sorted(values)}: {text}")
        if not grouped <= known:
            faults.append(f"no metric has the labels {sorted(grouped - known)}: {text}")
    for each in faults:
        print(each)
    print(f"{seen} names in {len(expressions)} expressions, {len(series)} metrics on the page, {len(faults)} faults")
    sys.exit(bool(faults))


main()

"""Compares the names of objects in documents with a rendering: `names.py ROOT RENDERING…` exits 1 after a fault.

The renderings are of the release `switchboard` in the namespace `switchboard`, as the documents have it.
"""

import re
import sys
from pathlib import Path

import yaml

KINDS = {
    "service": "Service", "svc": "Service", "deployment": "Deployment", "deploy": "Deployment", "job": "Job", "configmap": "ConfigMap",
    "serviceaccount": "ServiceAccount", "clusterrole": "ClusterRole", "role": "Role", "networkpolicy": "NetworkPolicy", "hpa": "HorizontalPodAutoscaler",
}
OBJECT = re.compile(rf"\b({'|'.join(KINDS)})s?[/ =]`?(switchboard(?:-[a-z]+)*)\b(?![./:])")
ADDRESS = re.compile(r"\b(switchboard(?:-[a-z]+)*)\.(?!yaml)([a-z][-a-z0-9]*)(?:\.svc[.a-z]*)?:(\d+)")
ACCOUNT = re.compile(r"system:serviceaccount:[A-Za-z-]+:(switchboard[-a-z]*)")


def main():
    root, *renderings = map(Path, sys.argv[1:])
    objects = [each for path in renderings for each in yaml.safe_load_all(path.read_text()) if each]
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    ports = {
        (each["metadata"]["name"], each["metadata"]["namespace"], str(port["port"]))
        for each in objects
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    faults, seen = [], 0
    documents = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("deploy/**/*.md"), *root.glob("deploy/examples/**/*.yaml")]
    for path in documents:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.relative_to(root)}:{number}"
            for kind, name in OBJECT.findall(line):
                seen += 1
                if (KINDS[kind], name) not in names:
                    faults.append(f"{where}: there is no {KINDS[kind]} {name}")
            for address in ADDRESS.findall(line):
                seen += 1
                if address not in ports:
                    faults.append(f"{where}: no Service {address[0]} of {address[1]} has the port {address[2]}")
            for name in ACCOUNT.findall(line):
                seen += 1
                if ("ServiceAccount", name) not in names:
                    faults.append(f"{where}: there is no ServiceAccount {name}")
    if seen < 5:
        faults.append("hardly any name was found: does the check still know how documents write them?")
    for each in faults:
        print(each)
    print(f"{seen} names in {len(documents)} documents, {len(faults)} faults")
    sys.exit(bool(faults))


main()

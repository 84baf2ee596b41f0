"""Renders the chart with hundreds of sets of values: `matrix.py HELM CHART WORK PROGRAM` exits 1 after a fault.

The sets: null at every path of the schema in turn, a value of another type at every path, odd names of releases and
namespaces, and those of matrix.yaml. A set is either refused with a sentence, or its objects are valid, no looser than
without it, and `switchboard check` accepts their configuration. What `check` refuses, in the words of matrix.yaml, the chart
refuses with the same words.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jsonschema
import kubernetes_validate
import kubernetes_validate.utils
import yaml

import objects

# Each schema is read once, not for each object.
kubernetes_validate.utils.schema_contents = functools.lru_cache(None)(kubernetes_validate.utils.schema_contents)
objects.VERSIONS = objects.VERSIONS[-1:]

# Sections whose objects the default values do not have: null in them is tried with all of them enabled.
RICH = ("config", "access", "tls", "autoscaling", "checkHook", "configCheck", "ports", "service", "tlsRoute", "volumes", "deployment")
# An answer of helm that is no sentence of the chart.
UNCLEAR = re.compile(r"nil pointer|YAML parse error|error converting YAML|can't evaluate|wrong type for value|interface \{\}|incompatible types")

HELM, CHART, WORK, PROGRAM = sys.argv[1:5]
WORK = Path(WORK)
# Helm lives for a tenth of a second: collecting garbage would take a third of it.
ENVIRONMENT = {**os.environ, "GOGC": "400", "GOMAXPROCS": "1"}
TABLE = yaml.load((Path(__file__).parent / "matrix.yaml").read_text(), Loader=yaml.CSafeLoader)

# Without it nothing is rendered.
IMAGE = {"image": {"registry": "localhost"}}


def overlay(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def merged(under, over):
    """Values over others, as helm merges them."""
    if isinstance(under, dict) and isinstance(over, dict):
        return {**under, **{key: merged(under.get(key), value) for key, value in over.items()}}
    return over


def paths(schema, defs, prefix=""):
    """Every path of the schema, with the types that it allows."""
    if "$ref" in schema:
        target = defs
        for key in schema["$ref"].removeprefix("#/").split("/"):
            target = target[key]
        schema = target
    if prefix:
        yield prefix, schema
    for key, inner in schema.get("properties", {}).items():
        yield from paths(inner, defs, f"{prefix}.{key}" if prefix else key)


def other_type(schema):
    """A value that YAML gives where another was meant: a number for a text, a text for a number, and so on."""
    types = schema.get("type", "string")
    types = [types] if isinstance(types, str) else types
    if "enum" in schema or "string" in types:
        return 123
    if "integer" in types or "number" in types or "boolean" in types:
        return "1"
    return "text" if "array" in types or "object" in types else []


def cases():
    """Each set: its name, flags of helm, files of values, and the set of which it must not be looser."""
    schema = json.loads((Path(CHART) / "values.schema.json").read_text())
    validator = jsonschema.Draft7Validator(schema)
    defaults = yaml.safe_load((Path(CHART) / "values.yaml").read_text())
    for path, inner in paths(schema, schema):
        section = path.split(".")[0]
        base = "rich" if section in RICH else "monitored" if section == "metrics" else "plain"
        yield f"{path}: null", [], [TABLE[base], overlay(path, None)], base
        odd = overlay(path, other_type(inner))
        # Most are refused by the schema, whose answer needs no helm.
        if "properties" not in inner and validator.is_valid(merged(defaults, odd)):
            yield f"{path}: {other_type(inner)!r}", [], [odd], None
    for release, namespace in TABLE["names"]:
        yield f"release {release} in {namespace}", [str(release), "--namespace", str(namespace)], [TABLE["rich"]], None
    for index, values in enumerate(TABLE["valid"]):
        yield f"valid {index}: {json.dumps(values)[:80]}", [], [values], None


def render(flags, files):
    flags = flags or ["switchboard", "--namespace", "ssh"]
    with tempfile.TemporaryDirectory() as folder:
        values = []
        for index, each in enumerate([IMAGE, *files]):
            path = Path(folder) / f"{index}.yaml"
            path.write_text(json.dumps(each))
            values += ["--values", str(path)]
        command = [HELM, "template", *flags[:1], CHART, *flags[1:], *values]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr


def is_clear(answer):
    return not UNCLEAR.search(answer) and re.search(r"at '|: ", answer) is not None


def admitted(where, each):
    """What the API server refuses, and no schema knows."""
    metadata = each["metadata"]
    for labels in (metadata.get("labels", {}), each.get("spec", {}).get("selector", {}) if each["kind"] == "Service" else {}):
        for key, value in labels.items():
            if not isinstance(value, str) or len(value) > 63:
                objects.fault(where, f"label {key}: {value!r}")
    if each["kind"] == "Service":
        ports = each["spec"]["ports"]
        for key in ("port", "nodePort", "name"):
            numbers = [port[key] for port in ports if key in port]
            if len(numbers) != len(set(numbers)):
                objects.fault(where, f"{key} twice")
    for owner, template in objects.pods([each]):
        spec = template["spec"]
        for what, names in (
            ("volume", [volume["name"] for volume in spec.get("volumes", [])]),
            ("container", [container["name"] for container in objects.containers(spec)]),
        ):
            if len(names) != len(set(names)) or not all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names):
                objects.fault(where, f"{what}s {names}")
        for container in objects.containers(spec):
            mounts = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            if len(mounts) != len(set(mounts)):
                objects.fault(where, f"mounts at {mounts}")
    if each["kind"] == "Deployment" and each["spec"]["strategy"]["type"] != "RollingUpdate" and "rollingUpdate" in each["spec"]["strategy"]:
        objects.fault(where, "rollingUpdate beside another strategy")
    if each["kind"] == "NetworkPolicy":
        for rule in each["spec"]["egress"]:
            for key in ("to", "ports"):
                if key in rule and not rule[key]:
                    objects.fault(where, f"a rule whose {key} is empty admits everything")
            if not rule.get("ports"):
                objects.fault(where, "a rule without ports")


def restrictions(rendered):
    """What a rendering restricts, comparable with that of another."""
    found = {}
    for each in rendered:
        if each["kind"] == "NetworkPolicy":
            found["open egress"] = {port["port"] for rule in each["spec"]["egress"] if "to" not in rule for port in rule["ports"]}
            found["open ingress"] = {port["port"] for rule in each["spec"]["ingress"] if "from" not in rule for port in rule["ports"]}
        if each["kind"] in ("Deployment", "DaemonSet"):
            pod = each["spec"]["template"]["spec"]
            free = ("runAsUser", "runAsGroup", "fsGroup")
            found["pod"] = {key: value for key, value in pod["securityContext"].items() if key not in free}
            found["containers"] = [container.get("securityContext") for container in pod["containers"][:1]]
            found["strategy"] = each["spec"].get("strategy") or each["spec"].get("updateStrategy")
        found.setdefault("kinds", []).append(each["kind"])
    [config] = {text for _, text in objects.configurations(rendered)}
    config = yaml.load(config, Loader=objects.Loader)
    found["access"] = (config.get("access") or {}).get("mode")
    found["listen"] = [(port.get("tls"), port.get("proxy_protocol")) for port in config["listen"]]
    found["client_auth"] = (config.get("tls") or {}).get("client_auth")
    kubernetes = (config.get("allowlist") or {}).get("kubernetes") or {}
    if kubernetes.get("enabled"):
        found["namespaces"] = kubernetes.get("namespaces")
    found["ceiling"] = ((config.get("limits") or {}).get("ceiling") or {}).get("download")
    return found


def looser(now, before):
    """The restrictions of `before` that `now` lacks."""
    for key in ("open egress", "open ingress"):
        if now.get(key, {"everything"}) - before[key]:
            yield f"{key}: {now.get(key)}"
    for key in ("pod", "containers", "strategy", "access", "listen", "client_auth"):
        if now[key] != before[key]:
            yield f"{key}: {now[key]}, and {before[key]} without it"
    if "namespaces" in now and now["namespaces"] != before["namespaces"]:
        yield f"namespaces: {now['namespaces']}"
    for kind in ("NetworkPolicy", "PodDisruptionBudget"):
        if kind in before["kinds"] and kind not in now["kinds"]:
            yield f"no {kind}"


@functools.lru_cache(None)
def baseline(name):
    accepted, text = render([], [TABLE[name]])
    assert accepted, text
    return restrictions([each for each in yaml.load_all(text, Loader=objects.Loader) if each])


SEEN = set()


def accepted_by_program(config):
    """Shows the program a configuration, with files instead of those that Secrets would bring."""
    files = WORK / "matrix-files"
    text = re.sub(r"(?<=[ :])/(tls|access)/", rf"{files}/\1/", config)
    text = text.replace("/var/lib/switchboard/", f"{files}/state/")
    for path in re.findall(rf"{re.escape(str(files))}/(?:tls|access)/[^ ,}}\"\n]*", text):
        source = WORK / "tls" / {"crt": "tls.crt", "key": "tls.key", "crl": "ca.crl", "json": "jwks.json"}.get(path.rsplit(".", 1)[-1], "users")
        source = WORK / "tls" / "ca.crt" if path.endswith("ca.crt") else source
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if not Path(path).exists():
            own = Path(f"{path}.{os.getpid()}")
            own.write_bytes(source.read_bytes())
            own.replace(path)
    (files / "state").mkdir(parents=True, exist_ok=True)
    done = subprocess.run([PROGRAM, "check", "-"], input=text, capture_output=True, text=True)
    return done.returncode == 0, done.stderr


def judge(case):
    """The faults of one set, whether it was rendered, and its custom resources."""
    name, flags, files, before = case
    accepted, text = render(flags, files)
    if name.startswith("valid ") and not accepted:
        return [f"{name}: refused: {text[:600]}"], False, []
    if not accepted:
        return ([] if is_clear(text) else [f"{name}: no sentence: {text[:400]}"]), False, []
    objects.faults.clear()
    custom = []
    try:
        rendered = [each for each in yaml.load_all(text, Loader=objects.Loader) if each]
        for each in rendered:
            digest = hashlib.sha256(json.dumps(each, sort_keys=True).encode()).digest()
            if digest in SEEN:
                continue
            SEEN.add(digest)
            where = f"{name}: {objects.name(each)}"
            if not objects.against_schema(where, each):
                custom.append({"where": where, "object": each})
            admitted(where, each)
        objects.promises_of_any(name, rendered)
        objects.one_name_each(name, rendered)
        if before:
            for each in looser(restrictions(rendered), baseline(before)):
                objects.fault(name, f"looser: {each}")
        for config in {config for _, config in objects.configurations(rendered)}:
            if config not in SEEN:
                SEEN.add(config)
                is_sound, answer = accepted_by_program(config)
                if not is_sound:
                    objects.fault(name, f"check refuses what was rendered: {answer}")
    except Exception as error:
        objects.fault(name, f"{type(error).__name__}: {error}")
    return list(objects.faults), True, custom


def judge_refusal(entry):
    """A configuration that `check` refuses: the chart says the same. `of`: values with which it renders but for this."""
    config, further = entry["config"], entry.get("values", {})
    base = {"listen": [{"address": "0.0.0.0:8080", "refusals": "auto"}], "admin": "0.0.0.0:9090", **config}
    is_sound, answer = accepted_by_program(json.dumps(base).replace(": /", ":/"))
    name = f"refused: {json.dumps(config)}"
    if is_sound:
        return [f"{name}: check accepts it"]
    accepted, text = render([], [{**further, "config": config}])
    if accepted:
        return [f"{name}: rendered, and check says: {answer}"]
    if entry["says"] not in answer:
        return [f"{name}: check says {answer}"]
    if entry["says"] not in text:
        return [f"{name}: the chart says {text[:500]}"]
    return []


def collisions():
    """Two releases of one name in two namespaces, both with objects elsewhere: no object is of both."""
    seen = {}
    for release, namespace in TABLE["neighbours"]:
        accepted, text = render([release, "--namespace", namespace], [TABLE["neighbour"]])
        if not accepted:
            yield f"{release} in {namespace}: {text}"
            continue
        for each in yaml.load_all(text, Loader=objects.Loader):
            owner = seen.setdefault(objects.name(each), (release, namespace))
            if owner != (release, namespace):
                yield f"{objects.name(each)} is of {owner} and of {(release, namespace)}"


def umbrella():
    """The chart below another one, under its condition, and with null from there."""
    folder = WORK / "umbrella"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "charts").mkdir(parents=True, exist_ok=True)
    (folder / "Chart.yaml").write_text(
        "apiVersion: v2\nname: umbrella\nversion: 1.0.0\ndependencies:\n"
        "  - {name: switchboard, version: 0.1.0, repository: '', condition: switchboard.enabled}\n"
    )
    link = folder / "charts" / "switchboard"
    if not link.is_symlink():
        link.symlink_to(CHART)
    for values, expected in (
        ({"enabled": True}, "kind: Deployment"),
        ({"enabled": False}, ""),
        ({"enabled": True, "networkPolicy": {"targets": None}}, "targets"),
        ({"enabled": True, "livenessProbe": None}, "livenessProbe"),
        ({"enabled": True, "config": {"access": {"mode": None}}}, "it restricts"),
    ):
        (folder / "own.yaml").write_text(json.dumps({"switchboard": {**IMAGE, **values}}))
        command = [HELM, "template", "ssh", str(folder), "--values", str(folder / "own.yaml")]
        done = subprocess.run(command, capture_output=True, text=True)
        text = done.stdout + done.stderr
        if expected not in text or (not expected and "kind:" in text) or UNCLEAR.search(text):
            yield f"umbrella chart with {values}: {text[:400]}"


def main():
    began = time.monotonic()
    faults, custom = [], []
    all_cases = list(cases())
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        judged = list(pool.map(judge, all_cases, chunksize=8))
        refusals = list(pool.map(judge_refusal, TABLE["refused"], chunksize=4))
    for found, _, resources in judged:
        faults += found
        custom += resources
    for found in refusals:
        faults += found
    faults += [*collisions(), *umbrella()]
    unique = {json.dumps(each["object"], sort_keys=True): each for each in custom}
    (WORK / "custom-matrix.json").write_text(json.dumps(list(unique.values())))
    rendered = sum(was for _, was, _ in judged)
    for each in faults:
        print(each)
    summary = (
        f"{len(all_cases)} sets, {rendered} rendered, {len(all_cases) - rendered} refused with a sentence, "
        f"{len(TABLE['refused'])} sentences of check, {len(faults)} faults, {time.monotonic() - began:.0f} s"
    )
    (WORK / "matrix.txt").write_text(f"{summary}\n")
    print(summary)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()

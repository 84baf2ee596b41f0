"""Checks alerts and dashboard against the documents: `monitoring.py DOCS RULES DASHBOARD TESTS` exits 1 after a fault.

Every metric of metrics.md is on a panel or in an alert. Every alert has a section of operations.md, to which its
runbook_url leads, and tests that see it fire and see it stay quiet.
"""

import json
import re
import sys
from pathlib import Path

import yaml

faults = []


def fault(what):
    faults.append(what)


def metrics_of(text):
    """The names in the first column of the table; a row may end with labels. Anchors run beside SSH servers: the dashboard
    and the alerts are the proxy's."""
    names = re.findall(r"^\| `([a-z_]+)[{`]", text, re.MULTILINE)
    return [name for name in names if not name.startswith("switchboard_anchor_")]


def read(name, expressions):
    """Whether an expression reads the metric, or a series of it if it is a histogram."""
    return re.search(rf"\b{name}(_bucket|_sum|_count)?\b", expressions) is not None


def every_metric_is_read(documented, alerts, panels):
    expressions = "\n".join([alert["expr"] for alert in alerts] + panels)
    for name in documented:
        if not read(name, expressions):
            fault(f"{name} is on no panel and in no alert")


def every_alert_has_a_runbook(alerts, operations):
    sections = re.findall(r"^### (Switchboard\w+)$", operations, re.MULTILINE)
    for alert in alerts:
        name = alert["alert"]
        annotations = alert["annotations"]
        if name not in sections:
            fault(f"{name} has no section in docs/operations.md")
        if not annotations.get("runbook_url", "").endswith(f"/docs/operations.md#{name.lower()}"):
            fault(f"{name}: its runbook_url does not lead to its section")
        if not {"summary", "description"} <= annotations.keys():
            fault(f"{name} has no summary or no description")
        if alert["labels"]["severity"] not in ("critical", "warning", "info"):
            fault(f"{name} has another severity than critical, warning and info")
        if f"\n### {name}\n\n{alert['labels']['severity'].capitalize()}" not in operations:
            fault(f"{name}: its section does not begin with its severity, {alert['labels']['severity']}")
    for name in sorted(set(sections) - {alert["alert"] for alert in alerts}):
        fault(f"docs/operations.md has a section for {name}, which is no alert")


def every_alert_is_tested(alerts, tests):
    """A test of one alert selects it by name and by the state `firing`, and expects samples or none."""
    fires, quiet = set(), set()
    for test in tests["tests"]:
        for step in test.get("promql_expr_test", []):
            selected = re.fullmatch(r'ALERTS\{alertname="(\w+)", alertstate="firing"\}', step["expr"])
            if selected:
                (fires if step["exp_samples"] else quiet).add(selected[1])
        for step in test.get("alert_rule_test", []):
            (fires if step["exp_alerts"] else quiet).add(step["alertname"])
    for alert in alerts:
        if alert["alert"] not in fires:
            fault(f"no test sees {alert['alert']} fire")
        if alert["alert"] not in quiet:
            fault(f"no test sees {alert['alert']} stay quiet")


def main():
    docs, rules, dashboard, tests = map(Path, sys.argv[1:])
    alerts = [rule for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    panels = [target["expr"] for panel in json.loads(dashboard.read_text())["panels"] for target in panel.get("targets", [])]
    documented = metrics_of((docs / "metrics.md").read_text())
    if len(documented) < 20:
        fault("docs/metrics.md: its table was not found")
    every_metric_is_read(documented, alerts, panels)
    every_alert_has_a_runbook(alerts, (docs / "operations.md").read_text())
    every_alert_is_tested(alerts, yaml.safe_load(tests.read_text()))
    for each in faults:
        print(each)
    print(f"{len(documented)} metrics, {len(alerts)} alerts, {len(panels)} expressions, {len(faults)} faults")
    sys.exit(bool(faults))


main()

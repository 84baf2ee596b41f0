"""Checks the chart's own documents: `chart.py CHART WORK` exits 1 after a fault.

Every value in the table of README.md exists in values.yaml, and its headings are those that links lead to. The examples of
README.md are written to WORK/readmeN-values.yaml, to be rendered as those of ci/ are.
"""

import re
import sys
from pathlib import Path

import yaml

# https://artifacthub.io/docs/topics/annotations/helm/
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
faults = []


def anchor(heading):
    """As GitHub makes it."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def main():
    chart, work = map(Path, sys.argv[1:])
    readme = (chart / "README.md").read_text()
    values = yaml.safe_load((chart / "values.yaml").read_text())
    named = re.findall(r"^\| `([A-Za-z.]+)` \|", readme, re.MULTILINE)
    for path in named:
        part = values
        for key in path.split("."):
            if not isinstance(part, dict) or key not in part:
                faults.append(f"README.md names {path}, which values.yaml does not have")
                break
            part = part[key]
    for target, heading in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", readme):
        linked = (chart / target).read_text() if target else readme
        if heading not in {anchor(each) for each in re.findall(r"^#+ (.+)$", linked, re.MULTILINE)}:
            faults.append(f"README.md: {target}#{heading} leads nowhere")
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    for key in ("home", "sources", "icon", "kubeVersion", "maintainers"):
        if not metadata.get(key):
            faults.append(f"Chart.yaml has no {key}")
    # Artifact Hub ignores an annotation that it cannot read.
    for key, fields in (("images", {"name", "image"}), ("changes", {"kind", "description"})):
        entries = yaml.safe_load(metadata["annotations"][f"artifacthub.io/{key}"])
        if not entries or any(set(each) != fields for each in entries):
            faults.append(f"Chart.yaml: artifacthub.io/{key} is no list of {sorted(fields)}")
        if any(each.get("kind", "added") not in KINDS for each in entries):
            faults.append(f"Chart.yaml: artifacthub.io/{key} has another kind than {KINDS}")
    examples = re.findall(r"^```yaml\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    for index, text in enumerate(examples):
        (work / f"readme{index}-values.yaml").write_text(text)
    for each in faults:
        print(each)
    print(f"{len(named)} values, {len(examples)} examples, {len(faults)} faults")
    sys.exit(bool(faults) or not named or not examples)


main()

"""Records the series of real runs: `record.py PROGRAM [MINUTES]` writes recorded.yaml, from 27 minutes of each situation.

The processes run side by side on loopback, with an API server of this script, and are scraped every 30 s. Only series that the
alerts read are kept. promtool begins at 0, so timestamps are those since the start, and one second. The expectations in
recorded.yaml stay.
"""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

HERE = Path(__file__).parent
RULES = HERE.parent / "helm" / "switchboard" / "files" / "rules.yaml"
INTERVAL = 30
WATCHED = ("switchboard_endpoint_errors_total", "switchboard_watch_errors_total")
KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:PORT"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
"""
# A user whose password is `secret`.
USERS = "alice:$2y$10$0hX4wl.ZMfWeB3hHUrC.Me3e6npx9X/3RBJnTjeCIChs9tCkh5dNK\n"


class ApiServer:
    """Empty lists and silent watches; 403 for everything if it forbids."""

    def __init__(self, forbids=False):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                is_watch = "watch=true" in self.path
                reason = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}
                items = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
                body = json.dumps(reason if forbids else items).encode()
                self.send_response(403 if forbids else 200)
                self.send_header("Content-Type", "application/json")
                if is_watch and not forbids:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self.wfile.flush()
                    seconds = re.search(r"timeoutSeconds=(\d+)", self.path)
                    closed.wait(int(seconds[1]) if seconds else 60)
                    self.wfile.write(b"0\r\n\r\n")
                    return
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        closed = self.closed = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kubeconfig(self, folder):
        path = Path(folder) / f"kubeconfig-{self.server.server_port}"
        path.write_text(KUBECONFIG.replace("PORT", str(self.server.server_port)))
        return str(path)

    def stop(self):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()


def ssh_server():
    """Answers with an identification, and reads until the end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection):
        with connection:
            connection.sendall(b"SSH-2.0-target\r\n")
            while connection.recv(4096):
                pass

    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return "127.0.0.1:%d" % listener.getsockname()[1]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Instance:
    """A process, and the labels that Prometheus would give its series."""

    def __init__(self, program, folder, config, namespace, pod, tls="off"):
        self.labels = {"namespace": namespace, "job": "switchboard", "pod": pod, "instance": f"{pod}:9090"}
        self.port, self.admin = free_port(), free_port()
        path = Path(folder) / f"{self.port}.yaml"
        listen = {"address": f"127.0.0.1:{self.port}", "tls": tls}
        whole = {"listen": listen, "admin": f"127.0.0.1:{self.admin}", **config}
        path.write_text(json.dumps(whole))
        self.log = Path(folder) / f"{self.port}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([program, "serve", "--config", str(path)], stdout=log, stderr=log)
        self.samples = []

    def connect(self, name="devbox:22", context=None):
        """Asks for a target. The socket, if there is a tunnel."""
        client = socket.create_connection(("127.0.0.1", self.port), 5)
        client.settimeout(15)
        if context:
            client = context.wrap_socket(client)
        client.sendall(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\nSSH-2.0-client\r\n".encode())
        if b" 200 " in client.recv(4096):
            return client
        client.close()
        return None

    def scrape(self):
        """The series as text, by name with labels; None if the process does not answer."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=10)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except OSError:
            return None
        finally:
            connection.close()
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))


def situations(program, folder):
    """Name, instances, and steps: the second, and what happens."""
    target = ssh_server()

    def static(count):
        return {"static": [{"name": f"devbox{index or ''}:22", "addresses": [target]} for index in range(count)]}

    def run(config, namespace, pod):
        return Instance(program, folder, config, namespace, pod)

    forbidden, sound, mortal = ApiServer(forbids=True), ApiServer(), ApiServer()
    cluster = {"enabled": True, "kubeconfig": forbidden.kubeconfig(folder)}
    yield "a watch that is forbidden from the start", [run({"allowlist": {"kubernetes": cluster}}, "ssh", "a")], []

    access = {"mode": "report", "kubernetes": {"enabled": True, "kubeconfig": sound.kubeconfig(folder)}}
    yield "a static list beside access of a cluster", [run({"allowlist": static(2), "access": access}, "ssh", "a")], []

    users = Path(folder) / "users"
    users.write_text(USERS)
    inward = {"static": [{"name": "lab:22", "dials_in": {"users": ["alice"]}}]}
    lab = run({"allowlist": inward, "access": {"users": {"file": str(users)}}}, "ssh", "a")
    yield "a target without an anchor", [lab], [(second, lambda: lab.connect("lab:22")) for second in range(120, 1800, 4)]

    drain = {"delay": "1s", "timeout": "2h", "spread": "5m"}
    old = run({"allowlist": static(3), "drain": drain}, "ssh", "old")
    fresh = [run({"allowlist": static(5)}, "ssh", pod) for pod in ("new-a", "new-b")]
    held = []
    yield (
        "a rollout with a changed list, whose old pod drains",
        [old, *fresh],
        [(60, lambda: held.append(old.connect())), (90, lambda: old.process.send_signal(signal.SIGTERM))],
    )

    cluster = {"enabled": True, "kubeconfig": mortal.kubeconfig(folder)}
    yield "an API server that is gone after two minutes", [run({"allowlist": {"kubernetes": cluster}}, "ssh", "a")], [(120, mortal.stop)]

    one = [run({"allowlist": static(1)}, "one", pod) for pod in ("a", "b")]
    two = [run({"allowlist": static(1)}, "two", pod) for pod in ("a", "b")]
    yield "one of two installations is gone after six minutes", [*one, *two], [(360, lambda: [each.process.kill() for each in one])]

    healthy = [run({"allowlist": static(2)}, "ssh", pod) for pod in ("a", "b")]

    def visit(index):
        client = healthy[index % 2].connect()
        if client:
            with client:
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass

    yield "a healthy pair with traffic", healthy, [(second, lambda second=second: visit(second // 5)) for second in range(10, 1800, 5)]


def attempt(step):
    """A step of a situation, which may wait for an answer, or get none."""
    try:
        step()
    except OSError:
        pass


def encoded(values):
    """promtool's notation of samples."""
    parts = []
    for value in values:
        if parts and parts[-1][0] == value:
            parts[-1][1] += 1
        else:
            parts.append([value, 1])
    def word(value, count):
        if value is None:
            return f"_x{count}"
        return value if count == 1 else f"{value}x{count - 1}"
    return " ".join(word(*part) for part in parts)


def series_of(instance, began, names):
    """What a Prometheus would have of an instance."""
    found = sorted({key for sample in instance.samples for key in sample or {}})
    up = [None if sample is None else "1" for sample in instance.samples]
    for key, values in [("up", up), *((key, [(sample or {}).get(key) for sample in instance.samples]) for key in found)]:
        name = key.split("{")[0]
        # A counter that stays 0 raises nothing; these two are there where a cluster is watched.
        is_idle = set(values) <= {"0", None} and name.endswith(("_total", "_bucket", "_count"))
        if name not in names or (is_idle and name not in WATCHED):
            continue
        if name.endswith("_timestamp_seconds"):
            values = [value and (f"{max(float(value) - began + 1, 0):.0f}" if float(value) else "0") for value in values]
        own = [f'{label}="{value}"' for label, value in instance.labels.items()]
        own += re.findall(r'\w+="[^"]*"', key)
        yield {"series": f"{name}{{{', '.join(own)}}}", "values": encoded(values)}


class Dumper(yaml.SafeDumper):
    """A series is one line."""

    def represent_mapping(self, tag, mapping, flow_style=None):
        return super().represent_mapping(tag, mapping, flow_style or "series" in mapping)


def main():
    program, minutes = sys.argv[1], int((sys.argv[2:] or ["27"])[0])
    names = set(re.findall(r"\b(?:switchboard|process)_\w+|\bup\b", RULES.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        running = list(situations(program, folder))
        steps = sorted(((second, step) for _, _, steps in running for second, step in steps), key=lambda pair: pair[0])
        time.sleep(3)
        try:
            for tick in range(minutes * 60 // INTERVAL + 1):
                for _, instances, _ in running:
                    for each in instances:
                        each.samples.append(each.scrape())
                while time.time() < began + 3 + (tick + 1) * INTERVAL:
                    while steps and steps[0][0] <= time.time() - began:
                        threading.Thread(target=attempt, args=(steps.pop(0)[1],), daemon=True).start()
                    time.sleep(0.2)
        finally:
            for _, instances, _ in running:
                for each in instances:
                    each.process.kill()
        path = HERE / "recorded.yaml"
        text = path.read_text() if path.exists() else "tests: []"
        known = {test["name"]: test for test in yaml.safe_load(text)["tests"]}
        tests = []
        for name, instances, _ in running:
            series = [entry for each in instances for entry in series_of(each, began, names)]
            expected = {key: value for key, value in known.get(name, {}).items() if key not in ("name", "interval", "input_series")}
            tests.append({"name": name, "interval": f"{INTERVAL}s", "input_series": series, **expected})
        head = "# Written by record.py from real runs, but for what is expected: a unit test for promtool.\n"
        body = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": tests}
        path.write_text(head + yaml.dump(body, Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True))


if __name__ == "__main__":
    main()

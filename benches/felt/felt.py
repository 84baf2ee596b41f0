"""Measures what a user of ssh feels: logins, copies and keystrokes, by each way to one sshd, on loopback.

Each figure is a median; the ways take turns, so that a slow minute is everybody's. With a round trip, a delay line (`Line`) is
in front of the way's public port: it delays bytes, and the connect by a round trip, and has no window of its own, as a
network without loss has that is faster than the copy. `benches/felt/run` brings the programs.

    felt.py [--quick] [--only NAME,…] [--write]

--write puts the tables into docs/performance.md, too.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SWITCHBOARD, ENVOY, WEBSOCAT = (os.environ.get(name, "") for name in ("SWITCHBOARD", "ENVOY", "WEBSOCAT"))
QUICK = "--quick" in sys.argv
USER = subprocess.check_output(["id", "-un"], text=True).strip()
# Round trips in milliseconds.
TRIPS = [0, 20, 100]
TARGET = "target.bench"
CONFIGURATION = """
listen:
  - "127.0.0.1:{http}"
  - {{address: "127.0.0.1:{https}", tls: required, websocket: {{path: /ssh}}}}
  - {{address: "127.0.0.1:{door}", ssh: only, host_keys: [{folder}/host_key]}}
admin: "127.0.0.1:{admin}"
tls: {{certificates: [{{cert: {folder}/certificate.pem, key: {folder}/key.pem}}]}}
limits: {{client: {{max_tunnels: unlimited, connects_per_second: unlimited}}}}
allowlist:
  static:
    - {{name: "{target}:22", addresses: ["127.0.0.1:{sshd}"]}}
    - {{name: "session.bench:22", addresses: ["127.0.0.1:{anchor}"]}}
"""


class World:
    """The servers: sshd, the proxy and its anchor, Envoy, an sshd as a jump host, a WebSocket server. Ends them all."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="switchboard-felt."))
        self.children = []

    def begin(self):
        for name in ("host_key", "client_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name]
            subprocess.run(command, check=True)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        files = ["-keyout", self.folder / "key.pem", "-out", self.folder / "certificate.pem"]
        names = ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(["openssl", "req", "-x509", *key, *files, *names], check=True, capture_output=True)
        self.ports = {name: free_port() for name in ("sshd", "jump", "http", "https", "door", "admin", "anchor", "envoy", "envoy_tls", "websocket")}
        for name in ("sshd", "jump"):
            self.start_sshd(name)
        self.write("switchboard.yaml", CONFIGURATION.format(folder=self.folder, target=TARGET, **self.ports))
        self.start(SWITCHBOARD, "serve", "--log", "error", "--config", self.folder / "switchboard.yaml")
        addresses = {"--listen": "anchor", "--to": "sshd"}
        self.start(SWITCHBOARD, "anchor", "--log", "error", *(part for flag, port in addresses.items() for part in (flag, self.at(port))))
        self.start_envoy()
        self.start(WEBSOCAT, "--exit-on-eof", "--binary", f"ws-l:{self.at('websocket')}", f"tcp:{self.at('sshd')}")
        for port in self.ports.values():
            await_port(port, self.folder / "log")

    def at(self, name):
        return f"127.0.0.1:{self.ports[name]}"

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def start(self, *command):
        child = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=(self.folder / "log").open("a"))
        self.children.append(child)

    def start_sshd(self, name):
        text = (ROOT / "tests/it/openssh/sshd_config").read_text()
        text = text.replace("@PORT@", str(self.ports[name])).replace("@DIRECTORY@", str(self.folder))
        self.write(f"{name}_config", text.replace("LogLevel VERBOSE", "LogLevel ERROR"))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
        self.start(shutil.which("sshd", path=path), "-D", "-e", "-f", self.folder / f"{name}_config")

    def start_envoy(self):
        text = (ROOT / "benches/compare/envoy.yaml").read_text().replace("target.bench:22", f"{TARGET}:22")
        places = {"PORT": "envoy", "TLS_PORT": "envoy_tls", "TARGET_PORT": "sshd"}
        for place, port in places.items():
            text = text.replace(f"@{place}@", str(self.ports[port]))
        self.write("envoy.yaml", text.replace("@DIRECTORY@", str(self.folder)))
        self.start(ENVOY, "--config-path", self.folder / "envoy.yaml", "--log-level", "error", "--concurrency", "2")

    def close(self):
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            child.wait()
        shutil.rmtree(self.folder)


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


def await_port(port, log=None):
    for _ in range(400):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    sys.exit(f"felt: nothing listens at port {port}: {log and log.read_text()}")


# Name: the port that the user's network leads to, and what ssh is configured with; {entry} is that port.
CONNECT = f"ProxyCommand {SWITCHBOARD} connect --proxy"
TLS = "--ca {folder}/certificate.pem"
WAYS = {
    "direct to sshd": ("sshd", "HostName 127.0.0.1\n  Port {entry}"),
    "`connect`, http": ("http", f"{CONNECT} http://127.0.0.1:{{entry}} {TARGET}:22"),
    "`connect`, https": ("https", f"{CONNECT} https://127.0.0.1:{{entry}} {TLS} {TARGET}:22"),
    "`connect`, https, a session": ("https", f"{CONNECT} https://127.0.0.1:{{entry}} {TLS} session.bench:22"),
    "`connect`, wss": ("https", f"{CONNECT} wss://127.0.0.1:{{entry}}/ssh {TLS} {TARGET}:22"),
    "`ssh -J`": ("door", f"HostName {TARGET}\n  Port 22\n  ProxyJump jump"),
    "nc": ("http", f"ProxyCommand nc -X connect -x 127.0.0.1:{{entry}} {TARGET} 22"),
    "proxytunnel": ("http", f"ProxyCommand proxytunnel -q -p 127.0.0.1:{{entry}} -d {TARGET}:22"),
    "Envoy, proxytunnel": ("envoy", f"ProxyCommand proxytunnel -q -p 127.0.0.1:{{entry}} -d {TARGET}:22"),
    "sshd as a jump host": ("jump", "HostName 127.0.0.1\n  Port {sshd}\n  ProxyJump jump"),
    "websocat": ("websocket", f"ProxyCommand {WEBSOCAT} --binary ws://127.0.0.1:{{entry}}"),
}


class Way:
    """One way to sshd: the arguments of ssh and of its friends."""

    def __init__(self, world, name, trip, entry):
        port, lines = WAYS[name]
        self.name, self.trip = name, trip
        self.config = world.folder / f"ssh_{list(WAYS).index(name)}_{trip}"
        common = (
            f"  User {USER}\n  IdentityFile {world.folder}/client_key\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            "  UserKnownHostsFile /dev/null\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n  LogLevel ERROR\n  BatchMode yes\n"
        )
        places = {**world.ports, "folder": world.folder, "entry": entry or world.ports[port]}
        jump = f"Host jump\n  HostName 127.0.0.1\n  Port {places['entry']}\n{common}" if "ProxyJump" in lines else ""
        self.config.write_text(f"{jump}Host box\n  {lines.format(**places)}\n{common}")

    def ssh(self, *command, **options):
        return subprocess.run(["ssh", "-F", self.config, *command], check=True, **options)

    def login(self):
        return timed(lambda: self.ssh("box", "true"))

    def second_login(self):
        control = ["-S", self.config.with_suffix(".sock")]
        self.ssh(*control, "-M", "-f", "-N", "-o", "ControlPersist=yes", "box")
        try:
            return timed(lambda: self.ssh(*control, "box", "true"))
        finally:
            self.ssh(*control, "-O", "exit", "box", stderr=subprocess.DEVNULL)

    def copy(self, source, target):
        """Returns the seconds of scp, and checks what came."""
        remove(target)
        taken = timed(lambda: subprocess.run(["scp", "-q", "-r", "-F", self.config, source, f"box:{target}"], check=True))
        subprocess.run(["diff", "--recursive", "--brief", source, target], check=True)
        return taken

    def rsync(self, source, target):
        remove(target)
        return timed(lambda: subprocess.run(["rsync", "-a", "-e", f"ssh -F {self.config}", f"{source}/", f"box:{target}/"], check=True))

    def clone(self, source, target):
        remove(target)
        environment = {**os.environ, "GIT_SSH_COMMAND": f"ssh -F {self.config}"}
        command = ["git", "clone", "--quiet", f"box:{source}", target]
        return timed(lambda: subprocess.run(command, check=True, env=environment))

    def keystrokes(self, count):
        """Returns the echoes' times, in seconds, of one key each 100 ms beside a download by the same way."""
        shell = subprocess.Popen(["ssh", "-F", self.config, "box", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        # 20 MiB/s: the rest of the machine is the ssh of both.
        load = "while head -c 2097152 /dev/zero; do sleep 0.1; done"
        download = subprocess.Popen(["ssh", "-F", self.config, "box", load], stdout=subprocess.DEVNULL)
        echoes = []
        try:
            for number in range(count + 5):
                begun = time.perf_counter()
                shell.stdin.write(b"x")
                if not shell.stdout.read(1):
                    sys.exit(f"felt: {self.name}: the shell has ended")
                echoes.append(time.perf_counter() - begun)
                time.sleep(max(0, 0.1 - echoes[-1]))
        finally:
            for child in (shell, download):
                child.kill()
                child.wait()
        # Not those of a login that goes on.
        return echoes[5:]


def timed(action):
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def remove(path):
    shutil.rmtree(path, ignore_errors=True)
    Path(path).unlink(missing_ok=True)


class Line:
    """A delay line in a process of its own: bytes of both directions take half a round trip."""

    def __init__(self, port, trip):
        self.port = free_port()
        self.child = os.fork()
        if self.child == 0:
            # What the parent has begun is the parent's to end.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                asyncio.run(self.serve(port, trip / 2000))
            finally:
                os._exit(0)
        await_port(self.port)

    async def serve(self, port, half):
        async def connection(reader, writer):
            # The client is connected after a round trip, and its first byte arrives half a one later.
            await asyncio.sleep(3 * half)
            with contextlib.suppress(OSError):
                upstream, sink = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
                await asyncio.gather(self.carry(reader, sink, half), self.carry(upstream, writer, half))

        server = await asyncio.start_server(connection, "127.0.0.1", self.port, limit=1 << 22)
        await server.serve_forever()

    async def carry(self, reader, writer, half):
        queue = asyncio.Queue(4096)

        async def release():
            while (item := await queue.get()) is not None:
                due, data = item
                await asyncio.sleep(max(0, due - time.monotonic()))
                writer.write(data)
                await writer.drain()
            with contextlib.suppress(OSError):
                writer.write_eof()

        releasing = asyncio.create_task(release())
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 18):
                await queue.put((time.monotonic() + half, data))
        await queue.put(None)
        with contextlib.suppress(OSError):
            await releasing

    def close(self):
        os.kill(self.child, 9)
        os.waitpid(self.child, 0)


def material(folder):
    """Makes what is copied: a file of 1 GiB, 3,000 files of 1 to 16 KiB, and a repository of 300 commits."""
    big, small, repository = folder / "big", folder / "small", folder / "repository"
    mib = 64 if QUICK else 1024
    with big.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
    (folder / "middle").write_bytes(os.urandom(16 << 20))
    for number in range(300 if QUICK else 3000):
        path = small / str(number % 50) / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1024 * (1 + number % 16)))
    git = ["git", "-C", repository, "-c", "user.name=bench", "-c", "user.email=bench@example.com"]
    subprocess.run(["git", "init", "--quiet", repository], check=True)
    for number in range(300):
        (repository / f"{number}.txt").write_bytes(os.urandom(24 << 10).hex().encode())
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", str(number)], check=True)
    return mib


def measure(world, trip, names):
    """Returns each way's figures at one round trip: a dict by column."""
    lines, ways, figures = [], [], {}
    folder = world.folder
    far = trip > 0
    for name in names:
        line = Line(world.ports[WAYS[name][0]], trip) if far else None
        lines += [line] if line else []
        ways.append(Way(world, name, trip, line and line.port))
    logins, copies = (2, 1) if QUICK else ((5, 1) if far else (9, 2))
    times = {way.name: {} for way in ways}

    def note(way, column, *taken):
        times[way.name].setdefault(column, []).extend(taken)

    try:
        for way in ways:
            way.login()
        for _ in range(logins):
            for way in ways:
                note(way, "login", way.login())
        for _ in range(copies):
            for way in ways:
                note(way, "second", way.second_login())
                note(way, "bulk", way.copy(folder / ("middle" if far else "big"), folder / "copy"))
        for way in ways:
            if not far:
                # Once: each is a sum of hundreds of exchanges already.
                note(way, "small", way.copy(folder / "small", folder / "copy"))
                note(way, "rsync", way.rsync(folder / "small", folder / "copy"))
                note(way, "clone", way.clone(folder / "repository", folder / "copy"))
            note(way, "keys", *way.keystrokes(20 if QUICK else (30 if far else 200)))
    finally:
        for line in lines:
            line.close()
    for name, columns in times.items():
        figures[name] = {column: statistics.median(taken) for column, taken in columns.items()}
        figures[name]["keys99"] = sorted(times[name]["keys"])[len(times[name]["keys"]) * 99 // 100]
    return figures


HERE = ["login", "second", "bulk", "small", "rsync", "clone", "keys", "keys99"]
FAR = ["login", "second", "bulk", "keys"]
TITLES = {
    "login": "login, ms",
    "second": "second login by ControlMaster, ms",
    "bulk": "scp, MiB/s",
    "small": "scp of {count} files, s",
    "rsync": "rsync of them, s",
    "clone": "git clone, s",
    "keys": "echo p50, ms",
    "keys99": "p99",
}


def shown(column, figure, mib):
    if column == "bulk":
        return f"{mib / figure:.0f}"
    return f"{figure:.2f}" if column in ("small", "rsync", "clone") else f"{1000 * figure:.1f}"


def table(trip, figures, mib):
    columns = FAR if trip else HERE
    titles = [TITLES[column].format(count="300" if QUICK else "3,000") for column in columns]
    rows = [["way" if not trip else f"way, {trip} ms", *titles], ["---"] + ["---:"] * len(columns)]
    for name, values in figures.items():
        rows.append([name, *(shown(column, values[column], mib) for column in columns)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def missed(trip, figures):
    """The goals, of our own programs beside a direct login: scp >= 0.95, login <= a round trip and 10 ms more, echo <= 0.2 ms more."""
    direct = figures.get("direct to sshd")
    for name, ours in figures.items():
        if direct and name.startswith("`"):
            if ours["login"] > direct["login"] + trip / 1000 + 0.010:
                yield f"{name}, {trip} ms: login {1000 * (ours['login'] - direct['login']):.1f} ms more than direct"
            if direct["bulk"] / ours["bulk"] < 0.95:
                yield f"{name}, {trip} ms: scp {direct['bulk'] / ours['bulk']:.2f} of direct"
            if ours["keys"] > direct["keys"] + 0.0002:
                yield f"{name}, {trip} ms: echo {1000 * (ours['keys'] - direct['keys']):.2f} ms more than direct"


def main():
    # So that what it has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    only = next((sys.argv[place + 1] for place, each in enumerate(sys.argv) if each == "--only"), "")
    names = [name for name in WAYS if any(part in name for part in only.split(","))]
    begun = time.monotonic()
    world = World()
    tables, misses = [], []
    try:
        world.begin()
        mib = material(world.folder)
        for trip in TRIPS:
            figures = measure(world, trip, names)
            tables.append(table(trip, figures, 16 if trip else mib))
            misses += missed(trip, figures)
            print(tables[-1], flush=True)
    finally:
        world.close()
    print("goals missed:", *(misses or ["none"]), sep="\n- ")
    print(f"{(time.monotonic() - begun) / 60:.0f} minutes")
    if "--write" in sys.argv:
        page = ROOT / "docs/performance.md"
        (before, rest), marks = page.read_text().split("<!-- felt -->\n", 1), ("<!-- felt -->\n", "<!-- end -->")
        page.write_text(before + marks[0] + "\n".join(tables) + marks[1] + rest.split(marks[1], 1)[1])


if __name__ == "__main__":
    main()

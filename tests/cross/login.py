#!/usr/bin/env python3
"""Logs in with a client on this system, whichever it is: `login.py PROGRAM`, with the system's own ssh and asyncssh of PyPI.

The proxy and the SSH server are this script, since switchboard's proxy needs Linux: it has no policy, and no session outlives
its connection. It is for the systems that `tests/cross/run` cannot be on.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncssh

NAME = "devbox.local"
# Not the one that Git for Windows brings.
SSH = r"C:\Windows\System32\OpenSSH\ssh.exe" if os.name == "nt" else "ssh"


async def relay(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def tunnel(reader, writer, port):
    """Answers a CONNECT for NAME, and connects it with `port`."""
    request = await reader.readuntil(b"\r\n\r\n")
    if not request.startswith(f"CONNECT {NAME}:22 HTTP/1.1\r\n".encode()):
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        return
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    upstream = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(relay(reader, upstream[1]), relay(upstream[0], writer), return_exceptions=True)


def greet(process):
    process.stdout.write(f"{process.command}: {process.get_extra_info('username')} is logged in\n")
    process.exit(0)


async def run(*command, status=0):
    """Returns the output of a command, within two minutes."""
    environment = os.environ | {"SWITCHBOARD_NO_ENV_PROXY": "1"}
    flags = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "timeout": 120}
    done = await asyncio.to_thread(subprocess.run, command, env=environment, check=False, **flags)
    print(f"{' '.join(command)}\n{done.stdout.decode(errors='replace')}", flush=True)
    assert done.returncode == status, f"{done.returncode}, not {status}"
    return done.stdout


async def main(program):
    with tempfile.TemporaryDirectory() as folder:
        key, known_hosts, config = (Path(folder, name) for name in ("key", "known_hosts", "config"))
        client, host = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        key.write_bytes(client.export_private_key())
        key.chmod(0o600)
        known_hosts.write_bytes(NAME.encode() + b" " + host.export_public_key())
        users = asyncssh.import_authorized_keys(client.export_public_key().decode())
        sshd = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[host], authorized_client_keys=users, process_factory=greet)
        proxy = await asyncio.start_server(lambda *streams: tunnel(*streams, sshd.get_port()), "127.0.0.1", 0)
        url = "http://127.0.0.1:{}".format(proxy.sockets[0].getsockname()[1])
        # The block that users get: it has the path of the program as this system writes it.
        config.write_bytes(await run(program, "config", "--proxy", url, "--name", "*.local"))
        options = ["BatchMode=yes", "IdentitiesOnly=yes", "IdentityAgent=none", "StrictHostKeyChecking=yes", "ConnectTimeout=60"]
        options += [f"IdentityFile={key.as_posix()}", f"UserKnownHostsFile={known_hosts.as_posix()}"]
        ssh = [SSH, "-F", str(config), *(word for option in options for word in ("-o", option))]
        greeting = await run(*ssh, f"user@{NAME}", "hello")
        assert greeting.strip() == b"hello: user is logged in", greeting
        refusal = await run(*ssh, "user@unknown.local", "hello", status=255)
        assert b"unknown.local:22: Forbidden" in refusal, refusal

asyncio.run(main(os.path.abspath(sys.argv[1])))

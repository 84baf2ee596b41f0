"""A shell by paramiko or asyncssh, with this program's stdin and stdout: shell.py LIBRARY PORT USER KEY."""

import asyncio
import sys
import threading

LIBRARY, PORT, USER, KEY = sys.argv[1:]


def by_paramiko():
    import paramiko

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    client.connect("127.0.0.1", int(PORT), USER, key_filename=KEY, allow_agent=False, look_for_keys=False)
    stdin, stdout, _ = client.exec_command("sh")

    def send():
        for line in sys.stdin:
            stdin.write(line)
            stdin.flush()
        stdin.channel.shutdown_write()

    threading.Thread(target=send, daemon=True).start()
    for line in stdout:
        print(line, end="", flush=True)
    return stdout.channel.recv_exit_status()


async def by_asyncssh():
    import asyncssh

    options = {"username": USER, "client_keys": [KEY], "known_hosts": None, "agent_path": None, "config": None}
    async with asyncssh.connect("127.0.0.1", int(PORT), **options) as connection:
        process = await connection.create_process("sh")

        async def send():
            while line := await asyncio.to_thread(sys.stdin.readline):
                process.stdin.write(line)
            process.stdin.write_eof()

        sending = asyncio.create_task(send())
        async for line in process.stdout:
            print(line, end="", flush=True)
        await sending
        return (await process.wait()).exit_status


sys.exit(by_paramiko() if LIBRARY == "paramiko" else asyncio.run(by_asyncssh()))

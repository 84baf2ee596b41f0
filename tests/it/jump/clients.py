"""A login and a copy through a jump host: clients.py LIBRARY PORT METHOD SECRET USER KEY FROM TO."""

import asyncio
import os
import select
import socket
import sys
import threading

LIBRARY, PORT, METHOD, SECRET, USER, KEY, FROM, TO = sys.argv[1:]
NAME = "devbox.team-a"


def by_paramiko():
    import paramiko

    def connect(user, sock, **proof):
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect("127.0.0.1", int(PORT), user, sock=sock, allow_agent=False, look_for_keys=False, **proof)
        return client

    door = connect("alice", None, **({"password": SECRET} if METHOD == "password" else {"key_filename": SECRET}))
    channel = door.get_transport().open_channel("direct-tcpip", (NAME, 22), ("127.0.0.1", 1))
    box = connect(USER, channel, key_filename=KEY)
    print(box.exec_command("echo in")[1].read().decode(), end="")
    box.open_sftp().put(FROM, TO)


async def by_asyncssh():
    import asyncssh

    options = {"known_hosts": None, "agent_path": None, "config": None}
    proof = {"password": SECRET, "client_keys": None} if METHOD == "password" else {"client_keys": [SECRET]}
    async with asyncssh.connect("127.0.0.1", int(PORT), username="alice", **proof, **options) as door:
        async with door.connect_ssh(NAME, username=USER, client_keys=[KEY], **options) as box:
            print((await box.run("echo in")).stdout, end="")
            async with box.start_sftp_client() as sftp:
                await sftp.put(FROM, TO)


def by_libssh():
    from ssh import key, options, session

    def connect(user, fd=None):
        client = session.Session()
        client.options_set(options.HOST, "127.0.0.1")
        client.options_set(options.USER, user)
        client.options_set_port(int(PORT))
        client.options_set_int_val(options.NODELAY, 1)
        if fd is not None:
            client.set_socket(fd)
        client.connect()
        return client

    def log_in(client, file):
        client.userauth_publickey(key.import_privkey_file(file))

    door = connect("alice")
    log_in(door, SECRET) if METHOD == "key" else door.userauth_password("alice", SECRET)
    channel = door.channel_new()
    channel.open_forward(NAME, 22, "127.0.0.1", 1)
    near, far = socket.socketpair()

    def pump():
        near.setblocking(False)
        while True:
            select.select([near, door.get_fd()], [], [])
            try:
                channel.write(near.recv(32768))
            except BlockingIOError:
                pass
            while (read := channel.read_nonblocking(32768))[0] > 0:
                near.setblocking(True)
                near.sendall(read[1])
                near.setblocking(False)

    threading.Thread(target=pump, daemon=True).start()
    box = connect(USER, far)
    log_in(box, KEY)
    command = box.channel_new()
    command.open_session()
    command.request_exec("echo in")
    print(command.read()[1].decode(), end="")
    sftp = box.sftp_new()
    sftp.init()
    there = sftp.open(TO, os.O_WRONLY | os.O_CREAT, 0o600)
    with open(FROM, "rb") as source:
        while piece := source.read(32768):
            there.write(piece)
    there.close()


match LIBRARY:
    case "paramiko":
        by_paramiko()
    case "asyncssh":
        asyncio.run(by_asyncssh())
    case "libssh":
        by_libssh()

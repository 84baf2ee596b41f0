"""A ProxyCommand over HTTP/2: one CONNECT, and standard input and output are the tunnel. Its HTTP/2 is hyper-h2's.

    stdio.py HOST PORT AUTHORITY [tls]      with tls by ALPN, whoever the certificate is of; else with prior knowledge
"""

import os
import select
import socket
import ssl
import sys

import h2.config
import h2.connection
import h2.events

STREAM = 1
MOST_UNSENT = 1 << 20


def connect(host, port, by_tls):
    plain = socket.create_connection((host, port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not by_tls:
        return plain
    context = ssl._create_unverified_context()
    context.set_alpn_protocols(["h2"])
    secure = context.wrap_socket(plain, server_hostname="localhost")
    assert secure.selected_alpn_protocol() == "h2", "the proxy does not offer HTTP/2"
    return secure


def main():
    host, port, authority, *by_tls = sys.argv[1:]
    peer = connect(host, int(port), by_tls)
    http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    http.initiate_connection()
    http.increment_flow_control_window(1 << 24)
    http.send_headers(STREAM, [(":method", "CONNECT"), (":authority", authority)])
    peer.setblocking(False)
    unsent, waiting, status, ended = bytearray(), bytearray(), None, False
    while True:
        unsent += http.data_to_send()
        while status == "200" and waiting:
            room = min(http.local_flow_control_window(STREAM), http.max_outbound_frame_size, len(waiting))
            if not room or len(unsent) > MOST_UNSENT:
                break
            http.send_data(STREAM, bytes(waiting[:room]))
            del waiting[:room]
            unsent += http.data_to_send()
        if ended and not waiting and status == "200":
            http.end_stream(STREAM)
            unsent += http.data_to_send()
            ended = None
        reads = [peer] + ([0] if ended is False and status == "200" and len(waiting) < MOST_UNSENT else [])
        buffered = isinstance(peer, ssl.SSLSocket) and peer.pending()
        readable, writable, _ = select.select(reads, [peer] if unsent else [], [], 0 if buffered else None)
        if writable:
            try:
                del unsent[: peer.send(unsent)]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
        if 0 in readable:
            came = os.read(0, 65536)
            waiting += came
            ended = not came
        if not (buffered or peer in readable):
            continue
        try:
            came = peer.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            continue
        if not came:
            return 0 if status == "200" else 1
        for event in http.receive_data(came):
            if isinstance(event, h2.events.ResponseReceived):
                status = dict(event.headers)[":status"]
            elif isinstance(event, h2.events.DataReceived):
                out = event.data
                sink = 1 if status == "200" else 2
                while out:
                    out = out[os.write(sink, out) :]
                http.acknowledge_received_data(event.flow_controlled_length, STREAM)
            elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset, h2.events.ConnectionTerminated)):
                return 0 if status == "200" else 1


sys.exit(main())

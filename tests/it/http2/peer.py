"""An HTTP/2 client that does what it is told, line by line, and tells what it sees, one JSON object a line.

    peer.py HOST PORT [CA [CERT KEY]]      with CA over TLS, with ALPN

Its HTTP/2 is hyper-h2's. What RFC 9113 forbids a client it sends when told to.
"""

import hashlib
import json
import os
import select
import socket
import ssl
import struct
import sys

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hyperframe.frame import GoAwayFrame


def tell(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


class Peer:
    def __init__(self, host, port, ca=None, *shown):
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ca:
            context = ssl.create_default_context(cafile=ca)
            context.set_alpn_protocols(["h2", "http/1.1"])
            if shown:
                context.load_cert_chain(*shown)
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
            tell("alpn", protocol=self.socket.selected_alpn_protocol())
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = h2.connection.H2Connection(config)
        self.mute = set()  # streams whose window is not given back
        self.bulk = {}  # what is still to be sent on a stream
        self.ending = set()  # those that end when all of it is sent
        self.seen = {}
        self.lines = b""
        self.out = bytearray()
        self.sending = False
        self.received = False
        # hyper-h2 takes a GOAWAY for the end of the connection, whatever it says.
        self.h2._frame_dispatch_table[GoAwayFrame] = self.receive_goaway
        self.h2.initiate_connection()
        # One stream that is mute must not stop the others: the streams' windows bound them.
        self.h2.increment_flow_control_window(1 << 24)
        self.flush()

    def run(self):
        self.socket.setblocking(False)
        while True:
            pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
            readable, _, _ = select.select([self.socket, 0], [], [], 0 if pending else None)
            if 0 in readable:
                came = os.read(0, 65536)
                if not came:
                    return
                *lines, self.lines = (self.lines + came).split(b"\n")
                for line in lines:
                    self.obey(line.decode().split(" ", 2))
            if (pending or self.socket in readable) and not self.receive():
                return
            self.received = True
            while self.received:  # what comes while it sends may be a window for a stream that had none
                self.received = False
                self.pump()

    def obey(self, words):
        verb, rest = words[0], words[1:]
        stream = int(rest[0]) if rest and rest[0].isdigit() else None
        if verb == "ask":
            headers = [tuple(pair) for pair in json.loads(rest[1])]
            end = headers and headers[-1] == ("END", "")
            self.h2.send_headers(stream, headers[:-1] if end else headers, end_stream=end)
        elif verb == "trailers":
            self.h2.send_headers(stream, [("x", "y")], end_stream=True)
        elif verb == "send":
            self.add(stream, bytes.fromhex(rest[1]))
        elif verb == "bulk":
            self.add(stream, bytes(int(rest[1])))
        elif verb == "now":  # whatever waits to be sent on the other streams
            self.h2.send_data(stream, bytes.fromhex(rest[1]))
        elif verb == "end":
            self.ending.add(stream)
        elif verb == "reset":
            self.h2.reset_stream(stream, int(rest[1]))
        elif verb == "mute":
            self.mute.add(stream)
        elif verb == "greedy":  # as if the other end had said nothing about streams
            self.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1 << 20
            self.h2.remote_settings.acknowledge()
        elif verb == "raw":
            self.flush()
            self.send(bytes.fromhex(rest[0]))
        elif verb == "abort":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.socket.close()
            sys.exit()
        else:
            sys.exit(f"what is {verb}?")
        self.flush()

    def add(self, stream, data):
        # A view: to cut a frame off it copies nothing.
        self.bulk[stream] = memoryview(bytes(self.bulk.get(stream, b"")) + data)

    def pump(self):
        for stream, data in list(self.bulk.items()):
            while data:
                try:
                    room = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data))
                except h2.exceptions.ProtocolError:
                    data = b""
                    break
                if room <= 0:
                    break
                self.h2.send_data(stream, bytes(data[:room]))
                data = data[room:]
                self.flush()
            self.bulk[stream] = data
            if not data:
                del self.bulk[stream]
                tell("sent", stream=stream)
        for stream in [stream for stream in self.ending if stream not in self.bulk]:
            self.ending.discard(stream)
            self.h2.end_stream(stream)
            self.flush()

    def receive(self):
        self.received = True
        try:
            came = self.socket.recv(1 << 18)
        except (ssl.SSLWantReadError, BlockingIOError):
            return True
        except OSError as error:
            tell("closed", how=type(error).__name__)
            return False
        if not came:
            tell("closed", how="end")
            return False
        try:
            events = self.h2.receive_data(came)
        except h2.exceptions.ProtocolError as error:
            tell("broken", how=repr(error))
            return False
        for event in events:
            self.report(event)
        self.flush()
        return True

    def receive_goaway(self, frame):
        tell("goaway", code=frame.error_code, last=frame.last_stream_id)
        return [], []

    def report(self, event):
        if isinstance(event, h2.events.ResponseReceived):
            tell("response", stream=event.stream_id, headers=dict(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            total, digest = self.seen.get(event.stream_id, (0, hashlib.sha256()))
            total += len(event.data)
            digest.update(event.data)
            self.seen[event.stream_id] = (total, digest)
            if event.stream_id not in self.mute and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            text = event.data.hex() if len(event.data) <= 1024 else None
            if event.data:
                tell("data", stream=event.stream_id, hex=text, total=total)
        elif isinstance(event, h2.events.StreamEnded):
            total, digest = self.seen.get(event.stream_id, (0, hashlib.sha256()))
            tell("ended", stream=event.stream_id, total=total, sha256=digest.hexdigest())
        elif isinstance(event, h2.events.StreamReset):
            tell("reset", stream=event.stream_id, code=int(event.error_code), remote=event.remote_reset)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            tell("settings", settings={int(k): v.new_value for k, v in event.changed_settings.items()})

    def flush(self):
        self.send(self.h2.data_to_send())

    def send(self, data):
        self.out += data
        if self.sending:
            return
        self.sending = True
        while self.out:
            try:
                del self.out[: self.socket.send(self.out)]
            except (ssl.SSLWantWriteError, BlockingIOError):
                # Two peers that do not read while they write may wait for each other.
                readable, _, _ = select.select([self.socket], [self.socket], [])
                if readable and not self.receive():
                    self.out.clear()
            except OSError:
                # The other end's last bytes are still to be read.
                self.out.clear()
        self.sending = False


if __name__ == "__main__":
    Peer(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]).run()

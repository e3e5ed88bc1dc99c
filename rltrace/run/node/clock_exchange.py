"""How far another node's monotonic clock is from ours, over TCP.

Four stamps make a sample, as with NTP. The one with the least round trip is kept, never an average:
its error is at most half its round trip, whatever the load. Both sides know a token from the run
directory; whoever does not is hung up on.
"""

from __future__ import annotations

import fcntl
import hmac
import secrets
import socket
import struct
import threading
from time import monotonic_ns, sleep
from typing import NamedTuple

SAMPLES = 64
TOKEN_BYTES = 16
_STAMPS = struct.Struct("<qq")
_ASK = b"rltrace?"
_TIMEOUT_S = 2.0
_MOST_AT_ONCE = 64
_AGAIN_S = 1.0
_SIOCGIFADDR = 0x8915


class Offset(NamedTuple):
    """`offset_ns` = the peer's monotonic clock - ours, at `at_ns` of ours, to `rtt_ns / 2`."""

    at_ns: int
    offset_ns: int
    rtt_ns: int


class ClockServer:
    """Answers other nodes' agents with this node's clock, from a thread of its own."""

    def __init__(self) -> None:
        """Errors: OSError when no port can be had."""
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self._socket = socket.create_server(("", 0), backlog=64)
        self._room = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="rltrace-clock", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._room.acquire()
            try:
                peer, _ = self._socket.accept()
            except OSError:  # no descriptor free, say: that passes
                self._room.release()
                sleep(_AGAIN_S)
                continue
            try:
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()
            except RuntimeError:  # no thread free
                peer.close()
                self._room.release()

    def _answer(self, peer: socket.socket) -> None:
        with peer:
            try:
                peer.settimeout(_TIMEOUT_S)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # At once, or a stranger could hold on to a thread byte by byte.
                said = peer.recv(TOKEN_BYTES, socket.MSG_WAITALL)
                if not hmac.compare_digest(said, self.token.encode()):
                    return
                while _receive(peer, len(_ASK)) == _ASK:
                    received = monotonic_ns()
                    peer.sendall(_STAMPS.pack(received, monotonic_ns()))
            except OSError:
                return
            finally:
                self._room.release()


def measure(addresses: list[str], port: int, token: str, samples: int = SAMPLES) -> Offset:
    """The offset of the agent at one of the addresses. Errors: OSError where none answers."""
    failure: OSError = ConnectionError("the node has no address")
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=_TIMEOUT_S) as peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.sendall(token.encode())
                taken = [_sample(peer) for _ in range(samples)]
                return min(taken, key=lambda sample: sample.rtt_ns)
        except OSError as error:
            failure = error
    raise failure


def _sample(peer: socket.socket) -> Offset:
    sent = monotonic_ns()
    peer.sendall(_ASK)
    reply = _receive(peer, _STAMPS.size)
    back = monotonic_ns()
    if len(reply) < _STAMPS.size:
        raise ConnectionError("the peer hung up")
    there, left = _STAMPS.unpack(reply)
    offset = ((there - sent) + (left - back)) // 2
    return Offset((sent + back) // 2, offset, (back - sent) - (left - there))


def _receive(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := peer.recv(count - len(data))):
        data += part
    return data


def own_addresses() -> list[str]:
    """The IPv4 addresses under which other nodes may reach this one, the loopback last."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an address
            found.append(socket.inet_ntoa(reply[20:24]))
    return sorted(dict.fromkeys(found), key=lambda address: address.startswith("127."))

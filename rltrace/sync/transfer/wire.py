"""Authenticated connections: messages of JSON with a blob, and bytes into place.

Both sides first prove by HMAC over two fresh nonces that they know the same token. Nothing received
is unpickled or run, nor is it encrypted: the network is trusted to carry weights, not to send them.
Every wait has an end, and `abort` ends all of them at once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64_intdigest

from rltrace.sync.memory.arena import SILENCE_S
from rltrace.sync.memory.locks import or_else
from rltrace.sync.memory.policy_memory import TOKEN_FILE, make_folder, shared_memory
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.job_exceptions import contained
from rltrace.trace.untrusted_files import parsed

TOKEN = "RLTRACE_SYNC_TOKEN"  # the environment variable of the token, which others must not know
HEARTBEAT_S = 0.5
STUCK_S = 20.0  # a receiver that takes nothing for so long is cut off
_ANY = ("0.0.0.0", "::")
# Addresses that are nobody's (for documentation): the way to them is the default route.
_ANYWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_PACED_BYTES = 256 << 10
_BURST_S = 0.005
_GREETING = b"rltrace sync 1\n\0"
_NONCE_BYTES = 32
_WELCOME, _REFUSED = b"+", b"-"
_KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3}
_MESSAGE = struct.Struct("<4sIIQ")  # magic, bytes of JSON, bytes of the blob, xxh3-64 of both
_MAGIC = b"RLTm"
_MOST_BYTES = 1 << 28
_ADDRESS = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^/:\[\]]+):(\d{1,5})/([A-Za-z0-9_-][\w.-]*)")


class LinkError(Exception):
    """A connection that broke, fell silent or said what makes no sense: try again, or elsewhere."""


class RefusedError(RltraceError):
    """The other side does not know our token, or we not its."""


@dataclass(frozen=True)
class Address:
    """Where a policy is served: `tcp://host:port/policy`."""

    host: str
    port: int
    policy: str

    @staticmethod
    def parse(text: str) -> Address:
        """Errors: `RltraceError` for anything else."""
        found = _ADDRESS.fullmatch(text)
        if not found or int(found[2]) > 65535:
            raise WrongUsage(f"{text!r} is no tcp://HOST:PORT/POLICY")
        return Address(found[1].strip("[]"), int(found[2]), found[3])

    @property
    def on_all_networks(self) -> bool:
        """Whether it listens on every address of its host, and so is no address to connect to."""
        return self.host in _ANY

    @property
    def told(self) -> Address:
        """What others may connect to: of all networks, the default route's address or the name."""
        if not self.on_all_networks:
            return self
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        host = socket.gethostname()  # where there is no network, or its own only
        with contained(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_ANYWHERE[family], 9))  # of a datagram socket: nothing is sent
            host = str(probe.getsockname()[0])
        return Address(host, self.port, self.policy)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}/{self.policy}"


def token_of(host: str, given: str | None = None) -> bytes:
    """The job's token: `given`, the environment's, or, for addresses of this host only, one in a
    private file. Errors: `RltraceError` where another host could connect and no token was given."""
    said = given if given is not None else os.environ.get(TOKEN)
    if said:
        return said.encode()
    if not is_loopback(host):
        how = f"set {TOKEN} to the same secret on all nodes"
        raise WrongUsage(f"{host} can be reached from elsewhere: {how}")
    make_folder(shared_memory())
    path = shared_memory() / TOKEN_FILE
    fresh = path.with_name(f"{TOKEN_FILE}.{secrets.token_hex(8)}")
    if not path.exists():
        fresh.touch(mode=0o600, exist_ok=False)
        fresh.write_text(secrets.token_hex(32))
        with suppress(FileExistsError):  # the first one counts
            os.link(fresh, path)
        fresh.unlink()
    return path.read_bytes()


def is_loopback(host: str) -> bool:
    """Whether an address is this host's own, out of reach of others."""
    return host in ("localhost", "::1") or host.startswith("127.")


class Throttle:
    """Holds what all connections of a node send to `gbps` 10⁹ bits a second; 0: no limit."""

    def __init__(self, gbps: float = 0.0) -> None:
        self.piece_bytes = _PACED_BYTES if gbps else sys.maxsize  # the most to be sent at once
        self._bytes_per_s = gbps * 1e9 / 8
        self._free_at = 0.0
        self._lock = threading.Lock()

    def sent(self, count: int) -> None:
        if self._bytes_per_s:
            with self._lock:
                now = time.monotonic()
                # A sleep that took too long is made up for, as a card's own queue would.
                self._free_at = max(now - _BURST_S, self._free_at) + count / self._bytes_per_s
                wait = self._free_at - now
            time.sleep(max(0.0, wait))


class Connection:
    """One authenticated connection. Reads in one thread, writes in one thread."""

    def __init__(self, sock: socket.socket, pace: Throttle | None = None) -> None:
        self._pace = pace or Throttle()
        self._sock = sock
        try:
            self.peer = str(sock.getpeername()[0])  # the other side's host
        except OSError as error:
            raise LinkError(f"the connection broke: {error}") from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # For the one that waits for a question: a host that is lost says nothing either.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        # The kernel's own timeouts: Python's would look before each piece whether there is one.
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(SILENCE_S))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(STUCK_S))

    @staticmethod
    def open(address: Address, token: bytes) -> Connection:
        """Errors: `LinkError` where nobody answers; `RefusedError` for another token."""
        try:
            sock = socket.create_connection((address.host, address.port), timeout=SILENCE_S)
        except (OSError, UnicodeError) as error:  # the latter for a name that can be none
            raise LinkError(_why_closed(address, error)) from error
        connection = Connection(sock)
        with or_else(connection.abort):
            connection._prove(token, address)
        return connection

    @staticmethod
    def accept(sock: socket.socket, token: bytes, pace: Throttle | None = None) -> Connection:
        """The other side of `open`. Errors: `LinkError`, `RefusedError`; then it is closed."""
        connection = Connection(sock, pace)
        with or_else(connection.abort):
            nonce = secrets.token_bytes(_NONCE_BYTES)
            connection.write([_GREETING + nonce])
            try:  # a stranger may not take his time byte by byte
                answer = sock.recv(_NONCE_BYTES + 32, socket.MSG_WAITALL)
            except OSError as error:
                raise LinkError(f"the connection broke: {error}") from error
            if len(answer) < _NONCE_BYTES + 32:
                raise LinkError("the other side does not say what it knows")
            nonces = nonce + answer[:_NONCE_BYTES]
            if not hmac.compare_digest(answer[_NONCE_BYTES:], _proof(token, b"client", nonces)):
                connection.write([_REFUSED])
                raise RefusedError("a client had another token")
            connection.write([_WELCOME, _proof(token, b"server", nonces)])
        return connection

    def _prove(self, token: bytes, address: Address) -> None:
        greeting = self.read(len(_GREETING) + _NONCE_BYTES)
        if not greeting.startswith(_GREETING):
            raise LinkError("what answers there is no relay of rltrace: is the port right?")
        ours = secrets.token_bytes(_NONCE_BYTES)
        nonces = greeting[len(_GREETING) :] + ours
        self.write([ours + _proof(token, b"client", nonces)])
        # An end without a verdict is no refusal: the other side may just have died.
        refused = self.read(1) != _WELCOME
        if refused or not hmac.compare_digest(self.read(32), _proof(token, b"server", nonces)):
            raise RefusedError(f"{address} has another token: set {TOKEN} to the same one")

    def read_into(self, target: memoryview) -> None:
        """Fills `target`. Errors: `LinkError`; it may then be filled in part."""
        at = 0
        try:
            while at < len(target):
                count = self._sock.recv_into(target[at:], flags=socket.MSG_WAITALL)
                if not count:
                    raise LinkError("the other side has closed the connection")
                at += count
        except BlockingIOError as error:
            raise LinkError("the other side has fallen silent") from error
        except OSError as error:
            raise LinkError(f"the connection broke: {error}") from error

    def read(self, count: int) -> bytes:
        """As many bytes. Errors: `LinkError`."""
        data = bytearray(count)
        self.read_into(memoryview(data))
        return bytes(data)

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Sends all parts, one after the other, from where they lie. Errors: `LinkError`."""
        piece = self._pace.piece_bytes
        wholes = [memoryview(part).cast("B") for part in parts]
        left = [whole[at : at + piece] for whole in wholes for at in range(0, len(whole), piece)]
        try:
            while left:
                sent = self._sock.sendmsg(left[: 1 if piece < sys.maxsize else 64])
                self._pace.sent(sent)
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if left and sent:
                    left[0] = left[0][sent:]
        except OSError as error:
            raise LinkError(f"the connection broke: {error}") from error

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        text = json.dumps(message).encode()
        check = xxh3_64_intdigest(text + blob)
        self.write([_MESSAGE.pack(_MAGIC, len(text), len(blob), check), text, blob])

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next message and its blob. Errors: `LinkError`, also for a damaged one."""
        magic, text_bytes, blob_bytes, check = _MESSAGE.unpack(self.read(_MESSAGE.size))
        if magic != _MAGIC or text_bytes > _MOST_BYTES or blob_bytes > _MOST_BYTES:
            raise LinkError("what arrived is no message")
        body = self.read(text_bytes + blob_bytes)
        message: Any = None
        with contained(ValueError):
            message = parsed(bytes(body[:text_bytes]))
        if xxh3_64_intdigest(body) != check or not isinstance(message, dict):
            raise LinkError("a message arrived damaged")
        return message, body[text_bytes:]

    def wait_readable(self) -> None:
        """Waits for the other side to say something, for as long as it likes."""
        while True:
            try:
                self._sock.recv(1, socket.MSG_PEEK)
                return
            except BlockingIOError:
                continue
            except OSError as error:
                raise LinkError(f"the connection broke: {error}") from error

    def abort(self) -> None:
        """Ends it now, also under a thread that waits for it; once is enough."""
        with contained(OSError):  # it was not connected any more
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _why_closed(address: Address, error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"connection refused: nothing listens there (is it up, and {address.port} its port?)"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return f"the name {address.host} does not resolve on this host (is it spelled right?)"
    if isinstance(error, TimeoutError):
        return f"no answer within {SILENCE_S:g} s (is it up, and does a firewall let us through?)"
    return f"no connection can be made: {getattr(error, 'strerror', None) or error}"


def _timeval(seconds: float) -> bytes:
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


def _proof(token: bytes, side: bytes, nonces: bytes) -> bytes:
    return hmac.new(token, side + nonces, hashlib.sha256).digest()

"""The serving half of a node: gives children what is on its shelf.

A child asks `watch` on one connection that it keeps, and `get` on as many as it likes.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rltrace.hooks.span_api import span
from rltrace.sync.transfer import frames
from rltrace.sync.transfer.frames import BUCKET_BLOCKS, FrameKind
from rltrace.sync.transfer.version_store import GoneError, HeldVersion, Shelf
from rltrace.sync.transfer.wire import (
    HEARTBEAT_S,
    Address,
    Connection,
    LinkError,
    RefusedError,
    Throttle,
)
from rltrace.sync.version import Behind, Version
from rltrace.trace.errors import RltraceError
from rltrace.trace.untrusted_files import NONSENSE

_MOST_WAIT_S = 30.0
_MOST_STRANGERS = 64  # not yet known to have the token; further ones wait to be accepted


@dataclass(frozen=True)
class Node:
    """A node as those below it know it: `address` is the one that was dialled."""

    id: str
    address: str


class VersionServer:
    """Serves the policy `name` from a shelf. After `fanout` children it sends further ones to those
    (0: any number); it sends at most `gbps` 10⁹ bits a second to all together (0: no limit)."""

    def __init__(
        self,
        shelf: Shelf,
        name: str,
        host: str,
        port: int,
        token: bytes,
        fanout: int = 0,
        gbps: float = 0.0,
    ) -> None:
        self._shelf, self._token, self._fanout = shelf, token, fanout
        self._pace = Throttle(gbps)
        self.line: Callable[[], Sequence[Node]] = tuple  # asked for the nodes above, nearest first
        self.behind: Callable[[], Behind] = Behind  # asked for how far this one is behind
        self._children: dict[Connection, str] = {}
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self.wants_changes = False  # whether some child asked for changes
        self.sent_bytes = 0  # of payloads, to all children together
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self._listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=64)
        except OSError as error:
            raise RltraceError(f"cannot listen on {host}:{port}: {error}") from error
        self.id = secrets.token_hex(8)
        self.address = Address(host, self._listener.getsockname()[1], name)
        self._start(self._accept, "accept")

    @property
    def children(self) -> int:
        with self._lock:
            return len(self._children)

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.abort()

    def _start(self, target: Callable[..., None], name: str, *args: object) -> None:
        name = f"rltrace.sync {name}"
        threading.Thread(target=target, args=args, name=name, daemon=True).start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            if not self._strangers.acquire(timeout=HEARTBEAT_S):
                continue
            try:
                sock, _ = self._listener.accept()
            except OSError:
                self._strangers.release()
                self._ended.wait(HEARTBEAT_S)  # no descriptor free, say: that passes
                continue
            try:
                self._start(self._serve, "serve", sock)
            except RuntimeError:  # no thread free
                sock.close()
                self._strangers.release()

    def _serve(self, sock: socket.socket) -> None:
        try:
            connection = Connection.accept(sock, self._token, self._pace)
        except (LinkError, RefusedError):
            return
        finally:
            self._strangers.release()
        with self._lock:
            self._connections.add(connection)
        try:
            while not self._ended.is_set():
                connection.wait_readable()
                message, _ = connection.receive()
                if message.get("policy") != self.address.policy:
                    connection.send({"serves": self.address.policy})
                elif message.get("ask") == "watch":
                    self._watch(connection, message)
                elif message.get("ask") == "get":
                    self._get(connection, message)
                else:
                    return
        except (*NONSENSE, LinkError, RltraceError):
            pass  # the child hears of it by the end of its connection, and asks again
        finally:
            connection.abort()
            with self._lock:
                self._connections.discard(connection)
                self._children.pop(connection, None)
            self._shelf.forget_child(connection)

    def _watch(self, connection: Connection, message: dict[str, Any]) -> None:
        self._shelf.forget_child(connection)
        at = Address.parse(str(message["serves"]))
        # One that listens on every address of its host serves at the one that called us.
        serves = str(Address(connection.peer, at.port, at.policy) if at.on_all_networks else at)
        tried: Sequence[str] = message["tried"]
        with self._lock:
            others = [a for a in self._children.values() if a and a != serves and a not in tried]
            is_full = 0 < self._fanout <= len(self._children)
            goes_on = others and is_full and connection not in self._children
            if not goes_on:
                self._children[connection] = serves
        if goes_on:
            connection.send({"redirect": others})
            return
        self.wants_changes |= bool(message["changes"])
        after = None if message["after"] is None else Version.parse(str(message["after"]))
        wait_s = min(_MOST_WAIT_S, float(message["wait_s"]))  # in this order NaN is no long wait
        held = self._shelf.newer(after, wait_s, connection)
        line = [{"id": node.id, "address": node.address} for node in self.line()]
        behind = self.behind()
        newest = held if held is not None else self._shelf.newer(None, 0)
        answer: dict[str, Any] = {
            "id": self.id,
            "line": line,
            "behind_s": behind.seconds,
            "why": behind.why,
            "newest": str(newest.manifest.version) if newest is not None else None,
        }
        table = b""
        if held is not None:
            answer["manifest"] = held.manifest.to_json()
            table = held.digests.astype("<u8").tobytes()
            if message["layout"] != held.manifest.layout_id:
                answer["layout"] = held.layout.text
        connection.send(answer, table)

    def _get(self, connection: Connection, message: dict[str, Any]) -> None:
        version = Version.parse(str(message["version"]))
        changed = None if message["again"] else message["base"]
        base = None if changed is None else Version.parse(str(changed))
        held = self._shelf.find(version)
        if held is None:
            connection.send({"gone": True})
            return
        connection.send({"gone": False})
        try:
            with span("sync", "send", "transfer", version=held.manifest.number) as sending:
                sent = 0
                for first, end in message["blocks"]:
                    if not 0 <= first <= end <= len(held.digests):
                        raise LinkError("blocks beyond the end were asked for")
                    sent += self._send(connection, held, base, first, end)
                sending.set(bytes=sent)
            connection.write([frames.pack_sign(FrameKind.END, held.manifest)])
        except GoneError:
            connection.write([frames.pack_sign(FrameKind.GONE, held.manifest)])
        finally:
            held.unuse()

    def _send(
        self, connection: Connection, held: HeldVersion, base: Version | None, first: int, end: int
    ) -> int:
        sent = 0
        while first < end:
            encoded = held.wait(first, min(end, first + BUCKET_BLOCKS), base, HEARTBEAT_S)
            if encoded is None:
                connection.write([frames.pack_sign(FrameKind.ALIVE, held.manifest)])
                continue
            changed_from = base if held.base == base else None
            header, *payloads = frames.pack(held, changed_from, first, encoded)
            connection.write([header, *payloads])
            payload_bytes = sum(map(len, payloads))
            with self._lock:
                self.sent_bytes += payload_bytes
            sent += payload_bytes
            first += len(encoded)
        return sent

"""A rollout worker's side: the latest weights, whole, at any time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar

from rltrace.hooks.span_api import span
from rltrace.sync.applying import Applier
from rltrace.sync.arena import Arena, LayoutChangedError, Lease
from rltrace.sync.copying import Workers
from rltrace.sync.layout import Layout
from rltrace.sync.recording import moved
from rltrace.sync.verifying import verify
from rltrace.sync.version import NO_ROOT, Manifest, Version
from rltrace.sync.views import Views
from rltrace.trace.errors import CANNOT_TELL, WRONG_USAGE, RltraceError

_Answer = TypeVar("_Answer")

if TYPE_CHECKING:
    from rltrace.sync.joining import Joined

_log = logging.getLogger("rltrace.sync")

_POLL_S = 0.0005
_AGAIN_S = 1.0


class PoisonedError(RltraceError):
    """A model holds parts of two versions: it must not be used before a version was applied."""


class Subscriber:
    """Receives one policy. Not for several threads at once."""

    def __init__(
        self, where: str, arena: Arena, workers: Workers, joined: Joined | None = None
    ) -> None:
        self.where = where
        self.applied: Manifest | None = None
        """What was last applied here."""
        self.poisoned = False
        """Whether applying has failed, so that the model holds parts of two versions."""
        self._arena = arena
        self._place = where if joined is None else joined.place
        self._joined = joined
        self._workers = workers
        self._applier = Applier(arena.layout, workers)
        self._staged: _Staged | None = None

    @staticmethod
    def connect(
        where: str = "shm://policy",
        timeout_s: float = 60.0,
        threads: int | None = None,
        token: str | None = None,
        changes: bool = True,
    ) -> Subscriber:
        """Waits for a publisher that has yet to open the policy. `threads` copy at a time; None: as
        many as there are cores, at most four. `tcp://host:port/policy`, where a relay serves it, is
        followed by a relay of this host, which all subscribers here share: it is started for them,
        with the `token` (None: see `token_of`), and to be sent `changes` or whole versions only.

        Errors: `RltraceError` where there is none in time.
        """
        if not str(where).startswith("tcp://"):
            arena = Arena.attach(where, timeout_s)
            return Subscriber(where, arena, Workers(threads))._told()
        from rltrace.sync.joining import Joined

        joined = Joined(where, token, changes)
        try:
            arena = joined.attach(timeout_s)
            return Subscriber(where, arena, Workers(threads), joined)._told()
        except BaseException:
            joined.close()
            raise

    @property
    def layout(self) -> Layout:
        """What is published."""
        return self._arena.layout

    def explain(self) -> str:
        """The way that weights take to this process, and what decided it: a sentence, which is also
        logged ("rltrace.sync") where it connects."""
        folder = self._arena.folder
        if self._joined is None:
            return f"{self.where} is of this host: weights are copied from shared memory ({folder})"
        return (
            f"{self.where} is served over TCP: one relay of this host, which its workers share,"
            f" brings weights into shared memory ({folder}), and they are copied from there"
        )

    def latest(self) -> Version | None:
        """The latest version; None before the first one."""
        return self._current(lambda arena: arena.latest())

    def wait(self, at_least: Version | int | None = None, timeout_s: float = 60.0) -> Version:
        """The latest version, once there is one that is not before `at_least`: a version, or a
        counter. For a version of another run nothing is waited for: a job that begins anew counts
        from 1, and nobody would ever reach what the one before it had.

        Errors: `RltraceError` where there is none in time.
        """
        latest, deadline = self.latest(), time.monotonic() + timeout_s
        if _reaches(latest, at_least) and latest is not None:
            return latest
        with span("wait", "a version to be published"):
            while True:
                latest = self.latest()
                if latest is not None and _reaches(latest, at_least):
                    return latest
                if time.monotonic() >= deadline:
                    wanted = "a first version" if at_least is None else f"version {at_least}"
                    said = f"{wanted} was not published at {self.where} within {timeout_s:g} s"
                    raise RltraceError(f"{said}; the latest is {latest or 'none'}", CANNOT_TELL)
                time.sleep(_POLL_S)

    def lease(self, version: Version | None = None) -> Views:
        """The latest version or a given one, in place, without a copy. Whoever holds it makes the
        publisher use other slots, so release it soon.

        Errors: `RltraceError` where nothing is published, or the given version is no longer there.
        """
        return Views(self._arena.layout, self._lease(version))

    def pull_into(
        self,
        weights: Any,
        at_least: Version | int | None = None,
        verify: bool = False,
        timeout_s: float = 60.0,
    ) -> Version:
        """Overwrites a model's tensors (or a mapping's: what `layout_of` takes) with the latest
        version, waiting for one that is not before `at_least`. With `verify` every block is checked
        before the first is copied. Nothing may generate from the model meanwhile.

        Errors: `RltraceError` that names a tensor that does not fit, or `DamagedError`: then none
        was touched. `PoisonedError` where copying failed twice: see `poisoned`.
        """
        self.wait(at_least, timeout_s)
        started_ns = monotonic_ns()
        with span("sync", "pull") as whole:
            lease = self._lease(None)
            try:
                whole.set(version=lease.manifest.number, bytes=self.layout.bytes)
                if verify:
                    self._verify(lease)
                self._apply(lease, weights)
            finally:
                lease.release()
        self._record(lease.manifest, started_ns, monotonic_ns() - started_ns)
        return lease.manifest.version

    def stage(self, weights: Any, version: Version | None = None, verify: bool = True) -> Manifest:
        """The first half of a pull that several ranks do together (`commit_together`): leases the
        latest version or a given one, checks it and that every tensor fits. Nothing is overwritten;
        generation may go on. What was staged before is dropped.

        Errors: those of `pull_into`, and `RltraceError` for a version that is no longer there.
        """
        self.abort()
        started_ns = monotonic_ns()
        with span("sync", "stage"):
            lease = self._lease(version)
            try:
                self._applier.plan(weights)
                if verify:
                    self._verify(lease)
            except BaseException:
                lease.release()
                raise
        self._staged = _Staged(lease, weights, started_ns)
        return lease.manifest

    def commit(self) -> Manifest:
        """The second half: overwrites the tensors with what is staged.

        Errors: `RltraceError` where nothing is; `PoisonedError` where copying failed twice: the
        version stays staged, so that it can be tried again.
        """
        staged = self._staged
        if staged is None:
            raise RltraceError("nothing is staged to be committed", WRONG_USAGE)
        began_ns = monotonic_ns()
        self._apply(staged.lease, staged.weights)
        self.abort()
        self._record(staged.lease.manifest, staged.started_ns, monotonic_ns() - began_ns)
        return staged.lease.manifest

    def abort(self) -> None:
        """Drops what is staged."""
        if self._staged is not None:
            self._staged.lease.release()
            self._staged = None

    def close(self) -> None:
        """Lets go of the policy."""
        self.abort()
        self._workers.close()
        self._arena.close()
        if self._joined is not None:
            self._joined.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _told(self) -> Subscriber:
        _log.info("%s", self.explain())
        return self

    def _apply(self, lease: Lease, weights: Any) -> None:
        with span("sync", "load", "load", version=lease.manifest.number, bytes=self.layout.bytes):
            plan = self._applier.plan(weights)
            self.poisoned = True
            try:
                self._applier.apply(lease.data, plan)
            except Exception:
                try:  # the version is still there, on this host
                    self._applier.apply(lease.data, self._applier.plan(weights))
                except Exception as error:
                    raise PoisonedError(
                        f"version {lease.manifest.version} was applied in part: {error}; this model"
                        " must not be used before a version is applied whole"
                    ) from error
        self.poisoned = False
        self.applied = lease.manifest

    def _verify(self, lease: Lease) -> None:
        with span("sync", "verify", version=lease.manifest.number):
            verify(self._arena, lease, self._workers)

    def _lease(self, version: Version | None) -> Lease:
        lease = self._current(lambda arena: arena.lease(version))
        if lease is None:
            wanted = "nothing" if version is None else f"version {version} is not, or no longer,"
            raise RltraceError(f"{wanted} published at {self.where}", CANNOT_TELL)
        return lease

    def _current(self, ask: Callable[[Arena], _Answer]) -> _Answer:
        """Asks the arena; where the policy has got another layout, the one that it has now."""
        while True:
            try:
                return ask(self._arena)
            except LayoutChangedError:
                self.abort()
                self._arena.close()
                self._arena = Arena.attach(self._place, _AGAIN_S)
                self._applier = Applier(self._arena.layout, self._workers)

    def _record(self, manifest: Manifest, started_ns: int, stall_ns: int) -> None:
        size, blocks = manifest.bytes, len(self._arena.control.digests(0))
        root = None if manifest.root == NO_ROOT else manifest.root
        moved("sink", started_ns, manifest.number, size, size, blocks, root, stall_ns)


@dataclass
class _Staged:
    lease: Lease
    weights: Any
    started_ns: int


def _reaches(latest: Version | None, at_least: Version | int | None) -> bool:
    if latest is None or at_least is None:
        return latest is not None
    if isinstance(at_least, int):
        return latest.counter >= at_least
    return latest.run != at_least.run or latest >= at_least

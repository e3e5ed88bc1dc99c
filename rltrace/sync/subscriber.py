"""A rollout worker's side: the latest weights, whole, at any time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from numbers import Integral
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar

from rltrace.hooks.span_api import span
from rltrace.sync.memory.arena import SILENCE_S, Arena, Lease, ReplacedError
from rltrace.sync.memory.block_digests import Digests
from rltrace.sync.memory.copying import Workers
from rltrace.sync.memory.layout import Layout
from rltrace.sync.memory.locks import Closing, or_else
from rltrace.sync.memory.policy_memory import is_on_device
from rltrace.sync.recording import moved, transport_of
from rltrace.sync.verifying import DamagedError, damaged, digests_to_check
from rltrace.sync.version import Behind, Manifest, Version
from rltrace.sync.weight_loading import Applier
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage
from rltrace.trace.job_exceptions import from_outside

_Answer = TypeVar("_Answer")

if TYPE_CHECKING:
    from rltrace.sync.transfer.shared_relay import Joined

_log = logging.getLogger("rltrace.sync")
_POLL_S = 0.0005
_AGAIN_S = 1.0
_Wanted = tuple[Any, bool, bool]  # of `Applier.plan`, anew each time: memory may be another one


class PoisonedError(RltraceError):
    """A model holds parts of two versions: it must not be used before a version was applied."""


class Subscriber(Closing):
    """Receives one policy. Not for several threads at once."""

    def __init__(
        self, where: str, arena: Arena, workers: Workers, joined: Joined | None = None
    ) -> None:
        self.where = where
        self.applied: Manifest | None = None  # what was last applied here
        self.poisoned = False
        """Whether applying has failed, so that the model holds parts of two versions."""
        self._arena, self._workers, self._joined = arena, workers, joined
        self._place = where if joined is None else joined.place
        self._transport = transport_of(self._place)
        self._applier = Applier(arena.layout, workers)
        self._staged: tuple[Lease, _Wanted, int] | None = None  # since then, ns
        self._told_behind = False
        _log.info("%s", self.explain())

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
            return Subscriber(where, Arena.attach(where, timeout_s), Workers(threads))
        from rltrace.sync.transfer.shared_relay import Joined

        joined = Joined(where, token, changes)
        with or_else(joined.close):
            return Subscriber(where, joined.attach(timeout_s), Workers(threads), joined)

    @property
    def layout(self) -> Layout:
        return self._arena.layout

    def explain(self) -> str:
        """The way that weights take to this process, and what decided it: a sentence, which is also
        logged ("rltrace.sync") where it connects."""
        folder = self._arena.folder
        if is_on_device(self._place):
            return f"{self.where} is of a GPU of this host: weights are copied there, in its memory"
        if self._joined is None:
            return f"{self.where} is of this host: weights are copied from shared memory ({folder})"
        said = f"{self.where} is served over TCP: one relay of this host, which its workers share,"
        return f"{said} brings weights to shared memory ({folder}), and they are copied from there"

    @property
    def behind_s(self) -> float:
        """For how long newer weights have not been able to come here; 0.0 while they can."""
        return self._behind().seconds

    @property
    def error(self) -> RltraceError | None:
        """What keeps newer weights from coming here; None while nothing does. A pull logs it, once,
        as a warning, and takes what is there."""
        return self._behind().error(self.where)

    def latest(self) -> Version | None:
        return self._current(lambda arena: arena.latest())

    def wait(
        self, at_least: Version | int | None = None, timeout_s: float = 60.0, newer: bool = False
    ) -> Version:
        """The latest version, once there is one that is not before `at_least` (a version, or the
        counter of one: a learner that has begun anew since the last pull is later than any), and
        that is `newer` than what was applied last.

        Errors: `RltraceError` where there is none in time, which says what keeps it.
        """
        if not isinstance(at_least, Version | Integral | None):
            raise WrongUsage(f"at_least takes a version or a counter, not {at_least!r:.80}")
        deadline = time.monotonic() + timeout_s
        latest = self._reached(at_least, newer)
        with nullcontext() if latest is not None else span("wait", "a version to be published"):
            while latest is None:
                if time.monotonic() >= deadline:
                    wanted = "a newer version" if newer else "a first version"
                    wanted = wanted if at_least is None else f"version {at_least}"
                    said = f"{wanted} was not published at {self.where} within {timeout_s:g} s"
                    said += f"; the latest is {self.latest() or 'none'}"
                    why = self._behind().why
                    raise RltraceError(f"{said}; {why}" if why else said, CANNOT_TELL)
                time.sleep(_POLL_S)
                latest = self._reached(at_least, newer)
        return latest

    def lease(self, version: Version | None = None, verify: bool | None = None) -> Lease:
        """The latest version or a given one, in place, without a copy, checked as by `stage`.
        Whoever holds it makes the publisher use other slots, so release it soon.

        Errors: `RltraceError` where nothing is published, or the given version is no longer there;
        `DamagedError`.
        """
        lease = self._lease(version)
        with or_else(lease.release), span("sync", "verify", version=lease.manifest.number):
            digests = digests_to_check(self._arena, lease, verify)
            slots = self._arena.slots
            wrong = [] if digests is None else slots.wrong(lease.data, digests, self._workers)
            if wrong:
                raise damaged(self._arena, lease, wrong)
        return lease

    def pull_into(
        self,
        weights: Any,
        at_least: Version | int | None = None,
        verify: bool | None = None,
        timeout_s: float = 60.0,
        newer: bool = False,
        partial: bool = False,
        cast: bool = False,
    ) -> Version:
        """Overwrites a model's own tensors (or a mapping's: what `layout_of` takes) with the latest
        version, waiting as `wait` does. `partial`: they may be some of what was published; `cast`:
        floats are cast to the types that they have here. Every block is checked as it is copied,
        where the publisher made digests (`verify` False: it is not; True: where it did not, that is
        an error). Nothing may generate from the model meanwhile.

        Errors: `RltraceError` that names a tensor that does not fit: then none was touched.
        `DamagedError` where a block is not as it was published: then they hold what was applied
        before, or `poisoned` is true. `PoisonedError` where copying failed twice.
        """
        self.wait(at_least, timeout_s, newer)
        started_ns = monotonic_ns()
        with span("sync", "pull") as whole, self._lease(None) as lease:
            whole.set(version=lease.manifest.number, bytes=self.layout.bytes)
            digests = digests_to_check(self._arena, lease, verify)
            self._apply(lease, digests, (weights, partial, cast))
        moved("sink", lease.manifest, started_ns, monotonic_ns() - started_ns, self._transport)
        return lease.manifest.version

    def stage(
        self,
        weights: Any,
        version: Version | None = None,
        verify: bool | None = None,
        partial: bool = False,
        cast: bool = False,
    ) -> Manifest:
        """The first half of a pull that several ranks do together (`commit_together`): leases the
        latest version or a given one, checks all of it and that every tensor fits. Nothing is
        overwritten; generation may go on. What was staged before is dropped.

        Errors: those of `pull_into`, and `RltraceError` for a version that is no longer there.
        """
        self.abort()
        started_ns = monotonic_ns()
        with span("sync", "stage"):
            lease = self.lease(version, verify)
            with or_else(lease.release):
                self._applier.check_equal(lease.data, self._applier.plan(weights, partial, cast))
        self._staged = lease, (weights, partial, cast), started_ns
        return lease.manifest

    def commit(self) -> Manifest:
        """The second half: overwrites the tensors with what is staged.

        Errors: `RltraceError` where nothing is; `PoisonedError` where copying failed twice: the
        version stays staged, so that it can be tried again.
        """
        if self._staged is None:
            raise WrongUsage("nothing is staged to be committed")
        lease, wanted, started_ns = self._staged
        began_ns = monotonic_ns()
        self._apply(lease, None, wanted)
        self.abort()
        moved("sink", lease.manifest, started_ns, monotonic_ns() - began_ns, self._transport)
        return lease.manifest

    def abort(self) -> None:
        if self._staged is not None:
            self._staged[0].release()
            self._staged = None

    def close(self) -> None:
        self.abort()
        self._workers.close()
        self._arena.close()
        if self._joined is not None:
            self._joined.close()

    def _apply(self, lease: Lease, digests: Digests | None, wanted: _Wanted) -> None:
        with span("sync", "load", "load", version=lease.manifest.number, bytes=self.layout.bytes):
            plan = self._applier.plan(*wanted)
            self._applier.check_equal(lease.data, plan)
            was_poisoned, self.poisoned = self.poisoned, True
            try:
                wrong = self._applier.apply(lease.data, digests, plan, lease.file)
            except Exception as error:
                if from_outside(error):
                    raise
                try:  # the version is still there, on this host
                    again = self._applier.plan(*wanted)
                    wrong = self._applier.apply(lease.data, digests, again, lease.file)
                except Exception as twice:
                    if from_outside(twice):
                        raise
                    raise PoisonedError(
                        f"version {lease.manifest.version} was applied in part: {twice}; this model"
                        " must not be used before a version is applied whole"
                    ) from twice
            if wrong:
                self.poisoned = was_poisoned or not self._put_back(wanted)
                then = "; this model must not be used before a version is applied whole"
                if not self.poisoned and self.applied is not None:
                    then = f"; version {self.applied.version} was put back"
                raise DamagedError(f"{damaged(self._arena, lease, wrong)}{then}")
        self.poisoned = False
        self.applied = lease.manifest
        behind = self._behind()
        if behind.seconds > SILENCE_S and not self._told_behind:
            _log.warning("%s", behind.error(self.where))
        self._told_behind = behind.seconds > SILENCE_S

    def _put_back(self, wanted: _Wanted) -> bool:
        """Applies again what was applied before; whether it could."""
        lease = self._arena.lease(self.applied.version) if self.applied is not None else None
        if lease is None:
            return False
        with lease:
            plan = self._applier.plan(*wanted)
            digests = digests_to_check(self._arena, lease, None)
            return not self._applier.apply(lease.data, digests, plan, lease.file)

    def _behind(self) -> Behind:
        found = self._current(lambda arena: arena.behind())
        if found.why and self._joined is not None and (told := self._joined.files.told()):
            return Behind(found.seconds, told)
        return found

    def _reached(self, at_least: Version | int | None, newer: bool) -> Version | None:
        latest = self.latest()
        applied = self.applied.version if self.applied is not None else None
        if latest is None or (newer and applied is not None and latest <= applied):
            return None
        if isinstance(at_least, Version):
            return latest if latest >= at_least else None
        begun_anew = applied is not None and latest.epoch > applied.epoch
        return latest if at_least is None or latest.counter >= at_least or begun_anew else None

    def _lease(self, version: Version | None) -> Lease:
        lease = self._current(lambda arena: arena.lease(version))
        if lease is None:
            wanted = "nothing" if version is None else f"version {version} is not, or no longer,"
            raise RltraceError(f"{wanted} published at {self.where}", CANNOT_TELL)
        return lease

    def _current(self, ask: Callable[[Arena], _Answer]) -> _Answer:
        """Asks the arena; where the policy has got another layout, the one that it has now."""
        while True:
            if not self._arena.is_open:
                raise WrongUsage(f"{self.where} was closed here: connect again")
            try:
                return ask(self._arena)
            except ReplacedError:
                self.abort()
                self._arena.close()
                self._arena = Arena.attach(self._place, _AGAIN_S)
                self._applier = Applier(self._arena.layout, self._workers)

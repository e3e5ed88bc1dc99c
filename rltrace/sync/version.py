"""A version's name, and what its receivers have to know of it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import NamedTuple

from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.untrusted_files import NONSENSE, parsed

_MOST = 1 << 63  # a number takes one word in memory and on the wire
NO_ROOT = "0" * 32  # `Manifest.root` of a version without digests, which nobody can check
RUN = re.compile(r"[0-9a-f]{16}")  # the form of `Version.run`
_TEXT = re.compile(rf"({RUN.pattern}):([0-9]{{1,19}}):([0-9]{{1,19}})")


@dataclass(frozen=True)
class Version:
    """One publication of the job `run` (16 hexadecimal digits). `epoch` (ms since 1970) is when its
    publisher was opened, later than any before; `counter` counts on. Ordered by these two."""

    run: str
    epoch: int
    counter: int

    def __lt__(self, other: Version) -> bool:
        return (self.epoch, self.counter) < (other.epoch, other.counter)

    def __le__(self, other: Version) -> bool:
        return (self.epoch, self.counter) <= (other.epoch, other.counter)

    def __str__(self) -> str:
        return f"{self.run}:{self.epoch}:{self.counter}"

    @staticmethod
    def parse(text: str) -> Version:
        """The inverse of `str()`. Errors: `RltraceError`."""
        found = _TEXT.fullmatch(text)
        if found:
            version = Version(found[1], int(found[2]), int(found[3]))
            if max(version.epoch, version.counter) < _MOST:
                return version
        raise RltraceError(f"{text!r} is no version of weights: run:epoch:counter")


class Behind(NamedTuple):
    """How long ago a process had the latest version, and why not since; 0 and "": it has it."""

    seconds: float = 0.0
    why: str = ""

    def error(self, where: str) -> RltraceError | None:
        if not self.why:
            return None
        why = self.why.removeprefix(f"{where}: ")
        said = f"{where}: {why}; what is here was the latest {self.seconds:,.1f} s ago"
        return RltraceError(said, CANNOT_TELL)


@dataclass(frozen=True)
class Manifest:
    """A version as its receivers hear of it: `bytes` of data under `layout_id`; `root` is the
    digest of the block table, which travels beside it; `step` is the learner's, or -1."""

    version: Version
    step: int
    layout_id: str
    bytes: int
    root: str

    @property
    def number(self) -> int:
        """What job and trace call the version: the learner's step, or else the counter."""
        return self.step if self.step >= 0 else self.version.counter

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "version": str(self.version)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Errors: `RltraceError` for a text that is no manifest."""
        try:
            said = parsed(text)
            version, step = Version.parse(said["version"]), int(said["step"])
            layout_id, size = str(said["layout_id"]), int(said["bytes"])
            return Manifest(version, step, layout_id, size, str(said["root"]))
        except (*NONSENSE, RltraceError) as error:
            raise RltraceError(f"this is no manifest of a version of weights: {error}") from error

"""Which weights: a version's name, and what has to be known of it to receive it whole."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from rltrace.trace.errors import RltraceError
from rltrace.trace.texts import parsed

MOST_EPOCHS = 1 << 16
MOST_VERSIONS = 1 << 40
"""Bounds of `Version.epoch` and `Version.counter`, which share one word with the slot."""

NO_ROOT = "0" * 32
"""`Manifest.root` of a version that was published without digests: nobody can check it."""

RUN = re.compile(r"[0-9a-f]{16}")
"""The form of `Version.run`."""


@dataclass(frozen=True)
class Version:
    """One publication. `run` (16 hexadecimal digits) tells jobs apart, `epoch` counts the openings
    of the publisher, `counter` its versions, on over restarts: neither ever goes back in a run.

    Versions of one run are ordered. Errors: `ValueError` where those of two runs are compared.
    """

    run: str
    epoch: int
    counter: int

    def __lt__(self, other: Version) -> bool:
        return self._order(other) < other._order(self)

    def __le__(self, other: Version) -> bool:
        return self._order(other) <= other._order(self)

    def __gt__(self, other: Version) -> bool:
        return other < self

    def __ge__(self, other: Version) -> bool:
        return other <= self

    def __str__(self) -> str:
        return f"{self.run}:{self.epoch}:{self.counter}"

    @staticmethod
    def parse(text: str) -> Version:
        """The inverse of `str()`. Errors: `RltraceError`."""
        run, *numbers = text.split(":")
        if not RUN.fullmatch(run) or len(numbers) != 2 or not all(n.isdecimal() for n in numbers):
            raise RltraceError(f"{text!r} is no version of weights: run:epoch:counter")
        return Version(run, int(numbers[0]), int(numbers[1]))

    def _order(self, other: Version) -> tuple[int, int]:
        if self.run != other.run:
            raise ValueError(f"versions of the runs {self.run} and {other.run} have no order")
        return self.epoch, self.counter


@dataclass(frozen=True)
class Manifest:
    """A version as its receivers hear of it: `bytes` of data in blocks of `BLOCK_BYTES` under the
    layout `layout_id`; `root` is the digest of the block table; `step` the learner's step, -1 where
    it was not told. The block table itself travels beside it, as little-endian words of 8 bytes."""

    version: Version
    step: int
    layout_id: str
    bytes: int
    root: str

    @property
    def number(self) -> int:
        """What the job calls the version, and the trace with it: the learner's step where it was
        told, else the counter."""
        return self.step if self.step >= 0 else self.version.counter

    def to_json(self) -> str:
        """One line of text."""
        return json.dumps({**asdict(self), "version": str(self.version)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Errors: `RltraceError` for a text that is no manifest."""
        try:
            said = parsed(text)
            return Manifest(
                Version.parse(said["version"]),
                int(said["step"]),
                str(said["layout_id"]),
                int(said["bytes"]),
                str(said["root"]),
            )
        except (
            *(ValueError, TypeError, LookupError, AttributeError, OverflowError),
            RltraceError,
        ) as error:
            raise RltraceError(f"this is no manifest of a version of weights: {error}") from error

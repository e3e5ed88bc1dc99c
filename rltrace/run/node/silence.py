"""Whether anything still moves in a run, seen from its files at next to no cost."""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.trace.run_dir import RUN_VARIABLE
from rltrace.trace.schema import EVENT_TABLES
from rltrace.trace.segment import STREAM
from rltrace.trace.untrusted_files import parsed

if TYPE_CHECKING:
    import subprocess

STUCK_AFTER_S = 60.0
_TIMES = 10  # as long, before a step has ended: models are loaded and compiled
_LOOKS = 20  # in that time
_TAIL_BYTES = 1 << 20  # a batch and more: a row that begins stands in a segment's last one
_PACKAGES = Path(__file__).parent.parent.parent.parent
_LOOK = (
    "import os, sys; os.nice(10); sys.path.append(sys.argv[1]); "
    "from rltrace.run.stuck import look; "
    "look(sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))"
)


def limits_s(settings: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds in which nothing moves in a stuck job, and before a step has ended."""
    asked = settings.get("stuck_after_s")
    after_s = float(asked) if isinstance(asked, int | float) else STUCK_AFTER_S
    return after_s, after_s * (1 if asked else _TIMES)


class Silence:
    """Looks after the run in `run_dir`. `after_s` is how long nothing may move (<= 0: for ever),
    as the run's settings have it; then a process of ours looks closer, once a silence."""

    def __init__(self, run_dir: str, settings: Mapping[str, Any]) -> None:
        self._after_s, self._first_s = limits_s(settings)
        self._run_dir = run_dir
        self._known: dict[str, int] = {}
        self._looked_at = 0.0
        self._moved_at = time.monotonic()
        self._ask_at = self._moved_at + self._after_s
        self._asked: subprocess.Popen[bytes] | None = None

    def look(self, now: float) -> dict[str, Any] | None:
        """What a closer look found, once; `now` is seconds of the monotonic clock. Errors: OSError
        where the run cannot be read or no process started."""
        if self._after_s <= 0:
            return None
        if now - self._looked_at >= self._after_s / _LOOKS:
            self._looked_at = now
            if self._moved():
                self._moved_at, self._ask_at = now, now + self._after_s
        if self._asked is not None:
            return self._answer(now)
        if self._known and now >= self._ask_at:  # of a job that recorded nothing nobody can tell
            import subprocess  # few agents ever ask

            environment = {k: v for k, v in os.environ.items() if k != RUN_VARIABLE}
            limits = [str(self._after_s), str(self._first_s)]
            command = [sys.executable, "-I", "-c", _LOOK, str(_PACKAGES), self._run_dir, *limits]
            self._asked = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        return None

    def _answer(self, now: float) -> dict[str, Any] | None:
        asked = self._asked
        if asked is None or asked.poll() is None or asked.stdout is None:
            return None
        self._asked, told = None, {}
        with asked.stdout as file, suppress(ValueError, OSError):
            told = parsed(file.read())
        again_s = told.get("again_s") if isinstance(told, dict) else None
        # Without an answer: a look costs a second, so each silence is left alone for longer.
        wait_s = again_s if isinstance(again_s, int | float) else 2 * (now - self._moved_at)
        self._ask_at = now + max(self._after_s / _LOOKS, wait_s)
        return told if isinstance(told, dict) and "culprit" in told else None

    def _moved(self) -> bool:
        """Whether a file of events is not as it was; the one that changed last is read first."""
        for path in self._files():
            with suppress(OSError), open(path, "rb") as file:  # it was shipped and removed
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                mark = zlib.crc32(file.read(_TAIL_BYTES))
                if self._known.get(path) != mark:
                    self._known.pop(path, None)
                    self._known[path] = mark
                    return True
        return False

    def _files(self) -> list[str]:
        found = []
        for table in EVENT_TABLES:
            if table != "samples":
                with suppress(OSError):
                    names = os.listdir(f"{self._run_dir}/{table}")
                    found += [f"{self._run_dir}/{table}/{n}" for n in names if n.endswith(STREAM)]
        there = set(found)
        known = [path for path in reversed(self._known) if path in there]
        return [path for path in found if path not in self._known] + known

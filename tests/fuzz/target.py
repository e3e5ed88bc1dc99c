"""What is fuzzed: a parser that takes any bytes, with inputs that it takes for good.

A parser may refuse what it is given in one sentence (`RltraceError`); whatever else it raises, and
whatever a `check` of what it returned finds, is a bug.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rltrace.testing.inside.trace import RltraceError

ROOT = Path(__file__).parents[2]

MEMORY = Path("/dev/shm")

_FEWER = 32


@dataclass(frozen=True)
class Target:
    """A parser. `parse` is given an input and a folder of its own to put it into; `modules` are
    those whose lines are counted as covered. Inputs to begin with are in `seeds/`, by its name, and
    those that are `made` or read elsewhere."""

    name: str
    parse: Callable[[bytes, Path], None]
    modules: tuple[str, ...]
    made: Callable[[], list[bytes]] = list

    def seeds(self) -> list[bytes]:
        files = sorted((Path(__file__).parent / "seeds" / self.name).glob("*"))
        return [*(file.read_bytes() for file in files), *self.made()]

    def __call__(self, data: bytes, folder: Path) -> None:
        """Parses one input. Errors: whatever the parser raises that is no clean refusal."""
        try:
            self.parse(data, folder)
        except RltraceError as error:
            said = str(error)
            assert said.strip(), "an empty sentence"


def modules(package: str, names: str) -> tuple[str, ...]:
    """Modules of a package's floor, by their names with spaces between, in whichever folder of it
    each stands now."""
    floor = ROOT.joinpath(*package.split(".")[:2])
    stems = {name.rpartition(".")[2] for name in names.split()}
    found = (path for path in sorted(floor.rglob("*.py")) if path.stem in stems)
    return tuple(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found)


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    place = str(MEMORY) if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rltrace-fuzz-", dir=place) as folder:
        yield Path(folder)


def spare() -> None:
    """From now on what is costly is done with fewer inputs: a fuzzer has millions of them."""
    global _one_of
    _one_of = _FEWER


def costly(data: bytes, one_of: int) -> bool:
    """Whether this input is one of so many with which more is done than taking it apart; of each
    input it is always the same."""
    return zlib.crc32(data) % (one_of * _one_of) == 0


_one_of = 1


def put(path: Path, data: bytes) -> Path:
    """Writes a file that may be there already."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(file, data)
    finally:
        os.close(file)
    return path


def reading(read: Callable[[Path], object], name: str) -> Callable[[bytes, Path], None]:
    return lambda data, folder: cast(None, read(put(folder / name, data)))


BETWEEN = b"\n====\n"


def parts(data: bytes, count: int, between: bytes = BETWEEN) -> list[bytes]:
    """An input of several files: what stands between lines of `====`, the last one the rest."""
    found = data.split(between, count - 1)
    return [*found, *[b""] * (count - len(found))]


def together(*files: bytes) -> bytes:
    """The input that `parts` takes apart."""
    return BETWEEN.join(files)

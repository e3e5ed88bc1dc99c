"""The words in shared memory that all processes of a policy agree by.

One file, mapped by everyone: a page of words (aligned, of 8 bytes), the layout's text, and for each
slot a record and a block table. `latest` is version and slot together: both change in one store.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.memory.block_digests import BLOCK_BYTES, Digests, block_count, digest
from rltrace.sync.memory.layout import Layout
from rltrace.sync.memory.locks import Lock, hold
from rltrace.sync.memory.policy_memory import check_room, reserve
from rltrace.sync.memory.slots import SLOT_FILES
from rltrace.sync.version import Manifest, Version
from rltrace.trace.errors import RltraceError
from rltrace.trace.job_exceptions import contained

CONTROL = "rltrace-control"  # in the folder of a policy
PRESENT = "rltrace-present"
WRITER = "rltrace-writer"
_OURS = (CONTROL, f"{CONTROL}.new", WRITER, PRESENT)  # the last last: until then none can enter

LEAST_SLOTS = 2
MOST_SLOTS = 16
_MAGIC = int.from_bytes(b"rltrace\0", "little")
_FORMAT = 2
_PAGE = 4096
_RECORD_WORDS = 16

# Words of the header.
_AT_MAGIC, _AT_FORMAT, _AT_BLOCK, _AT_BYTES, _AT_TEXT, _AT_CHECK = range(6)
_LATEST, _EPOCH, _COUNTER, _RUN, _GENERATION, _SLOTS, _RETIRED, _SEQUENCE, _SEEN, _FED = range(
    8, 18
)

# Words of a slot's record: its word; step, run, epoch, counter and root (two) of the version; one
# that checks those before it.
_WORD, _STEP, _CHECK = 0, 1, 7
_SLOT_BITS = 8


def slot_of(word: int) -> int:
    """The slot that a word of `Control.latest` names; its other bits are never the same again."""
    return word & (1 << _SLOT_BITS) - 1


class _Word:
    """A word of the header as an attribute: reads and stores shared memory."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __get__(self, control: Control, kind: type[Control]) -> int:
        return control.words.item(self._at)

    def __set__(self, control: Control, value: int) -> None:
        control.words[self._at] = value


class Control:
    """The mapped file. Attributes read and store shared memory; nothing here takes a lock."""

    latest = _Word(_LATEST)  # the word of the latest version, 0 where none was published
    epoch = _Word(_EPOCH)  # when the writer opened this policy: see `Version.epoch`
    counter = _Word(_COUNTER)  # the highest that was ever published
    generation = _Word(_GENERATION)  # tells the slot files of this layout from those before it
    retired = _Word(_RETIRED)  # 1: another file is now in this one's place
    slots = _Word(_SLOTS)  # how many slot files there are
    is_fed = _Word(_FED)  # 1: by a relay

    def __init__(self, path: Path, layout: Layout | None = None) -> None:
        """Maps a file, of `layout` if given. Errors: `FileNotFoundError`; `RltraceError`."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            about = os.fstat(fd)
            self._path, self._inode, size = path, about.st_ino, about.st_size
            if size < _PAGE:
                raise RltraceError(f"{path} does not describe weights")
            self._bytes = np.frombuffer(mmap.mmap(fd, size), dtype=np.uint8)
        finally:
            os.close(fd)
        self.words: NDArray[np.uint64] = self._bytes[: size // 8 * 8].view(np.uint64)
        if self.words.item(_AT_MAGIC) != _MAGIC or self.words.item(_AT_FORMAT) != _FORMAT:
            raise RltraceError(f"{path} was made by another version of rltrace")
        text = bytes(self._bytes[_PAGE : _PAGE + self.words.item(_AT_TEXT)])
        if digest(text) != self.words.item(_AT_CHECK):
            raise RltraceError(f"{path} is damaged: end those who use this policy and remove it")
        self.layout = layout or Layout.parse(text.decode())
        blocks = block_count(self.layout.bytes)
        if size != _size(len(text), blocks) or self.words.item(_AT_BLOCK) != BLOCK_BYTES:
            raise RltraceError(f"{path} does not describe weights")
        first, stride = _records(len(text), blocks)
        records = self.words[first : first + stride * MOST_SLOTS].reshape(MOST_SLOTS, stride)
        self._records: NDArray[np.uint64] = records[:, :_RECORD_WORDS]
        self._tables: NDArray[np.uint64] = records[:, _RECORD_WORDS : _RECORD_WORDS + blocks]

    @staticmethod
    def create(
        path: Path, layout: Layout, run: str, epoch: int, counter: int, beside: int
    ) -> Control:
        """Writes the file, whole or not at all, with room `beside` it. Errors: `RltraceError`."""
        text = layout.text.encode()
        page = np.zeros(_PAGE // 8, dtype=np.uint64)
        page[_AT_MAGIC], page[_AT_FORMAT] = _MAGIC, _FORMAT
        page[_AT_BLOCK], page[_AT_BYTES], page[_AT_TEXT] = BLOCK_BYTES, layout.bytes, len(text)
        page[_EPOCH], page[_COUNTER], page[_GENERATION] = epoch, counter, epoch
        page[_RUN], page[_AT_CHECK] = int(run, 16), digest(text)
        size = _size(len(text), block_count(layout.bytes))
        check_room(path.parent, size + beside)
        reserve(path, size, page.tobytes() + text)
        return Control(path, layout)

    @property
    def run(self) -> str:
        """The run of the next version: 16 hexadecimal digits."""
        return f"{self.words.item(_RUN):016x}"

    @run.setter
    def run(self, run: str) -> None:
        self.words[_RUN] = int(run, 16)

    @property
    def replaced(self) -> bool:
        """Whether another file is in this one's place (another layout, or a folder made anew)."""
        if self.retired:
            return True
        try:
            return os.stat(self._path).st_ino != self._inode
        except FileNotFoundError:
            return False  # nothing is

    @property
    def seen_s(self) -> float:
        """When what is here was last known to be the learner's latest, by the monotonic clock."""
        return self.words.item(_SEEN) / 1e3

    def see(self, at_s: float, is_relay: bool = False) -> None:
        """Sets `seen_s`; a relay does so time and again, a publisher when it publishes."""
        self.words[_SEEN], self.words[_FED] = int(at_s * 1e3), is_relay

    def digests(self, slot: int) -> Digests:
        table: Digests = self._tables[slot]
        return table

    def begin(self, slot: int) -> None:
        self._records[slot, _WORD] = 0

    def finish(self, slot: int, version: Version, step: int, root: str) -> int:
        """The slot holds a version, which is not the latest yet. Returns its word."""
        self.words[_SEQUENCE] += 1
        word = self.words.item(_SEQUENCE) << _SLOT_BITS | slot
        record = self._records[slot]
        said = (step & (1 << 64) - 1, int(version.run, 16), version.epoch, version.counter)
        record[_STEP:_CHECK] = np.array([*said, int(root[:16], 16), int(root[16:], 16)], np.uint64)
        record[_WORD] = word
        record[_CHECK] = digest(record[:_CHECK].tobytes())
        return word

    def holds(self, slot: int, word: int) -> bool:
        """Whether a slot holds the version of that word, whole. Certain only under a lock on it."""
        return bool(self._records.item(slot, _WORD) == word)

    def find(self, version: Version) -> int:
        """The word of a slot that holds this version; 0 where none does."""
        for slot in range(self.slots):
            word = self._records.item(slot, _WORD)
            if word and self.manifest(slot)[0].version == version:
                return word
        return 0

    def manifest(self, slot: int) -> tuple[Manifest, bool]:
        """A slot's record, and whether it is unharmed. Certain only under a lock on the slot."""
        record = self._records[slot].copy()
        _, step, run, epoch, counter, high, low = record[:_CHECK].tolist()
        step -= (1 << 64) * (step >> 63)
        version, root = Version(f"{run:016x}", epoch, counter), f"{high:016x}{low:016x}"
        is_sound = record.item(_CHECK) == digest(record[:_CHECK].tobytes())
        return Manifest(version, step, self.layout.id, self.layout.bytes, root), is_sound


def begun_after(old: Control | None) -> int:
    """The epoch of a writer that begins now, in milliseconds: later than any before on this host,
    and than those on others as far as clocks agree."""
    epoch = time.time_ns() // 1_000_000
    if old is not None:  # its writer's, and those of what it has brought from others
        found = [old.manifest(slot) for slot in range(MOST_SLOTS)]
        known = [manifest.version.epoch for manifest, is_sound in found if is_sound]
        epoch = max(epoch, *(each + 1 for each in (old.epoch, *known)))
    time.sleep(0.001)  # the next one may find nothing of this one, and is to be later all the same
    return epoch


def _records(text_bytes: int, blocks: int) -> tuple[int, int]:
    """First word of the records, and words from one to the next."""
    return (_PAGE + -(-text_bytes // _PAGE) * _PAGE) // 8, -(-(_RECORD_WORDS + blocks) // 8) * 8


def _size(text_bytes: int, blocks: int) -> int:
    first, stride = _records(text_bytes, blocks)
    return (first + stride * MOST_SLOTS) * 8


def enter(folder: Path) -> Lock:
    """Keeps the folder, which is or was just there, until the lock is released. Errors: `OSError`;
    `RltraceError` where a stopped process has its removal half done."""

    def make() -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # removed in between
            for name in (PRESENT, WRITER):
                os.close(os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    return hold(folder / PRESENT, make)


def leave(folder: Path) -> bool:
    """Removes the folder unless somebody has the policy open; whether it is gone."""
    present = Lock.take(folder / PRESENT)
    if present is None:
        return False
    with present:
        for path in (*folder.glob(SLOT_FILES), *(folder / name for name in _OURS)):
            path.unlink(missing_ok=True)
    with contained(OSError):
        folder.rmdir()
        return True
    return False  # it holds something of the user's


def reclaim(root: Path, but: Path | None = None) -> None:
    """Removes what dead processes have left in a folder of policies, `but` one."""
    for folder in sorted(path.parent for path in root.glob(f"*/{PRESENT}")):
        if folder != but:
            leave(folder)

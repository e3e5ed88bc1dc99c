"""The few words in shared memory that all processes of an arena agree by.

One file, mapped by everyone: a page of words, the layout's text, and for each slot a record and a
block table. A word is an aligned 8-byte integer, stored and read at once. The one that counts is
`latest`: version and slot together, so that both change in a single store.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rltrace.sync.blocks import BLOCK_BYTES, Digests, block_count
from rltrace.sync.layout import Layout
from rltrace.sync.place import check_room, reserve
from rltrace.sync.version import MOST_EPOCHS, MOST_VERSIONS, Manifest, Version
from rltrace.trace.errors import RltraceError

CONTROL = "rltrace-control"
"""The file's name in the folder of a policy."""

LEAST_SLOTS = 2
MOST_SLOTS = 16

_MAGIC = int.from_bytes(b"rltrace\0", "little")
_FORMAT = 1
_PAGE = 4096
_HEADER_WORDS = 32
_RECORD_WORDS = 16

# Words of the header.
_AT_MAGIC, _AT_FORMAT, _AT_BLOCK, _AT_BYTES, _AT_TEXT = range(5)
_LATEST, _EPOCH, _COUNTER, _RUN, _GENERATION, _SLOTS, _RETIRED = range(8, 15)

# Words of a slot's record.
_STATE, _WORD, _STEP, _VERSION_RUN, _ROOT_HIGH, _ROOT_LOW, _VERIFIED = range(7)
_WRITING, _READY = 1, 2


@dataclass(frozen=True)
class Word:
    """What one word says of a version: its epoch, counter and slot, in 16 + 40 + 8 bits."""

    epoch: int
    counter: int
    slot: int

    def packed(self) -> int:
        """Never 0. Errors: `RltraceError` past 65,535 restarts or 2**40 versions."""
        if not (0 <= self.epoch < MOST_EPOCHS and 0 <= self.counter < MOST_VERSIONS):
            raise RltraceError("this policy has been published too often: give it another name")
        return self.epoch << 48 | self.counter << 8 | self.slot

    @staticmethod
    def of(packed: int) -> Word:
        """The inverse of `packed`."""
        return Word(packed >> 48, packed >> 8 & MOST_VERSIONS - 1, packed & 0xFF)


class Control:
    """The mapped file. Attributes read and store shared memory; nothing here takes a lock."""

    def __init__(self, path: Path) -> None:
        """Maps an existing file. Errors: `FileNotFoundError`; `RltraceError` for what is none."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size < _PAGE:
                raise RltraceError(f"{path} does not describe weights")
            self._bytes = np.frombuffer(mmap.mmap(fd, size), dtype=np.uint8)
        finally:
            os.close(fd)
        self._words: NDArray[np.uint64] = self._bytes[: size // 8 * 8].view(np.uint64)
        if self._words.item(_AT_MAGIC) != _MAGIC or self._words.item(_AT_FORMAT) != _FORMAT:
            raise RltraceError(f"{path} was made by another version of rltrace")
        text = self._bytes[_PAGE : _PAGE + self._words.item(_AT_TEXT)]
        self.layout = Layout.from_json(bytes(text).decode())
        blocks = block_count(self.layout.bytes)
        if size != _size(len(text), blocks) or self._words.item(_AT_BLOCK) != BLOCK_BYTES:
            raise RltraceError(f"{path} does not describe weights")
        first, stride = _records(len(text), blocks)
        records = self._words[first : first + stride * MOST_SLOTS].reshape(MOST_SLOTS, stride)
        self._records: NDArray[np.uint64] = records[:, :_RECORD_WORDS]
        self._tables: NDArray[np.uint64] = records[:, _RECORD_WORDS : _RECORD_WORDS + blocks]

    @staticmethod
    def create(path: Path, layout: Layout, run: str, epoch: int, counter: int) -> Control:
        """Writes the file, whole or not at all: one that is in its place is complete.

        Errors: `RltraceError` where there is no room for it beside the fewest slots.
        """
        text = layout.to_json().encode()
        page = np.zeros(_PAGE // 8, dtype=np.uint64)
        page[_AT_MAGIC], page[_AT_FORMAT] = _MAGIC, _FORMAT
        page[_AT_BLOCK], page[_AT_BYTES], page[_AT_TEXT] = BLOCK_BYTES, layout.bytes, len(text)
        page[_EPOCH], page[_COUNTER], page[_GENERATION] = epoch, counter, epoch
        page[_RUN] = int(run, 16)
        fresh = path.with_suffix(".new")
        size = _size(len(text), block_count(layout.bytes))
        check_room(path.parent, size + LEAST_SLOTS * layout.bytes)
        fresh.unlink(missing_ok=True)
        reserve(fresh, size)
        with open(fresh, "r+b") as file:
            file.write(page.tobytes() + text)
        fresh.replace(path)
        return Control(path)

    @property
    def latest(self) -> int:
        """The word of the latest version, 0 where none was published."""
        return self._words.item(_LATEST)

    @latest.setter
    def latest(self, word: int) -> None:
        self._words[_LATEST] = word

    @property
    def run(self) -> str:
        """The run of the next version: 16 hexadecimal digits."""
        return f"{self._words.item(_RUN):016x}"

    @run.setter
    def run(self, run: str) -> None:
        self._words[_RUN] = int(run, 16)

    @property
    def epoch(self) -> int:
        """How often a writer has opened this policy."""
        return self._words.item(_EPOCH)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._words[_EPOCH] = epoch

    @property
    def counter(self) -> int:
        """The highest counter that was ever published."""
        return self._words.item(_COUNTER)

    @counter.setter
    def counter(self, counter: int) -> None:
        self._words[_COUNTER] = counter

    @property
    def generation(self) -> int:
        """Tells the slot files of this layout from those of one before it."""
        return self._words.item(_GENERATION)

    @property
    def slots(self) -> int:
        """How many slot files there are."""
        return self._words.item(_SLOTS)

    @slots.setter
    def slots(self, slots: int) -> None:
        self._words[_SLOTS] = slots

    @property
    def retired(self) -> bool:
        """Whether another layout has taken this one's place: attach anew."""
        return bool(self._words.item(_RETIRED))

    def retire(self) -> None:
        """Sends everyone who has this file mapped to the one that is now in its place."""
        self._words[_RETIRED] = 1

    def digests(self, slot: int) -> Digests:
        """A slot's block table, in place."""
        table: Digests = self._tables[slot]
        return table

    def begin(self, slot: int) -> None:
        """From now on the slot holds nothing."""
        self._records[slot, _STATE] = _WRITING
        self._records[slot, _VERIFIED] = 0

    def finish(self, slot: int, version: Version, step: int, root: str) -> int:
        """The slot holds a version, which is not the latest yet. Returns its word."""
        word = Word(version.epoch, version.counter, slot).packed()
        record = self._records[slot]
        record[_WORD], record[_VERSION_RUN] = word, int(version.run, 16)
        record[_STEP] = step & (1 << 64) - 1
        record[_ROOT_HIGH], record[_ROOT_LOW] = int(root[:16], 16), int(root[16:], 16)
        record[_STATE] = _READY
        return word

    def holds(self, slot: int, word: int) -> bool:
        """Whether a slot holds the version of that word, whole. Certain only under a lock on it."""
        record = self._records[slot]
        return bool(record.item(_STATE) == _READY and record.item(_WORD) == word)

    def find(self, version: Version) -> int:
        """The word of a slot that holds this version; 0 where none does."""
        for slot in range(self.slots):
            word = Word(version.epoch, version.counter, slot).packed()
            if self.holds(slot, word) and self.manifest(slot).version == version:
                return word
        return 0

    def manifest(self, slot: int) -> Manifest:
        """What a slot's record says. Certain only under a lock on it."""
        record = self._records[slot]
        word = Word.of(record.item(_WORD))
        version = Version(f"{record.item(_VERSION_RUN):016x}", word.epoch, word.counter)
        step = record.item(_STEP)
        root = f"{record.item(_ROOT_HIGH):016x}{record.item(_ROOT_LOW):016x}"
        step -= (1 << 64) * (step >> 63)
        return Manifest(version, step, self.layout.id, self.layout.bytes, root)

    def is_verified(self, slot: int) -> bool:
        """Whether someone on this host has checked every block of what the slot holds."""
        record = self._records[slot]
        return bool(record.item(_VERIFIED) == record.item(_WORD))

    def set_verified(self, slot: int) -> None:
        """Said under a lock on the slot, after checking every block."""
        self._records[slot, _VERIFIED] = self._records[slot, _WORD]


def _records(text_bytes: int, blocks: int) -> tuple[int, int]:
    """First word of the records, and words from one to the next."""
    return (_PAGE + -(-text_bytes // _PAGE) * _PAGE) // 8, -(-(_RECORD_WORDS + blocks) // 8) * 8


def _size(text_bytes: int, blocks: int) -> int:
    first, stride = _records(text_bytes, blocks)
    return (first + stride * MOST_SLOTS) * 8

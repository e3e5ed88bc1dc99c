"""Recording one in so many samples (`rltrace wrap --sample 10%`), the same ones in every process.

Which ones says the hash that a sample's id is in the trace: a sample's generation, verdicts and use
are all there or none of them. Rows of the others are taken as ever and kept nowhere. Standard
library only.
"""

from __future__ import annotations

from rltrace.hooks import recorder as recording
from rltrace.trace.schema import OF_ONE_SAMPLE
from rltrace.trace.segment import Batch, Row, TableWriter, row_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNKNOWN = -1
_BITS = 64


class SampledWriter(TableWriter):
    """Stores the rows of some samples, and those that are of no known one."""

    below = 1 << _BITS
    """Ids are kept whose hash, without its sign, is less."""

    def store(self, values: dict[str, float]) -> Row:
        """As `TableWriter.store`; the row of a sample that is left out is kept in memory, so that
        whoever began it can complete it."""
        if keeps(values.get("trajectory", _UNKNOWN)):
            return super().store(values)
        columns: list[Any] = [[_UNKNOWN] for _ in self.table.columns]
        for name, value in values.items():
            columns[self._places[name]][0] = value
        row: Row = row_at(Row, Batch(1, columns, self._places), 0)
        return row


def keeps(sample: float) -> bool:
    """Whether the rows of a sample are kept; those of no known one (-1) are."""
    return sample == _UNKNOWN or int(sample) % (1 << _BITS) < SampledWriter.below


def start(share: float) -> None:
    """From now on recorders of this process keep that share of the samples."""
    SampledWriter.below = int(share * (1 << _BITS))
    for table in OF_ONE_SAMPLE:
        recording.writers[table] = SampledWriter

"""What a query answers, as columns of whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rltrace.analysis.intervals import Ints

if TYPE_CHECKING:
    from rltrace.trace.run import Run


def columns(run: Run, query: str) -> list[Ints]:
    """The columns of a query over `run`, in its order."""
    table = pa.RecordBatchReader.from_stream(run.sql(query)).read_all()
    return [column.to_numpy().astype(np.int64) for column in table.columns]

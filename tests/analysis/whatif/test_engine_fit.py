"""Engines of sequences whose pace is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rltrace.analysis.whatif.engine_fit import Sequences, fit_engine


def test_a_sequence_that_waits_for_its_tool_runs_with_nobody() -> None:
    """Batches of 2 and of 8 sequences, at 1 + n / 2 seconds a token; all wait for a tool of 100 s
    after the second of four tokens."""
    count = np.repeat([2, 8], [2, 8])
    batch = np.repeat([0, 1], [2, 8])
    begin_s = 1000.0 * batch
    engine, notes = fit_engine(
        Sequences(
            worker=np.zeros(10, np.int64),
            batch=batch,
            begin_s=begin_s,
            end_s=begin_s + 4 * (1 + count / 2) + 100,
            tokens=np.full(10, 4.0),
            env_s=np.full(10, 100.0),
        )
    )
    assert not notes
    assert (engine.token_s, engine.shared_token_s) == pytest.approx((1.0, 0.5))


def test_a_worker_that_never_ran_two_at_once_runs_one_at_a_time() -> None:
    """Two workers, a sequence after the other on each, with pauses between them."""
    begin_s = np.repeat(5.0 * np.arange(12), 2)
    sequences = Sequences(
        worker=np.tile([0, 1], 12),
        batch=np.arange(24) // 6,
        begin_s=begin_s,
        end_s=begin_s + 2,
        tokens=np.full(24, 20.0),
        env_s=np.zeros(24),
    )
    engine, notes = fit_engine(sequences)
    assert engine.slots == 1
    assert "one at a time" in " ".join(notes)
    one_each = replace(sequences, batch=np.arange(24) // 2)  # no second one was there to run
    assert fit_engine(one_each)[0].slots == np.inf

"""Whose chain the reference pass is on: the actors' or the learner's, as it ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrace.analysis.composition import Composition
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.trace import Stage
from rltrace.testing.made import process, run_of

ROLLOUT, REWARD, REFERENCE, TRAIN = Stage.ROLLOUT, Stage.REWARD, Stage.REFERENCE, Stage.TRAIN


def composed(path: Path, *roles: tuple[tuple[Any, float, float], ...]) -> Composition:
    """Of four steps of 10 s in each of which the roles do these things."""
    made = [process("driver", *((("step", n), 10 * n, 10 * n + 10) for n in range(4)))]
    for role, spans in enumerate(roles):
        again = [(s, 10 * n + a, 10 * n + b) for n in range(4) for s, a, b in spans]
        made.append(process(f"role {role}", *again))
    found = summarize(run_of(path, *made), predict=False).composition
    assert found is not None
    return found


def test_a_reference_pass_streamed_with_generation_is_the_actors(tmp_path: Path) -> None:
    """Strictly on policy: training begins when all verdicts and reference log-probs are in."""
    found = composed(
        tmp_path, ((ROLLOUT, 0, 5),), ((REWARD, 1, 6),), ((REFERENCE, 2, 6.5),), ((TRAIN, 6.5, 10),)
    )
    assert found.formula == "(τ_R ∪ τ_V ∪ τ_ref) + τ_T"
    assert found.composed_s == pytest.approx(10)
    assert found.overlap_share == 0


def test_a_reference_pass_beside_training_is_the_actors(tmp_path: Path) -> None:
    found = composed(tmp_path, ((ROLLOUT, 0, 6),), ((REFERENCE, 6, 10),), ((TRAIN, 0, 9),))
    assert found.formula == "max(τ_R + τ_ref, τ_T)"
    assert found.composed_s == pytest.approx(10)


def test_a_reference_pass_before_training_is_the_learners_one_batch_ahead(tmp_path: Path) -> None:
    """Beside generation of the next batch, but so is training."""
    found = composed(tmp_path, ((ROLLOUT, 0, 9),), ((REFERENCE, 0, 3),), ((TRAIN, 3, 10),))
    assert found.formula == "max(τ_R, τ_ref + τ_T)"
    assert found.composed_s == pytest.approx(10)


def test_a_reference_pass_where_training_runs_is_the_learners(tmp_path: Path) -> None:
    found = composed(tmp_path, ((ROLLOUT, 0, 6),), ((REFERENCE, 3, 6), (TRAIN, 6, 10)))
    assert found.formula == "max(τ_R, τ_ref + τ_T)"

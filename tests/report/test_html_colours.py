"""The page's colours: text and marks stand out from their ground, and stages from each other, for
readers who see red and green alike, too."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rltrace import dashboards
from rltrace.report.html.parts import COLOURED, UNATTRIBUTED

Colour = NDArray[np.float64]

TEXT, MARK = 4.5, 3.0
"""WCAG 2.2, 1.4.3 and 1.4.11: least contrast of text, and of graphics that one has to see."""
APART = 9.0  # of CIELAB units; about 2 is just seen
ON_STEPS = ("rollout", "env", "reward", "reference", "logprob", "train", "sync", "wait")
"""The stages of nearly every job; the others have grounds and names beside their colour, too."""

SEEN_BY = {
    "all colours": np.eye(3),
    # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
    "no red (protanopia)": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "no green (deuteranopia)": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
}  # fmt: skip


def colours(theme: int) -> dict[str, Colour]:
    """The variables of the style sheet in linear RGB; theme 0 is light, 1 dark."""
    style = Path(dashboards.folder("report"), "page.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", style)
    assert len(found) > len(COLOURED)
    return {name: _linear(pair[theme]) for name, *pair in found}


def _linear(code: str) -> Colour:
    rgb = np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(a: Colour, b: Colour) -> float:
    """The ratio of relative luminances, 1 to 21."""
    low, high = sorted(float(c @ (0.2126, 0.7152, 0.0722)) + 0.05 for c in (a, b))
    return high / low


def lab(rgb: Colour) -> Colour:
    """CIELAB of linear RGB, D65."""
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(matrix) @ rgb.clip(0, 1) / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_stand_out(theme: int) -> None:
    of = colours(theme)
    for ground in ("ground", "paper", "faint"):
        for text in ("ink", "soft", "accent"):
            assert contrast(of[text], of[ground]) >= TEXT, (text, ground)
    for mood in ("good", "bad", "warn"):
        assert contrast(of[mood], of[f"{mood}-ground"]) >= TEXT, mood
    for mark in (*(stage for stage in COLOURED if stage != UNATTRIBUTED), "bar", "accent"):
        for ground in ("ground", "paper"):
            assert contrast(of[mark], of[ground]) >= MARK, (mark, ground)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("seen_by", SEEN_BY)
def test_stages_are_told_apart(theme: int, seen_by: str) -> None:
    of = colours(theme)
    seen = {stage: lab(SEEN_BY[seen_by] @ of[stage]) for stage in ON_STEPS}
    for a, b in combinations(ON_STEPS, 2):
        assert np.linalg.norm(seen[a] - seen[b]) >= APART, (a, b)

"""Least squares with standard errors that hold where the noise differs from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rltrace.analysis.stats.interval import Interval, around
from rltrace.analysis.stats.student import t95

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """`y = X b + noise`: `b`, the covariance of its error, and the degrees of freedom left."""

    coefficients: Floats
    covariance: Floats
    freedom: int

    def combined(self, weights: ArrayLike) -> Interval:
        """A weighted sum of the coefficients, with its 95 % interval (Student's t)."""
        w = np.asarray(weights, np.float64)
        value = float(w @ self.coefficients)
        half = t95(self.freedom) * math.sqrt(max(0.0, float(w @ self.covariance @ w)))
        return around(value, half)


def fit(x: Floats, y: Floats) -> Fit | None:
    """Ordinary least squares. None where the columns of `x` cannot be told apart or fewer than
    three degrees of freedom are left.

    The covariance is HC3 (MacKinnon and White 1985): each residual is divided by what its row
    leaves of it, so a few rows with much weight do not make the intervals too short.
    """
    rows, columns = x.shape
    if rows - columns < 3 or np.linalg.matrix_rank(x) < columns:
        return None
    inverse = np.linalg.inv(x.T @ x)
    coefficients = inverse @ x.T @ y
    leverage = np.einsum("ij,jk,ik->i", x, inverse, x)
    residual = (y - x @ coefficients) / np.maximum(1e-9, 1 - leverage)
    covariance = inverse @ (x.T * residual**2) @ x @ inverse
    return Fit(coefficients, covariance, rows - columns)

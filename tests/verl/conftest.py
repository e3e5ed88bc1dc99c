"""Traced jobs of verl, one of each kind, each run once for all tests."""

from __future__ import annotations

import importlib.util

from tests.framework_jobs import fixtures_of
from tests.verl.jobs import JOBS, QUICK, make_assets, train

collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]
"""They run by `make test-verl`, where verl is installed."""

assets, finished, job = fixtures_of(JOBS, QUICK, make_assets, train)

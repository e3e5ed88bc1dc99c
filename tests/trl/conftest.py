"""Traced jobs of TRL, one of each kind, each run once for all tests."""

from __future__ import annotations

import importlib.util

from tests.framework_jobs import fixtures_of
from tests.trl.jobs import JOBS, QUICK, make_assets, train

collect_ignore_glob = [] if importlib.util.find_spec("trl") else ["test_*.py"]
"""They run by `make test-trl`, where TRL is installed."""

assets, finished, job = fixtures_of(JOBS, QUICK, make_assets, train)

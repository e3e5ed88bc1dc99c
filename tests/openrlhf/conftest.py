"""Traced jobs of OpenRLHF, one of each kind, each run once for all tests."""

from __future__ import annotations

import importlib.util

from tests.framework_jobs import fixtures_of
from tests.openrlhf.jobs import JOBS, QUICK, make_assets, train

collect_ignore_glob = [] if importlib.util.find_spec("openrlhf") else ["test_[!w]*.py"]
"""They run by `make test-openrlhf`; `test_whole_updates` needs no OpenRLHF."""

assets, finished, job = fixtures_of(JOBS, QUICK, make_assets, train)

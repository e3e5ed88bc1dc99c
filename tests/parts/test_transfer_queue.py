"""TransferQueue 0.1.11 on Ray, between two actors that meet nowhere else, as in AsyncFlow.

Bytes, samples and lags of what is put and got are what the actors counted themselves. Waits and
ages are times, and are held to lie between the calls that they are of.
"""

from __future__ import annotations

from collections import Counter

import pytest

from rltrace.testing.inside.adapters import AGE, LAG, LYING
from tests.framework_jobs import Ended

STEPS = 4
JOB = ("transfer_queue", "queue_loop.py", str(STEPS))
GROUP = 4
CLOCKS_S = 1e-3  # between the job's clock and the trace's, which may drift in a run


def values(job: Ended[str], counter: str) -> list[float]:
    return job.rows(f"SELECT value FROM samples WHERE counter = '{counter}' ORDER BY time_ns")


@pytest.mark.parametrize("what", ["put", "get"])
def test_puts_and_gets_are_waits_within_the_calls_with_what_moved(
    job: Ended[str], what: str
) -> None:
    spans = job.rows(
        "SELECT start_ns, end_ns, bytes, items, version, step FROM spans WHERE stage = 'wait'"
        f" AND name = 'TransferQueue {what}' ORDER BY start_ns"
    )
    for (start_ns, end_ns, *moved, version, _), noted in zip(spans, job.stamps(what), strict=True):
        assert noted["start_ns"] <= start_ns + CLOCKS_S * 1e9
        assert end_ns <= noted["end_ns"] + CLOCKS_S * 1e9
        assert moved == [noted["bytes"], len(noted["keys"])]
        assert what == "get" or version == noted["version"]
    assert what == "put" or {step for *_, step in spans} == set(range(STEPS))


def test_lags_are_those_that_the_trainer_counted(job: Ended[str]) -> None:
    expected = Counter(lag for get in job.stamps("get") for lag in get["lags"])
    assert Counter(values(job, LAG)) == expected
    assert len(expected) > 1


def test_each_sample_has_an_age_from_its_put_to_its_first_get(job: Ended[str]) -> None:
    puts = {key: put for put in job.stamps("put") for key in put["keys"]}
    bounds = sorted(
        (
            (get["start_ns"] - puts[key]["end_ns"]) / 1e9,
            (get["end_ns"] - puts[key]["start_ns"]) / 1e9,
        )
        for get in job.stamps("get")
        for key in get["keys"]
    )
    ages = values(job, AGE)
    assert len(ages) == len(bounds) == STEPS * 2 * GROUP
    # In order, the n-th age lies between the n-th least it can be and the n-th most.
    least, most = (sorted(end) for end in zip(*bounds, strict=True))
    for low, age, high in zip(least, sorted(ages), most, strict=True):
        assert low - CLOCKS_S <= age <= high + CLOCKS_S


def test_what_lies_in_the_queue_is_counted_to_the_end(job: Ended[str]) -> None:
    lying = values(job, LYING)
    assert max(lying) <= STEPS * 2 * GROUP
    assert lying[-1] == 0


def test_a_queue_is_no_framework(job: Ended[str]) -> None:
    assert {process.adapter for process in job.run.processes} <= {None, ""}
    versions = [p.facts["versions"] for p in job.run.processes if "versions" in p.facts]
    assert {"transfer_queue": "0.1.11"} in versions

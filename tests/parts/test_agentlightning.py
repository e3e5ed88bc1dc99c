"""Agent Lightning 0.3.0: its store, runner and tracer, with a stub of a model's server.

What the trace says of rollouts is what the server answered, what the store knows, and what Agent
Lightning's own adapter makes of it; tokens that nobody kept are flagged, not guessed.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from rltrace.testing.inside.hooks import identify
from tests.framework_jobs import Ended

STEPS = 4
JOB = ("agentlightning", "lightning_loop.py", str(STEPS))
GROUP = 4


def test_a_rollout_has_the_tokens_that_its_server_kept_or_a_flag(job: Ended[str]) -> None:
    answers = defaultdict(list)
    for answer in job.stamps("answered"):
        answers[identify(answer["attempt"])].append(answer)
    expected = {}
    for trajectory, of_one in answers.items():
        kept = (1, 1, of_one[0]["prompt"], sum(answer["tokens"] for answer in of_one))
        whole = of_one[0]["whole"]
        expected[trajectory] = (len(of_one), *(kept if whole else (0, 0, None, None)))
    found = job.keyed(
        "SELECT trajectory, turns, token_ids, logprobs, prompt_tokens, response_tokens"
        " FROM trajectories WHERE turns IS NOT NULL"
    )
    assert found == expected
    assert {flags[1] for flags in expected.values()} == {0, 1}


def test_tokens_are_those_of_agent_lightnings_own_adapter(job: Ended[str]) -> None:
    found = job.keyed("SELECT trajectory, response_tokens FROM trajectories WHERE token_ids = 1")
    for taken in job.stamps("taken"):
        trajectory = identify(taken["attempt"])
        if taken["status"] == "succeeded" and trajectory in found:
            assert sum(taken["tokens"]) == found[trajectory]


def test_versions_and_lags_are_those_of_the_resources(job: Ended[str]) -> None:
    taken = {identify(t["attempt"]): t for t in job.stamps("taken")}
    found = job.keyed("SELECT trajectory, first_version, lag FROM lags")
    assert found == {key: (t["version"], t["lag"]) for key, t in taken.items()}
    assert {lag for _, lag in found.values()} == {0, 1}


def test_what_failed_is_told_from_what_was_trained_on(job: Ended[str]) -> None:
    fates = Counter(job.rows("SELECT fate FROM uses"))
    statuses = Counter(taken["status"] for taken in job.stamps("taken"))
    assert fates == Counter(trained=statuses["succeeded"], failed=statuses["failed"])
    assert statuses["failed"] == 1


def test_verdicts_are_those_that_the_agents_gave(job: Ended[str]) -> None:
    noted = {identify(judged["attempt"]): judged["value"] for judged in job.stamps("judged")}
    assert job.keyed("SELECT trajectory, value FROM rewards") == noted
    assert job.rows("SELECT count(*) FROM rewards") == [len(noted)]


def test_groups_are_the_rollouts_of_a_prompt_and_each_has_its_end(job: Ended[str]) -> None:
    assert job.rows('SELECT count(*) FROM trajectories GROUP BY "group"') == [GROUP] * STEPS
    ended = job.rows("SELECT count(*), count(end_ns) FROM trajectories")
    assert ended == [(STEPS * GROUP, STEPS * GROUP)]
    assert job.rows("SELECT count(*) FROM spans WHERE stage = 'rollout'") == [STEPS * GROUP]

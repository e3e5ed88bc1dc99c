"""Whose child a process is, from what the process files say."""

from __future__ import annotations

from typing import Any

import pytest

from rltrace.trace.processes import roles_of_parents


def process(pid: int, ppid: int, start_ns: int, role: str | None = None, **more: Any) -> Any:
    facts = {"node": "n", "host": "h", "pid": pid, "ppid": ppid, "start_ns": start_ns, **more}
    return facts if role is None else {**facts, "role": role}


ACTOR = process(10, 1, 100, "rollout")


def test_a_child_and_its_children_belong_to_the_nearest_role() -> None:
    family = {
        "actor": ACTOR,
        "core": process(11, 10, 200),
        "worker": process(12, 11, 300),
        "forked": process(13, 1, 400, forked_from="core"),  # its parent has ended
        "grader": process(14, 12, 500, "reward"),
        "of the grader": process(15, 14, 600),
    }
    assert roles_of_parents(family) == {
        "core": "rollout",
        "worker": "rollout",
        "forked": "rollout",
        "of the grader": "reward",
    }


def test_of_two_programs_under_one_pid_the_one_that_ran_then_is_the_parent() -> None:
    """Ray executes a worker twice under one pid; later a pid is somebody else's."""
    found = roles_of_parents(
        {
            "first": process(10, 1, 100, "setup"),
            "actor": process(10, 1, 150, "rollout"),
            "child": process(11, 10, 200),
            "next": process(10, 1, 300, "reward"),
            "its child": process(12, 10, 400),
        }
    )
    assert found == {"child": "rollout", "its child": "reward"}


@pytest.mark.parametrize(
    "child",
    [
        process(11, 10, 200, host="another"),
        process(11, 10, 200, node="another"),
        process(11, 1, 200),
        process(11, 10, 50),  # older than whoever has that pid now
        process(11, 12, 200, forked_from="child"),
        {"ppid": [10], "start_ns": "soon", "forked_from": {}},
        {},
    ],
)
def test_nobody_is_taken_for_a_parent_who_is_not(child: dict[str, Any]) -> None:
    assert roles_of_parents({"actor": ACTOR, "child": child}) == {}

"""What is told of an exception: where it was raised, and no word of what the job works on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rltrace.hooks.telling import describe


def raised(function: Callable[[], object]) -> BaseException:
    """What the call raises."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "completion",
    ["my_diagnosis", "None.my_diagnosis", "import my_diagnosis", "max(my_diagnosis=1)"],
)
def test_of_a_completion_that_was_run_only_the_place_is_told(completion: str) -> None:
    """A job that learns to program runs what it generated: its messages are about that."""
    said = describe(raised(lambda: exec(completion, {})))
    assert "diagnosis" not in said
    assert said.split(" at ")[0].endswith("Error")


def test_of_the_job_s_own_code_the_message_is_told() -> None:
    assert describe(raised(lambda: len(5))) == "TypeError: object of type 'int' has no len()"  # type: ignore[arg-type]
    assert describe(raised(lambda: int("diagnosis"))).startswith("ValueError at test_telling.py:")

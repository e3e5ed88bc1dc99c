"""What is told of an exception: where it was raised, and no word of what the job works on."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rltrace.hooks.telling import describe, quoted


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
    said = describe(raised(lambda: exec(compile(completion, "<diagnosis>", "exec"), {})))
    assert re.fullmatch(r"\w+Error in generated code at test_telling.py:\d+", said)


def test_of_the_job_s_own_code_the_kind_and_the_place_are_told() -> None:
    class Refused(Exception):
        pass

    def refuse() -> None:
        raise Refused("diagnosis")

    for function, kind in ((lambda: len(5), "TypeError"), (refuse, "Refused")):  # type: ignore
        assert re.fullmatch(rf"{kind} at test_telling.py:\d+", describe(raised(function)))
    import_module = raised(lambda: importlib.import_module("diagnosis"))
    assert describe(import_module).startswith("ModuleNotFoundError at <frozen importlib")
    assert describe(raised(lambda: os.listdir("/diagnosis"))) == (
        "FileNotFoundError: No such file or directory"
    )
    assert describe(raised(lambda: torch.ones(2) @ torch.ones(3))).startswith("RuntimeError at ")
    assert describe(torch.OutOfMemoryError("diagnosis")) == "OutOfMemoryError"


def test_a_class_that_was_made_of_a_text_is_called_after_its_nearest_base() -> None:
    name = "Diag" + "nosis"  # which does not stand in this file
    made: dict[str, Any] = {"__name__": __name__}
    exec(f"class {name}(KeyError): pass", made)
    kinds = [made[name], type(f"my {name}", (KeyError,), {})]
    kinds += [type(name, (KeyError,), {"__module__": m}) for m in ("os", "none", "builtins")]
    assert {describe(kind("x")) for kind in kinds} == {"KeyError"}


def test_a_number_is_quoted_whatever_its_class_says() -> None:
    class Odd(int):
        def __repr__(self) -> str:
            return "diagnosis"

    assert quoted(Odd(7)) == "7 (Odd)"
    assert quoted(True) == "True (bool)"
    assert quoted("diagnosis") == "a str of length 9"
    assert quoted(10**5000) == "a int"

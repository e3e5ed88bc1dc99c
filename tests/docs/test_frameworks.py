"""docs/frameworks.md says what the adapters are."""

from __future__ import annotations

import re

from rltrace.testing.inside.hooks import stage_code
from rltrace.testing.inside.importers import read_names
from tests.docs.frameworks import (
    BEGIN,
    END,
    PAGE,
    QUANTITIES,
    STAGES,
    adapters,
    made,
    quantities,
    stages,
)


def test_the_tables_are_what_the_adapters_say() -> None:
    text = PAGE.read_text("utf-8")
    between = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert between == made(), "python -m tests.docs.frameworks"


def test_every_stage_of_the_tables_is_one() -> None:
    assert all(stage_code(stage) >= 0 for stage in STAGES)
    for name, adapter in adapters().items():
        assert stages(adapter), name


def test_what_adapters_are_known_to_record_is_found_in_their_code() -> None:
    found = adapters()
    assert quantities(found["verl"]) == set(QUANTITIES)
    assert quantities(found["slime"]) == {
        "samples in time", "their versions", "their tokens", "weights' bytes", "own figures",
    }  # fmt: skip
    assert quantities(found["RLYX"]) == {"weights' bytes"}


def test_the_mapping_on_the_page_is_one(tmp_path: object) -> None:
    [mapping] = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    path = PAGE.__class__(str(tmp_path), "map.toml")
    path.write_text(mapping, "utf-8")
    names = read_names(path)
    assert names.framework == "my-rl"
    assert names.role_of("trainer 0") == "learner"

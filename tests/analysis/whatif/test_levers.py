"""The levers there are, and the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path

from rltrace.analysis.whatif.levers import LEVERS

PAGE = Path(__file__).parents[3] / "docs" / "whatif.md"


def test_the_page_lists_every_lever_and_no_other() -> None:
    section = PAGE.read_text("utf-8").partition("## Levers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(LEVERS)

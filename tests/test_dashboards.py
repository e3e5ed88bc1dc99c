"""The folder dashboards/ is in the wheel and found there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rltrace import dashboards

ROOT = Path(__file__).parents[1]


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is made of the source distribution, unpacked."""
    pytest.importorskip("build", reason="needs the `build` package, of the [dev] extra")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "-o", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_every_file_of_dashboards(installed: Path) -> None:
    git = ["git", "ls-files", "dashboards"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    tracked = done.stdout.split()
    expected = {name.removeprefix("dashboards/") for name in tracked} or files(ROOT / "dashboards")
    assert expected
    assert expected <= files(installed / "rltrace/dashboards")
    assert not (installed / "dashboards").exists()


def test_a_checkout_and_an_installation_find_their_own(installed: Path, tmp_path: Path) -> None:
    assert dashboards.folder("sql") == ROOT / "dashboards/sql"
    program = "from rltrace import dashboards; print(dashboards.folder('sql'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == installed / "rltrace/dashboards/sql"

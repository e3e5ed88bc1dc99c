"""The finder sees a module's import and disturbs nothing about it."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import runpy
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rltrace.hooks.import_finder import ImportFinder as Finder


class Watch:
    """A finder, modules that it watches, and what it reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: list[tuple[str, str]] = []
        self.executed: list[str] = []
        self.finder = Finder(lambda name, error: self.errors.append((name, str(error))))

    def after(self, *names: str) -> None:
        for name in names:
            self.finder.after(name, lambda module: self.executed.append(module.__name__))

    def write(self, name: str, text: str = "") -> None:
        """Writes a module, which is watched."""
        path = self.folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.after(name.removesuffix(".__init__"))


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """The finder at work, with `tmp_path` on sys.path."""
    watch = Watch(tmp_path)
    known = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [watch.finder, *sys.meta_path])
    yield watch
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_before_and_after_surround_the_modules_code(watch: Watch) -> None:
    order: list[str] = []
    watch.write("rlt_one", "import sys; sys.rlt_order.append('code')")
    sys.rlt_order = order  # type: ignore[attr-defined]
    watch.finder.before("rlt_one", lambda: order.append("before"))
    watch.finder.after("rlt_one", lambda module: order.append("after"))
    importlib.import_module("rlt_one")
    assert order == ["before", "code", "after"]


def test_two_finders_both_see_a_module(watch: Watch) -> None:
    other = Watch(watch.folder)
    sys.meta_path.insert(0, other.finder)  # type: ignore[arg-type]
    watch.write("rlt_two")
    other.after("rlt_two")
    two = importlib.import_module("rlt_two")
    assert watch.executed == other.executed == ["rlt_two"]
    assert "exec_module" not in vars(two.__loader__)


def test_what_is_imported_already_is_told_at_once_and_again_when_reloaded(watch: Watch) -> None:
    watch.after("json")
    assert watch.executed == ["json"]
    watch.write("rlt_again")
    module = importlib.import_module("rlt_again")
    assert importlib.reload(module) is module
    assert watch.executed == ["json", "rlt_again", "rlt_again"]


def test_the_module_is_loaded_by_its_own_loader(watch: Watch) -> None:
    watch.write("rlt_pkg.__init__", "from . import inner")
    watch.write("rlt_pkg.inner", "x = 1")
    module = importlib.import_module("rlt_pkg")
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert "exec_module" not in vars(module.__loader__)
    assert watch.executed == ["rlt_pkg.inner", "rlt_pkg"]
    assert [m.name for m in pkgutil.iter_modules(module.__path__)] == ["inner"]


def test_an_error_in_the_module_is_the_modules_and_one_in_a_callback_is_ours(watch: Watch) -> None:
    def fail(module: Any) -> None:
        raise RuntimeError("ours")

    watch.write("rlt_bad", "1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            importlib.import_module("rlt_bad")
    assert "rlt_bad" not in sys.modules
    assert watch.executed == []
    watch.write("rlt_fine")
    watch.finder.after("rlt_fine", fail)
    importlib.import_module("rlt_fine")
    assert watch.errors == [("rlt_fine", "ours")]


def test_modules_in_zip_files_share_a_loader(watch: Watch) -> None:
    archive = watch.folder / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("rlt_zip_a.py", "import rlt_zip_b")
        file.writestr("rlt_zip_b.py", "x = 2")
    sys.path.insert(0, str(archive))
    watch.after("rlt_zip_a", "rlt_zip_b")
    module = importlib.import_module("rlt_zip_a")
    assert watch.executed == ["rlt_zip_b", "rlt_zip_a"]
    assert type(module.__loader__).__name__ == "zipimporter"


def test_namespace_packages_stay_that(watch: Watch) -> None:
    watch.after("rlt_space")
    watch.write("rlt_space.inside", "x = 3")
    assert importlib.import_module("rlt_space.inside").x == 3
    assert type(sys.modules["rlt_space"].__path__).__name__ == "_NamespacePath"
    assert watch.executed == ["rlt_space.inside"]


def test_frozen_and_builtin_modules(watch: Watch) -> None:
    for name in ("__phello__", "_xxsubinterpreters"):
        watch.after(name)
        if importlib.util.find_spec(name) is None:
            continue
        loader = importlib.import_module(name).__loader__
        assert "rltrace" not in type(loader).__module__
        assert name in watch.executed


def test_a_loader_without_exec_module_is_left_alone(watch: Watch) -> None:
    class Old:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return importlib.util.spec_from_loader(name, self) if name == "rlt_old" else None  # type: ignore[arg-type]

        def load_module(self, name: str) -> Any:
            sys.modules[name] = module = type(sys)(name)
            return module

    sys.meta_path.append(Old())  # type: ignore[arg-type]
    watch.after("rlt_old")
    if sys.version_info < (3, 15):
        with pytest.warns(ImportWarning):
            assert importlib.import_module("rlt_old").__name__ == "rlt_old"


def test_looking_for_a_module_without_importing_it(watch: Watch) -> None:
    watch.write("rlt_looked", "x = 4")
    spec = importlib.util.find_spec("rlt_looked")
    assert spec is not None
    assert spec.loader is not None
    assert type(spec.loader).__name__ == "SourceFileLoader"
    assert runpy.run_module("rlt_looked")["x"] == 4
    assert watch.executed == []
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert watch.executed == ["rlt_looked"]


def test_lazy_loading_stays_lazy(watch: Watch) -> None:
    watch.write("rlt_lazy", "x = 5")
    spec = importlib.util.find_spec("rlt_lazy")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert watch.executed == []
    assert module.x == 5
    assert watch.executed == ["rlt_lazy"]

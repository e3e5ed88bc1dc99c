"""Records which of the options that a framework's settings name a version has, and of what kind.

    python -m tests.adapters.record_options FRAMEWORK VERSION FOLDER WHERE...

`FRAMEWORK` is the name of its file of settings, `FOLDER` the version's source tree. `WHERE` is a
file below it, Python that adds arguments to a parser or YAML of a configuration, or `module:Class`,
that of a configuration (read by a Python that knows the version's syntax). Writes into
`options/<framework>.json`: version -> option -> kind.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from tests.adapters.option_classes import of_classes
from tests.adapters.settings import plain, settings_file
from tests.adapters.sources import Tree

FOLDER = Path(__file__).with_name("options")


def named(framework: str) -> set[str]:
    """The options that the settings of a framework name."""
    settings = settings_file(framework)["setting"]
    found = {setting["option"] for setting in settings}
    more = (setting.get(key, {}) for setting in settings for key in ("needs", "exactly"))
    found |= {option for options in more for option in options}
    return {plain(option) for option in found}


def of_parser(source: str) -> dict[str, str]:
    """The options that a source adds to a parser: `flag`, a type's name (with an s where it takes
    several), or its choices."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            known = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            kind = "flag" if known.get("action") == "'store_true'" else known.get("type", "str")
            kind += "s" if "nargs" in known else ""
            for name in names:
                found[str(name)] = known.get("choices", kind)
    return found


def of_yaml(text: str) -> dict[str, str]:
    """The keys of a configuration, with the kinds of their values; `any` where it is None or said
    elsewhere."""
    import yaml

    found: dict[str, str] = {}

    def walk(node: Any, prefix: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            elif value is None or str(value).startswith("${"):
                found[f"{prefix}{key}"] = "any"
            else:
                found[f"{prefix}{key}"] = type(value).__name__

    walk(yaml.safe_load(text), "")
    return found


def known(folder: Path, where: str) -> dict[str, str]:
    """The options that a version has at one place."""
    if ":" in where:
        return of_classes(Tree(folder), where)
    of = of_yaml if where.endswith((".yaml", ".yml")) else of_parser
    return of((folder / where).read_text("utf-8"))


def main() -> None:
    """Records what the command line names."""
    framework, version, folder, *places = sys.argv[1:]
    options: dict[str, str] = {}
    for where in reversed(places):  # of several that have it, the first one's kind
        options |= known(Path(folder), where)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{framework}.json"
    recorded = json.loads(path.read_text("utf-8")) if path.exists() else {}
    wanted = named(framework)
    recorded[version] = {option: options[option] for option in sorted(wanted & options.keys())}
    path.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

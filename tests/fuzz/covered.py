"""Which lines of a target's modules its corpus reaches: `python -m tests.fuzz.covered NAME FOLDER`.

Prints JSON: module -> [lines reached, lines there are]. Imports count, as in any coverage.
"""

from __future__ import annotations

import contextlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    import coverage

    name, folder = sys.argv[1], Path(sys.argv[2])
    measured = coverage.Coverage(data_file=None, include=["*/rltrace/*"])
    measured.start()
    from tests.fuzz.target import folder_in_memory
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    with folder_in_memory() as place:
        for data in [*target.seeds(), *(path.read_bytes() for path in sorted(folder.glob("*")))]:
            with contextlib.suppress(Exception):  # findings are told where they are found
                target(data, place)
    measured.stop()
    lines = {}
    for module in target.modules:
        spec = find_spec(module)
        assert spec is not None
        _, there, _, missed, _ = measured.analysis2(str(spec.origin))
        lines[module] = [len(there) - len(missed), len(there)]
    print(json.dumps(lines))


if __name__ == "__main__":
    main()

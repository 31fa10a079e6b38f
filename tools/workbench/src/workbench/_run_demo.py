"""The child process of one demo: ``python -m workbench._run_demo NAME OUT``."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path


def main() -> None:
    """Loads the entry point and calls it with its folder."""
    name, out = sys.argv[1:]
    # Pictures go to files: a demo must not need, or find, a display.
    os.environ.setdefault("MPLBACKEND", "Agg")
    (point,) = entry_points(group="workbench.demos", name=name)
    demo = point.load()
    demo(Path(out))


if __name__ == "__main__":
    main()

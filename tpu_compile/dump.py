"""The text of each compile step, as numbered files in a folder."""

from __future__ import annotations

import itertools
from pathlib import Path

from torch import fx

_numbers = itertools.count()


class Dump:
    """Writes one graph's steps; does nothing without a folder.

    Files are ``<graph>_<kind>/<step>_<name>.<ending>``; a pass that changed nothing writes none.
    """

    def __init__(self, folder: Path | None, kind: str) -> None:
        self.enabled = folder is not None
        self._steps = itertools.count()
        if folder is not None:
            self._folder = folder / f"{next(_numbers):03}_{kind}"
            self._folder.mkdir(parents=True, exist_ok=True)

    def text(self, name: str, text: str, ending: str) -> None:
        """Writes one step."""
        if self.enabled:
            path = self._folder / f"{next(self._steps):02}_{name}.{ending}"
            path.write_text(text)

    def graph(self, name: str, gm: fx.GraphModule) -> None:
        """Writes a graph as Python code with each value's type."""
        if self.enabled:
            self.text(name, gm.print_readable(print_output=False), "py")

    def observe(self, name: str, gm: fx.GraphModule, changes: int) -> None:
        """Writes a graph after a pass that changed it."""
        if changes:
            self.graph(name, gm)

"""Yes, or no and why: what a pattern, a kernel or a partition decision answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A decision. True when there is no reason against it."""

    why_not: str = ""

    def __bool__(self) -> bool:
        return not self.why_not


YES = Verdict()

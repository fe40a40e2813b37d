"""What can go wrong with the texts and files of ``aot_compile``, one class per mistake."""

from __future__ import annotations

from tpu_compile.errors import TpuCompileError


class UnreadableHlo(TpuCompileError, ValueError):
    """HLO text that the parser does not understand."""

    text = (
        "line {line} of the HLO module: {why}.\n  {source}\n"
        "The text must be that of a compiled program, `compiled.as_text()`."
    )

    @staticmethod
    def at(line: int, source: str, why: str) -> UnreadableHlo:
        """The error for a line, of which it quotes the beginning."""
        return UnreadableHlo(line=line, why=why, source=source.strip()[:200])


class UnknownChip(TpuCompileError, ValueError):
    """A chip that there are no figures for."""

    text = "no TPU chip is called {name!r}. Known chips: {known}."


class NotAnAotFile(TpuCompileError, ValueError):
    """A file is not one that ``AotResult.save`` wrote."""

    text = "{path} is not a saved aot_compile result: {why}."


class BadScript(TpuCompileError, ValueError):
    """``SCRIPT.py:fn`` can't be used."""

    text = (
        "{given}: {why}. Name a function as SCRIPT.py:fn that takes nothing and returns "
        "(model, args) or (model, args, kwargs)."
    )

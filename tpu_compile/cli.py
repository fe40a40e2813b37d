"""The ``tpu-compile`` command: picks a command's module and runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from tpu_compile import __version__


@dataclass(frozen=True)
class Command:
    """A command: ``module`` has ``add_arguments(parser)`` and ``run(args) -> exit code``."""

    name: str
    module: str
    summary: str


COMMANDS = (
    Command("demo", "tpu_compile.demo", "compile a small Llama and compare it with eager torch"),
    Command("aot", "tpu_compile.aot.command", "compile a model for a TPU topology, with no TPU"),
    Command("doctor", "tpu_compile.doctor", "check this installation and say what to do"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="tpu-compile", description='Tools of the torch.compile backend "tpu".'
    )
    parser.add_argument("--version", action="version", version=f"tpu_compile {__version__}")
    choices = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command in COMMANDS:
        arguments = choices.add_parser(
            command.name, help=command.summary, description=command.summary
        )
        # Only the chosen command is imported: --help and --version stay instant.
        if command.name in given[:1]:
            module = import_module(command.module)
            module.add_arguments(arguments)
            arguments.set_defaults(run=module.run)
    args = parser.parse_args(given)
    return int(args.run(args))

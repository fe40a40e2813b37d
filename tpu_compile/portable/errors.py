"""What can go wrong with exported models, one class per mistake."""

from __future__ import annotations

from tpu_compile.errors import TpuCompileError

# ---------------------------------------------------------------- exporting


class NotExportable(TpuCompileError, NotImplementedError):
    """A model, its arguments or a platform that can't be written to a file."""

    text = "{what} can't be exported: {why}"


# ---------------------------------------------------------------- loading


class NotAnExport(TpuCompileError, ValueError):
    """A file that ``tpu_compile.export`` did not write."""

    text = "{path} was not written by tpu_compile.export: {why}."


class DamagedExport(TpuCompileError, ValueError):
    """A file that was written by ``tpu_compile.export`` and is not what it was."""

    text = "{path} is damaged: {why}. Copy the file again, or export the model again."


class NewerFormat(TpuCompileError, ValueError):
    """A file of a format version that came after this package."""

    text = (
        "{path} has format version {found}, written by tpu_compile {writer}; this is tpu_compile "
        "{here}, which reads versions up to {known}. Install a newer tpu_compile to load it."
    )


class PlatformNotExported(TpuCompileError, RuntimeError):
    """A file holds no program for the platform it is loaded on."""

    text = (
        "{path} holds programs for {platforms}, none for {wanted!r}. Export the model again with "
        "platforms=(..., {wanted!r}), or load it with device={instead!r}."
    )


class ExecutableRefused(TpuCompileError, RuntimeError):
    """A saved executable was required, and it can't run here."""

    text = (
        "the executable saved in {path} can't be used here: {why}. Load with executable='auto' to "
        "compile the model's StableHLO instead, or export again with these versions and for this "
        "device."
    )


# ---------------------------------------------------------------- calling


class WrongInput(TpuCompileError, TypeError):
    """An argument is not like the one that the model was exported with."""

    text = "input {name}: {why}. A loaded model takes what it was exported with: {signature}."

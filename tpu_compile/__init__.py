"""``torch.compile(model, backend="tpu")``: the public names, each imported on first use."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

_here = Path(__file__).parent
if not (_here / "lowering").is_dir():  # source checkout: sub-packages are siblings (setup.cfg)
    __path__.append(str(_here.parent))

if TYPE_CHECKING:
    from tpu_compile import errors
    from tpu_compile.accuracy.bisection import bisect
    from tpu_compile.aot.compiling import aot_compile
    from tpu_compile.compile_log import recompiles, stage_times
    from tpu_compile.explanation import explain
    from tpu_compile.options import Options
    from tpu_compile.portable.loading import load
    from tpu_compile.portable.saving import export

__version__ = "0.1.0"

__all__ = [
    "Options",
    "__version__",
    "aot_compile",
    "bisect",
    "errors",
    "explain",
    "export",
    "load",
    "recompiles",
    "stage_times",
]

# Looking the backend up by its entry point imports this package, so it has to cost nothing.
# No function here is called like a module of the package: importing the module would replace it.
_MODULE_OF = {
    "Options": "tpu_compile.options",
    "aot_compile": "tpu_compile.aot.compiling",
    "bisect": "tpu_compile.accuracy.bisection",
    "errors": "tpu_compile.errors",
    "explain": "tpu_compile.explanation",
    "export": "tpu_compile.portable.saving",
    "load": "tpu_compile.portable.loading",
    "recompiles": "tpu_compile.compile_log",
    "stage_times": "tpu_compile.compile_log",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULE_OF[name])
    value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

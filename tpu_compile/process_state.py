"""Whatever is set for the whole process, of torch, JAX or the environment: ``doctor`` lists it."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpu_compile import chips

# Without a TPU, libtpu asks a metadata server that is not there for its slice, and complains of
# missing host names. And only one process may load it, which makes sense of chips and not of a
# compiler. Set only where the user has set nothing.
NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any; topologies are described apart from it
}


@dataclass(frozen=True)
class Setting:
    """One process-wide change.

    Attributes:
        name: what is set.
        why: what it is for, and how long it lasts.
        current: what it is now, as text.
    """

    name: str
    why: str
    current: Callable[[], str]


def _search() -> str:
    if "jax" not in sys.modules:
        return "not set"
    from tpu_compile import jax_internals

    return "skipped" if jax_internals.tpu_search_skipped() else "as JAX does it"


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "torch.ops.tpu",
        "the custom ops that graphs hold after our passes; defined at the first compile",
        lambda: "defined" if "tpu_compile.random_ops" in sys.modules else "not defined",
    ),
    Setting(
        "JAX's search for TPUs",
        "skipped from the first compile on where no chip is attached: it takes seconds",
        _search,
    ),
    Setting(
        "torch's Python kernels of ops that have rules",
        "put aside while a graph is traced, so that the ops reach their rules whole",
        lambda: "in place, but for the time of a compile",
    ),
    Setting(
        "Python's cycle collector",
        "off while a graph is compiled, where it was on",
        lambda: "on" if gc.isenabled() else "off",
    ),
    *(
        Setting(
            f"environment variable {name}",
            "keeps libtpu quiet; set at the first compile where no chip is attached",
            lambda name=name: os.environ.get(name, "not set"),  # type: ignore[misc]
        )
        for name in NO_TPU
    ),
)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Puts Python's cycle collector off. Among the many objects of a trace it finds nothing, and
    takes up to a quarter of a large graph's compile time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def without_tpu() -> None:
    """Keeps JAX and libtpu quick and quiet where no chip is attached; call before JAX starts."""
    if chips.attached():
        return
    from tpu_compile import jax_internals

    jax_internals.skip_tpu_search()
    for name, value in NO_TPU.items():
        os.environ.setdefault(name, value)

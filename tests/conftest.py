"""Every test draws the same numbers in each run, and no cache of an earlier run reaches it."""

import os
import tempfile
from collections.abc import Iterator

import pytest
import torch

from tpu_compile import process_state

# no test sees programs or graphs that an earlier version compiled or traced
_folder = tempfile.TemporaryDirectory(prefix="tpu_compile_tests_")
os.environ.setdefault("TPU_COMPILE_CACHE_DIR", _folder.name)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{_folder.name}/torch"  # AOTAutograd's lies there
for _name, _value in process_state.NO_TPU.items():
    os.environ.setdefault(_name, _value)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """An empty Dynamo, whose limit of recompiles counts per code object, and one seed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()

"""One cache folder per test run, and a TPU compiler that several processes can load."""

import os
import tempfile

from tpu_compile import process_state

# no test sees programs that an earlier version compiled
_folder = tempfile.TemporaryDirectory(prefix="tpu_compile_tests_")
os.environ.setdefault("TPU_COMPILE_CACHE_DIR", _folder.name)
for _name, _value in process_state.NO_TPU.items():
    os.environ.setdefault(_name, _value)

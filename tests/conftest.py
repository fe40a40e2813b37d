"""One cache folder per test run: no test sees programs that an earlier version compiled."""

import os
import tempfile

_folder = tempfile.TemporaryDirectory(prefix="tpu_compile_tests_")
os.environ.setdefault("TPU_COMPILE_CACHE_DIR", _folder.name)

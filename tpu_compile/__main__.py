"""``python -m tpu_compile``: the same as the ``tpu-compile`` command."""

import sys

from tpu_compile.cli import main

if __name__ == "__main__":
    sys.exit(main())

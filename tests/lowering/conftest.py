"""Puts this folder on the path, for the table of OpInfo cases beside the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

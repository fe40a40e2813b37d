"""Generated pages are current, and links in the documentation lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_compile import errors

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_supported_ops_page_is_current(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r});"
        "import generate_supported_ops as g; sys.stdout.write(g.page())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    page = (ROOT / "docs" / "supported_ops.md").read_text()
    assert page == done.stdout, "run python docs/generate_supported_ops.py"


def test_every_error_is_listed() -> None:
    lines = (ROOT / "docs" / "errors.md").read_text().splitlines()
    for name, cls in vars(errors).items():
        own = isinstance(cls, type) and cls.__module__ == errors.__name__
        bases = (errors.TpuCompileError, errors.TpuCompileWarning)
        if own and issubclass(cls, Exception) and cls not in bases:
            first = (cls.__doc__ or "").splitlines()[0]
            assert f"| `{name}` | {first} |" in lines


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target

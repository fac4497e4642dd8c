"""What a page names is there: files and folders, tests, and modules of the package."""

import pkgutil
import re
from pathlib import Path

import pytest

from zae_limiter.telemetry.events import events_logger
from zae_limiter.telemetry.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]
# What the page of mutations names is looked up by its own test.
PAGES = [
    *("CONTRIBUTING.md", "README.md", "examples/README.md", "examples/store/README.md"),
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md") if p.name != "mutation.md"),
]
ROOMS = tuple(path.name for path in (ROOT / "src").iterdir() if path.is_dir())

PATH = re.compile(r"(?<![\w./-])(?:tests|src|benchmarks|examples)/[\w./-]*\w")
TEST_FILE = re.compile(r"`(test_\w+\.py)`")
TEST = re.compile(r"(?:::|`)(test_\w+)`")
MODULE = re.compile(rf"(?<![\w./-])(?:tests|{'|'.join(ROOMS)})(?:\.\w+)+")

NAMED_LIKE_MODULES = {events_logger.name, *(metric.name for metric in METRICS)}

TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
SOURCES = "\n".join(path.read_text() for path in TESTS)


def missing(text: str, folder: Path = ROOT) -> list[str]:
    """All that a page in a folder names and nobody finds."""
    paths = [path for path in PATH.findall(text) if not any((it / path).exists() for it in (ROOT, folder))]
    files = [name for name in TEST_FILE.findall(text) if name not in {path.name for path in TESTS}]
    tests = [name for name in TEST.findall(text) if f"def {name}(" not in SOURCES]
    return [*paths, *files, *tests, *(name for name in MODULE.findall(text) if not is_there(name))]


def is_there(dotted: str) -> bool:
    """Whether this is a module, or something in one, a metric or a logger."""
    if dotted in NAMED_LIKE_MODULES:
        return True
    try:
        return pkgutil.resolve_name(dotted) is not None
    except (ImportError, AttributeError):
        return False


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    """A reader who follows a name of a file, a test or a module finds it."""
    path = ROOT / page
    assert missing(path.read_text(), path.parent) == []


def test_what_is_not_there_is_seen() -> None:
    """Each kind of name, right and wrong."""
    right = "`tests/test_tidy.py::test_modules_have_telling_names` `zae_limiter.schema.text` `tests.stores`"
    assert missing(right) == []
    wrong = "`tests/test_gone.py` `test_old.py` `::test_of_nothing_at_all` `zae_limiter.tills` `tests.stage`"
    assert len(missing(wrong)) == 5

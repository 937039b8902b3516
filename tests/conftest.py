from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.slow import is_slow
from tests.warm import WarmProcess

# A shell starts background jobs with SIGINT ignored; the tests of Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

GOLDEN = Path(__file__).parent / "golden" / "expected"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/expected instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcess]:
    """An interpreter with torch imported. Its forked children run code that may kill, hang or fill a process."""
    process = WarmProcess()
    yield process
    process.close()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)`` compares a text with tests/golden/expected/NAME.txt.

    ``pytest --update-golden`` writes the files instead; read the difference in git before committing it.
    """

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing; write it with pytest --update-golden"
        assert text == path.read_text(), f"not as in {path.name}; if it is right, run pytest --update-golden"

    return compare

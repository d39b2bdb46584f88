"""Fixtures of all tests; `ask` sends a request in each of the four modes."""

import faulthandler
import gc
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from itertools import filterfalse
from typing import Any

import pytest
from hypothesis import settings

from chatclient import ChatModel
from chatclient.testing import ask  # noqa: F401 - a fixture
from tests.support.clock import Clock
from tests.support.examples import day
from tests.support.paths import ROOT
from tests.support.servers import ChatServer

# Failures of this project's own tests show the frames of the library.
os.environ["CHATCLIENT_FULL_TRACEBACK"] = "1"

# Examples are deterministic; --hypothesis-profile=default tries random ones, `few` a fifth.
settings.register_profile("same", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("few", settings.get_profile("same"), max_examples=20)
settings.load_profile("same")


# Collecting tests makes millions of objects that live until the end. Garbage collection would look
# at all of them each time, which takes a second in some hundred tests, so they are set aside.
gc.disable()


class HangingTests:
    """Prints after five minutes where a test hangs.

    pytest's option for this starts and joins a thread in each test, and that takes up to 8 ms.
    """

    def __init__(self) -> None:
        self._stderr = os.fdopen(os.dup(2), "w")  # tests write into another one
        self._began = -math.inf

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() - self._began > 60:
            self._began = time.monotonic()
            faulthandler.dump_traceback_later(300, file=self._stderr)

    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._stderr.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fifth",
        action="store_true",
        help="of exhaustive and live tests, run a fifth: another one each day",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(HangingTests())


# The directories whose files take longest, so that all workers are busy until the end.
FIRST = ("ways", "durable", "web", "docs", "mcp", "packaging", "stores", "properties")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start a process as exhaustive, except the first of each kind.

    Also choose those of this day, and put tests in the order in which workers take them.
    """
    kinds: set[str] = set()
    for item in items:
        mark = item.get_closest_marker("process")
        if mark is not None and item.get_closest_marker("exhaustive") is None:
            [kind] = mark.args
            if kind in kinds:
                item.add_marker("exhaustive")
            kinds.add(kind)
    if config.option.fifth:
        others = [item for item in items if _is_large(item) and not _is_of_this_day(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = filterfalse(set(others).__contains__, items)
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(FIRST)))


def _is_large(item: pytest.Item) -> bool:
    """Return whether CI runs the test on one day of five only.

    That is one which is exhaustive, or of the local model and not a smoke test.
    """
    exhaustive = item.get_closest_marker("exhaustive")
    if exhaustive is not None:
        return not exhaustive.kwargs.get("in_ci", False)
    return item.get_closest_marker("live") is not None and item.path.name != "test_smoke.py"


def _is_of_this_day(item: pytest.Item) -> bool:
    return (zlib.crc32(item.nodeid.encode()) + day().toordinal()) % 5 == 0


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect no garbage while a traceback is formatted.

    Both that and a destructor that warns make syntax trees, and CPython 3.11 cannot make one within
    another: it raises `SystemError: AST constructor recursion depth mismatch`, which ends the run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _measured_file(request: pytest.FixtureRequest) -> None:
    """Let `make coverage` know which file of tests runs a line."""
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measuring := coverage.Coverage.current()) is not None:
        measuring.switch_context(request.path.relative_to(ROOT).as_posix())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def chat_server() -> Iterator[Callable[..., ChatServer]]:
    """Start Chat Completions servers that are closed after the test."""
    servers: list[ChatServer] = []

    def start(*replies: Any) -> ChatServer:
        servers.append(ChatServer(*replies))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(params=["httpx", "httpx2"])
def http_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test over each HTTP library that is installed."""
    pytest.importorskip(request.param)
    monkeypatch.setenv("CHATCLIENT_HTTP", request.param)
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def local_model() -> Iterator[ChatModel]:
    """Return the local model for tests marked `live`; `make test` downloads its weights."""
    from chatclient.providers.local.hub import QWEN_CODER_1_5B, find_installed
    from chatclient.providers.local.model import LocalChatModel

    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    if find_installed(QWEN_CODER_1_5B) is None:
        pytest.skip("the dependency group `weights` is not installed")
    with LocalChatModel() as model:
        yield model

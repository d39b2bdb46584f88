"""A pytest plugin that records the responses of a real model once, and replays them later.

```text
pytest_plugins = ["chatclient.testing.plugin"]    # in the top conftest.py

pytest --chatclient-record=once    # record tests without a recording
pytest                             # replay; a test without a recording fails
```
"""

import hashlib
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from chatclient.chat.model import ChatModel
from chatclient.testing.ask import Ask, Mode
from chatclient.testing.recording import Recording, RecordingModel, ReplayingModel


@pytest.fixture(params=get_args(Mode))
def ask(request: pytest.FixtureRequest) -> Ask:
    """Return a function that sends a request and returns what came; once for each mode."""
    return Ask(request.param)


MakeModel = Callable[[], ChatModel]

_PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--chatclient-record`."""
    parser.getgroup("chatclient").addoption(
        "--chatclient-record",
        choices=["none", "once", "all"],
        default="none",
        help="record real models: never, if there is no recording, or always",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record whether a test has passed; a test that skips itself has not."""
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture
def chat_redact() -> Callable[[str], str]:
    """Return a function that removes secrets from recordings; override it in a conftest."""
    return str


@pytest.fixture
def recorded_model(
    request: pytest.FixtureRequest, chat_redact: Callable[[str], str]
) -> Iterator[Callable[[MakeModel], ChatModel]]:
    """Return a function that creates the model of a test: a recording or a replaying one.

    Its argument is a function that creates the real model, which is only called for recording. If
    the test passes, the recording is saved in the directory of the test module as
    `recordings/<module>/<test>.json`, or `recordings/<module>/<class>.<test>.json` for a method. A
    test fails if its replay leaves exchanges unused.
    """
    classes = [node.name for node in request.node.listchain() if isinstance(node, pytest.Class)]
    full_name = ".".join([*classes, request.node.name])
    name = re.sub(r"[^\w.-]+", "_", full_name)[:_LONGEST_NAME]
    if len(full_name) > _LONGEST_NAME or not _PLAIN.fullmatch(full_name):
        # Test names may differ only in characters that are replaced.
        name += f"-{hashlib.sha256(full_name.encode()).hexdigest()[:8]}"
    path = Path(request.path.parent, "recordings", request.path.stem, f"{name}.json")
    mode = request.config.getoption("--chatclient-record")
    models: list[Any] = []

    def make(real: MakeModel) -> ChatModel:
        if models:
            pytest.fail("recorded_model() can be called once per test")
        if path.exists() and mode != "all":
            models.append(ReplayingModel(Recording.load(path, redact=chat_redact)))
        elif mode == "none":
            pytest.fail(f"no recording at {path}; run pytest with --chatclient-record=once")
        else:
            models.append(RecordingModel(real(), Recording(chat_redact)))
        return models[0]  # type: ignore[no-any-return]

    yield make
    passed = request.node.stash.get(_PASSED, False)
    for model in models:
        if isinstance(model, RecordingModel):
            model.close()
            if passed:
                model.recording.save(path)
        elif passed and model.unused:
            pytest.fail(f"{len(model.unused)} recorded exchanges were not used: {path}")


_PLAIN = re.compile(r"[\w.-]+(\[[\w.-]+\])?")
_LONGEST_NAME = 100

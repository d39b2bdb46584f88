"""A pytest plugin: tests that record a real model once, and replay it ever after.

```text
pytest_plugins = ["chatclient.testing.plugin"]    # in the top conftest.py

pytest --chatclient-record=once    # record what has no recording yet
pytest                             # replay; a test without a recording fails
```
"""

import hashlib
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatclient.model import ChatModel
from chatclient.testing.recording import Recording, RecordingModel
from chatclient.testing.replaying import ReplayingModel

MakeModel = Callable[[], ChatModel]

_PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says when to record."""
    parser.getgroup("chatclient").addoption(
        "--chatclient-record",
        choices=["none", "once", "all"],
        default="none",
        help="record real models: never, where there is no recording, or anew",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Take note whether a test ran to its end: one that is skipped in it has not failed either."""
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture
def chat_redact() -> Callable[[str], str]:
    """Return what removes secrets from recordings; override it in a conftest."""
    return str


@pytest.fixture
def recorded_model(
    request: pytest.FixtureRequest, chat_redact: Callable[[str], str]
) -> Iterator[Callable[[MakeModel], ChatModel]]:
    """Return what makes the model of a test: recorded, or replayed.

    Call it with a function that makes the real model, which is only called for recording. When the
    test passes, its recording is kept beside it, as `recordings/<module>/<test>.json`, or
    `recordings/<module>/<class>.<test>.json` for a test in a class. A replay that leaves recorded
    exchanges unused fails.
    """
    path = _path_of(request)
    mode = request.config.getoption("--chatclient-record")
    models: list[Any] = []

    def make(real: MakeModel) -> ChatModel:
        if models:
            pytest.fail("recorded_model() makes one model for each test")
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
            pytest.fail(f"{len(model.unused)} recorded exchanges were not asked for: {path}")


_PLAIN = re.compile(r"[\w.-]+(\[[\w.-]+\])?")
_LONGEST_NAME = 100


def _path_of(request: pytest.FixtureRequest) -> Path:
    """Return where a test's recording is kept."""
    classes = [node.name for node in request.node.listchain() if isinstance(node, pytest.Class)]
    whole = ".".join([*classes, request.node.name])
    name = re.sub(r"[^\w.-]+", "_", whole)[:_LONGEST_NAME]
    if len(whole) > _LONGEST_NAME or not _PLAIN.fullmatch(whole):
        # Parameters may differ only in what cannot stand in the name of a file.
        name += f"-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return Path(request.path.parent, "recordings", request.path.stem, f"{name}.json")

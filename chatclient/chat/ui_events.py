"""Events of the application for frontends: `UiState` and `UiData`."""

from dataclasses import dataclass
from typing import Any

from chatclient._internal.json import has_json_form
from chatclient.errors import UsageError

UI_STATE = "ui_state"
"""The key in a tool context of the state that the frontend sent."""


@dataclass(frozen=True, slots=True)
class UiState:
    """The state that the frontend shares with the application, to be replaced there.

    A tool emits it with `context.emit(...)`, an advisor with `request.runtime.emit(...)`.

    Attributes:
        value: The complete state, which has a JSON form.

    Raises:
        UsageError: It has none.
    """

    value: Any

    def __post_init__(self) -> None:
        _check("a state", self.value)


@dataclass(frozen=True, slots=True)
class UiData:
    """Data for a component of the frontend, such as a chart or a progress bar.

    It is a data part of the AI SDK, and a custom event of AG-UI.

    Attributes:
        name: What the frontend knows it by, such as `chart`.
        value: The data, which has a JSON form.
        id: Identifies the data in its message: data with the same name and id replaces it.
        transient: Whether it is not part of the message; the frontend's `onData` gets it.

    Raises:
        UsageError: The data has no JSON form.
    """

    name: str
    value: Any
    id: str | None = None
    transient: bool = False

    def __post_init__(self) -> None:
        _check(f"the data {self.name!r}", self.value)


def _check(what: str, value: Any) -> None:
    if not has_json_form(value):
        msg = f"{what} for a frontend needs a JSON form, and {type(value).__name__} has none"
        raise UsageError(msg)

"""One tool call that was run or refused, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from chatclient.messages import ToolCall, ToolResponse
from chatclient.tool import RAN_WITH, REMARK
from chatclient.values import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class ToolExecution:
    """One tool call that was run or refused.

    Attributes:
        tool_call: What the model asked for.
        response: What it was told.
        seconds: How long the tool took, on a clock that is never set; 0.0 when it was not run.
        attempt: How many calls of this tool the turn has seen, this one included.
        error: What went wrong in full, or None. The model was told `response.data` only.
        value: What the tool returned, before it was made a text; None when it was not run.
        started: When the tool began, in seconds since 1970, or None when it was not run.
    """

    tool_call: ToolCall
    response: ToolResponse
    seconds: float = field(default=0.0, compare=False)
    attempt: int = 1
    error: Exception | None = field(default=None, compare=False)
    value: object = field(default=None, compare=False, repr=False)
    started: float | None = field(default=None, compare=False)

    @property
    def is_error(self) -> bool:
        """Whether the tool failed or was refused."""
        return self.response.is_error

    @property
    def arguments(self) -> str | None:
        """What the tool was run with, after approvers and interceptors have changed it.

        None where something else answered in the tool's place.
        """
        ran_with: str | None = self.response.metadata.get(RAN_WITH, self.tool_call.arguments)
        return ran_with

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the tool told the application only; it stays in the conversation, unsent."""
        return self.response.metadata

    @property
    def started_at(self) -> datetime | None:
        """When the tool began, or None when it was not run."""
        return None if self.started is None else datetime.fromtimestamp(self.started, UTC)

    @property
    def finished_at(self) -> datetime | None:
        """When the tool ended: `seconds` after it began."""
        began = self.started_at
        return None if began is None else began + timedelta(seconds=self.seconds)


def without_remark(response: ToolResponse) -> ToolResponse:
    """Return *response* as the tool gave it, without what the model was told beside it."""
    remark = response.metadata.get(REMARK)
    if remark is None:
        return response
    return replace(response, data=response.data.removeprefix(f"{remark}\n"))

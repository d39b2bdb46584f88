"""The record of a tool call and its response."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from chatclient.chat.messages import ToolCall, ToolResponse
from chatclient.chat.tool import DECIDED_BY, RAN_WITH, REMARK


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """One tool call that was run or refused.

    Attributes:
        tool_call: The call of the model.
        response: The response to the model.
        seconds: How long the tool took, on a monotonic clock; 0.0 if it was not run.
        attempt: The number of calls of this tool in the turn, including this one.
        error: The complete error, or None. The model got only `response.data`.
        value: The value that the tool returned; None if it was not run.
        started: When the tool started, in seconds since 1970; None if it was not run.
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
        """The arguments of the tool, after changes by approvers and interceptors.

        None if the tool was not run, because an interceptor or a decision provided the result.
        """
        ran_with: str | None = self.response.metadata.get(RAN_WITH, self.tool_call.arguments)
        return ran_with

    @property
    def decided_by(self) -> str | None:
        """Who or what has decided about the call, as `Decision.by` says, or None."""
        return self.response.metadata.get(DECIDED_BY)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata for the application, stored in the conversation and not sent to the model."""
        return self.response.metadata

    @property
    def started_at(self) -> datetime | None:
        """When the tool started, or None if it was not run."""
        return None if self.started is None else datetime.fromtimestamp(self.started, UTC)

    @property
    def finished_at(self) -> datetime | None:
        """When the tool ended, or None if it was not run."""
        began = self.started_at
        return None if began is None else began + timedelta(seconds=self.seconds)


def without_remark(response: ToolResponse) -> ToolResponse:
    """Return *response* without the remark before the tool's text."""
    remark = response.metadata.get(REMARK)
    if remark is None:
        return response
    return replace(response, data=response.data.removeprefix(f"{remark}\n"))

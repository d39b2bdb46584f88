"""`ResultReader`: the tool with which a model reads results that it is not shown."""

from functools import cache
from typing import Any

from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.chat.turn import present_turn
from chatclient.errors import ToolError
from chatclient.memory.shortening import READ_RESULT, Shortening
from chatclient.tools.function.schema import ToolSignature, signature_of_model

_DESCRIPTION = (
    "Reads or searches the results of earlier tool calls that are left out or cut in this "
    "conversation. Give the number of a result, or a query, or both."
)
_METADATA = ToolMetadata(effect="read", always_visible=True)


@cache
def _signature() -> ToolSignature:
    """Return the signature of the tool.

    It is created on first use, because the first model of pydantic in a process loads its plugins.
    """
    from pydantic import BaseModel, Field  # noqa: PLC0415

    class Read(BaseModel):
        result: int | None = Field(None, description="The number of the result.")
        start: int = Field(0, description="The character to read from.")
        query: str = Field("", description="A word or phrase to search for instead of reading.")

    return signature_of_model(Read, name=READ_RESULT)


@cache
def _definition() -> ToolDefinition:
    return ToolDefinition(READ_RESULT, _DESCRIPTION, _signature().input_schema)


class ResultReader:
    """Reads the results in the conversation of the present turn, whatever is shown of them."""

    metadata = _METADATA

    @property
    def definition(self) -> ToolDefinition:
        """The tool's description for the model."""
        return _definition()

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Return a part of a result, or the places at which results contain the query.

        Raises:
            ToolError: There is no such result, or nothing to search for.
        """
        read: Any = next(iter(_signature().bind(arguments, context).values()))
        turn = present_turn()
        shortening: Shortening | None = None if turn is None else turn.state.get(READ_RESULT)
        if shortening is None:
            msg = "Nothing is left out at the moment."
            raise ToolError(msg)
        if query := read.query.strip():
            found: Any = await context.runtime.invoke(shortening.search, query, read.result)
            return ToolResult(found)
        if read.result is None:
            msg = "Give the number of a result, or a query."
            raise ToolError(msg)
        text = shortening.read(read.result, read.start)
        if text is None:
            msg = f"There is no result {read.result}."
            raise ToolError(msg)
        return ToolResult(text)


RESULT_READER = ResultReader()
"""The tool; it has no state."""

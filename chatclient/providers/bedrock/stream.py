"""Decodes streams of the Converse API; no I/O."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient._internal.json import loads
from chatclient.chat.messages import AssistantMessage, Part, ProviderPart, Reasoning, ToolCallChunk
from chatclient.chat.response import ChatResponse, ChatResponseMetadata, Generation
from chatclient.errors import ProviderError
from chatclient.providers.bedrock.decoding import (
    SERVER_TOOL,
    decode_block,
    decode_usage,
    generation_of,
)
from chatclient.providers.bedrock.encoding import PROVIDER, Block
from chatclient.providers.bedrock.frames import ERROR, is_text
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.error_details import message_in, request_id
from chatclient.providers.http.errors import error_from_data, invalid_response, stream_ended_early
from chatclient.providers.wire.fields import (
    MALFORMED,
    arguments_object,
    dump_arguments,
    int_field,
    other_fields,
    text_field,
)
from chatclient.providers.wire.media import join_base64

# docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html; a
# `modelStreamErrorException` has the status 424, but another attempt may succeed.
_STATUS = {
    "validationException": 400,
    "accessDeniedException": 403,
    "resourceNotFoundException": 404,
    "modelTimeoutException": 408,
    "throttlingException": 429,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
}


class StreamDecoder:
    """Converts the events of a stream to chunks.

    Attributes:
        complete: Whether the server has sent the last event.
        is_finished: Whether the answer is complete; usage may follow.
    """

    __slots__ = ("_blocks", "_calls", "_headers", "complete", "is_finished")

    def __init__(self, headers: Headers = EMPTY) -> None:
        self._headers = headers
        self._blocks: dict[int, _Block] = {}
        self._calls = False
        self.complete = self.is_finished = False

    def feed(self, data: bytes, event: str) -> ChatResponse | str | None:
        """Return the chunk of an event, or None if the event has no content."""
        try:
            if event.startswith(ERROR):
                raise self._error(data, event.removeprefix(ERROR))
            return self._read_event(loads(data), event)
        except MALFORMED as error:
            raise invalid_response(PROVIDER, data, error) from error

    def finish(self, rest: bytes) -> tuple[ChatResponse | str, ...]:
        """Check that the answer is complete; *rest* is an unfinished message or something else.

        Raises:
            InvalidResponseError: *rest* is no message.
            StreamInterruptedError: The answer is incomplete.
        """
        if is_text(rest):
            raise invalid_response(PROVIDER, rest)
        if not self.is_finished:
            raise stream_ended_early(PROVIDER)
        return ()

    def _error(self, data: bytes, kind: str) -> ProviderError:
        content: Any = data.decode(errors="replace")
        with suppress(ValueError):
            content = loads(data)
        kind = kind[:1].lower() + kind[1:]
        described = {"message": message_in(content), "code": kind}
        if kind in _STATUS:
            described["status_code"] = str(_STATUS[kind])
        return error_from_data(PROVIDER, 0, described, self._headers)

    def _read_event(self, event: Mapping[str, Any], kind: str) -> ChatResponse | str | None:
        match kind:
            case "contentBlockDelta":
                return self._delta(_index_of(event), event["delta"])
            case "contentBlockStart":
                return self._start_block(_index_of(event), event["start"])
            case "contentBlockStop":
                block = self._blocks.pop(_index_of(event), None)
                return _chunk(None if block is None else block.end())
            case "messageStart":
                metadata = ChatResponseMetadata(request_id=request_id(self._headers))
                return ChatResponse((Generation(AssistantMessage("")),), metadata)
            case "messageStop":
                return self._stop(event)
            case "metadata":
                self.complete = self.is_finished
                usage = decode_usage(event.get("usage") or {})
                values = other_fields(event, ("usage", "p"))
                return ChatResponse((), ChatResponseMetadata(usage=usage, values=values))
        return None  # events of future versions

    def _start_block(self, index: int, start: Block) -> ChatResponse | str | None:
        call = start.get("toolUse")
        if call is None or call.get("type") == SERVER_TOOL:
            if start:  # text needs no block
                self._blocks[index] = _Block(start)
            return None
        self._calls = True
        id, name = text_field(call.get("toolUseId")), text_field(call["name"])
        return _chunk(ToolCallChunk(index, id, name))

    def _delta(self, index: int, delta: Block) -> ChatResponse | str | None:
        block = self._blocks.get(index)
        match delta:
            case {"text": text} if block is None:
                return text_field(text)
            case {"toolUse": {"input": text}} if block is None:
                return _chunk(ToolCallChunk(index, arguments=_arguments(text)))
            case {"reasoningContent": {"text": text}}:
                return _chunk(Reasoning(text_field(text), provider=PROVIDER))
        if block is None:
            block = self._blocks[index] = _Block({})
        block.add(delta)
        return None

    def _stop(self, event: Block) -> ChatResponse:
        rest = [part for block in self._blocks.values() if (part := block.end()) is not None]
        self._blocks = {}
        self.is_finished = True
        generation = generation_of(rest, event["stopReason"], calls=self._calls)
        values = other_fields(event, ("stopReason", "p"))
        return ChatResponse((generation,), ChatResponseMetadata(values=values))


def _index_of(event: Block) -> int:
    return int_field(event.get("contentBlockIndex")) or 0


def _arguments(value: Any) -> str:
    # Gateways may send an object.
    return dump_arguments(value) if value and isinstance(value, Mapping) else text_field(value)


def _chunk(part: Part | None) -> ChatResponse | str | None:
    if part is None or isinstance(part, str):
        return part
    return ChatResponse((Generation(AssistantMessage([part])),))


class _Block:
    """A block that is emitted when it is complete, because it is sent back unchanged."""

    def __init__(self, start: Block) -> None:
        self._start = start
        self._texts: list[str] = []
        self._results: list[Any] = []
        self._citations: list[Any] = []
        self._signature: list[str] = []
        self._content: list[str] = []  # base64
        self._other: dict[str, Any] = {}

    def add(self, delta: Block) -> None:
        """Add a delta of the block."""
        match delta:
            case {"toolUse": {"input": text}} | {"text": text}:
                self._texts.append(text_field(text))
            case {"toolResult": [*results]}:
                self._results += results
            case {"citation": citation}:
                self._citations.append(citation)
            case {"reasoningContent": {"signature": text}}:
                self._signature.append(text_field(text))
            case {"reasoningContent": {"redactedContent": content}}:
                self._content.append(text_field(content))
            case {"image": {"source": {"bytes": content}}}:
                self._content.append(text_field(content))
            case _:
                self._other.update(delta)

    def end(self) -> Part | None:
        """Return the part of the complete block, or None if it is empty."""
        text, encoded = "".join(self._texts), join_base64(self._content)
        match self._start:
            case {"toolUse": call}:
                return _own({"toolUse": {**call, "input": arguments_object(text)}})
            case {"toolResult": result}:
                return _own({"toolResult": {**result, "content": self._results}})
            case {"image": image}:
                source = {"source": {"bytes": encoded}} if encoded else self._other.get("image", {})
                return decode_block({"image": {**image, **source}})
        if encoded:
            return decode_block({"reasoningContent": {"redactedContent": encoded}})
        if self._signature:
            return Reasoning("", "".join(self._signature), PROVIDER)
        if self._citations:
            # The text is empty if it was emitted before the citations were received.
            content = {"content": [{"text": text}]} if text else {}
            return decode_block({"citationsContent": {**content, "citations": self._citations}})
        return decode_block(self._other) if self._other else None


def _own(block: Block) -> ProviderPart:
    return ProviderPart(PROVIDER, FrozenDict(block))

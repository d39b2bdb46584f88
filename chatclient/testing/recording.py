"""Records the responses of a real model, and replays them in tests."""

import difflib
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from chatclient._internal.checks import check_type
from chatclient._internal.json import dumps, loads
from chatclient._internal.text import redacted_text
from chatclient.chain.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.events import TextDelta
from chatclient.chat.messages import AssistantMessage, Part
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.chat.parts import text_of
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.serialization import message_to_dict, response_from_dict, response_to_dict
from chatclient.chat.stored_values import from_stored, to_stored
from chatclient.errors import UsageError
from chatclient.runtime.runtime import Runtime

Redact = Callable[[str], str]
"""Redacts a text of a recording."""

_UNRECORDED = {"tool_callbacks", "tool_names", "tool_context", "internal_tool_execution_enabled"}


def unchanged(text: str) -> str:
    """Return *text*; the redaction of a recording that is not redacted."""
    return text


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to a model and its response.

    Attributes:
        request: Messages, tools and options, as JSON values.
        response: The result of `response_to_dict`.
        pieces: The pieces of a streamed text; else empty.
    """

    request: dict[str, Any]
    response: dict[str, Any]
    pieces: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Recording:
    """Exchanges with a model, in the order of their end.

    Args:
        redact: Called with every text before it is stored or compared. Strings within JSON, such as
            arguments, are redacted separately, unescaped.

    Attributes:
        exchanges: The exchanges.
        output_modes: The output modes of the model for requests `"with tools"` and `"without"`.
    """

    redact: Redact = unchanged
    exchanges: list[Exchange] = field(default_factory=list)
    output_modes: dict[str, OutputMode] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path, *, redact: Redact = unchanged) -> "Recording":
        """Load a recording from a file written by `save`.

        Raises:
            OSError: The file cannot be read.
            UsageError: It is not a recording.
        """
        try:
            data = loads(Path(path).read_bytes())
            exchanges = [
                Exchange(entry["request"], entry["response"], tuple(entry.get("pieces", ())))
                for entry in data["exchanges"]
            ]
            output_modes = dict(data.get("output_modes", {}))
        except (LookupError, TypeError, ValueError) as error:
            msg = f"{path} is not a recording: {error!r}"
            raise UsageError(msg) from error
        return cls(redact, exchanges, output_modes)

    def save(self, path: str | Path) -> None:
        """Write the recording to an indented JSON file.

        Raises:
            OSError: The file cannot be written.
        """
        entries = [
            {
                "request": e.request,
                "response": e.response,
                **({"pieces": e.pieces} if e.pieces else {}),
            }
            for e in self.exchanges
        ]
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        data: dict[str, Any] = {"exchanges": entries}
        if self.output_modes:
            data = {"output_modes": self.output_modes, **data}
        text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        # Replaced atomically.
        temporary = path.with_name(f"{path.name}.{uuid4().hex}")
        # Lone surrogates, which some models emit, become JSON escapes.
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
        temporary.replace(path)

    def add(self, prompt: Prompt, response: ChatResponse, pieces: Iterable[str] = ()) -> None:
        """Add one exchange, redacted."""
        data = redacted_json(to_stored(response_to_dict(response)), self.redact)
        pieces = tuple(pieces)
        text = "".join(pieces)
        redacted = redacted_json(text, self.redact)  # joined, because a secret may be split
        if redacted != text:
            pieces = _cut_like(pieces, redacted)
        self.exchanges.append(Exchange(self.request_of(prompt), data, pieces))

    def request_of(self, prompt: Prompt) -> dict[str, Any]:
        """Return the parts of *prompt* that are recorded and compared, redacted."""
        options = prompt.options
        request = {
            "messages": [_without_metadata(message_to_dict(m)) for m in prompt.messages],
            "tools": [_tool(callback) for callback in options.tool_callbacks or ()],
            "options": set_options(options),
        }
        return redacted_json(loads(dumps(to_stored(request))), self.redact)  # type: ignore[no-any-return]


class RecordingAdvisor:
    """Records requests and responses of the model; the innermost advisor.

    Args:
        recording: The recording, to be saved after the requests.
    """

    name = "RecordingAdvisor"
    order = LOWEST_PRECEDENCE

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Record the exchange, which is passed on unchanged."""
        pieces: list[str] = []
        runtime = request.runtime

        async def emit(event: Any) -> None:
            if isinstance(event, TextDelta):
                pieces.append(event.text)
            await runtime.emit(event)

        response = await call_next(request.mutate(runtime=runtime.with_emitter(emit)))
        self.recording.add(request.prompt, response.chat_response, pieces)
        return response


class RecordingModel(ChatModel):
    """A model that records the requests and responses of another model.

    Args:
        model: The real model.
        recording: The recording, to be saved after the requests.

    Raises:
        WrongTypeError: One of them is something else.
    """

    def __init__(self, model: ChatModel, recording: Recording) -> None:
        check_type("the model", model, ChatModel)
        check_type("the recording", recording, Recording, "make one: Recording()")
        self._model = model
        self.recording = recording

    @property
    def options(self) -> ChatOptions:
        """The options of the real model."""
        return self._model.options

    @property
    def address(self) -> str:
        """The address of the real model."""
        return self._model.address

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return and record the output mode of the real model."""
        mode = self._model.output_mode(options)
        self.recording.output_modes[output_mode_key(options)] = mode
        return mode

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the real model's response."""
        response = await self._model.generate(prompt, runtime)
        self.recording.add(prompt, response)
        return response

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the chunks of the real model; an incomplete response is not recorded."""
        aggregator = MessageAggregator()
        pieces: list[str] = []
        async with aclosing(self._model.generate_stream(prompt, runtime)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, str):
                    aggregator.add_text(chunk)
                    pieces.append(chunk)
                    yield chunk
                else:
                    pieces.append(chunk.text)
                    yield _with_parts(chunk, aggregator.add_and_normalize(chunk))
        self.recording.add(prompt, aggregator.response(), filter(None, pieces))

    def close(self) -> None:
        """Close the real model."""
        self._model.close()

    async def aclose(self) -> None:
        """Close the real model."""
        await self._model.aclose()


def _with_parts(chunk: ChatResponse, parts: list[Part]) -> ChatResponse:
    """Return *chunk* with *parts* as those of the first generation.

    Calls without an id get one from the aggregator; it must be the same in the recording and in the
    following requests.
    """

    def replaced(generation: Generation) -> Generation:
        if generation.index:
            return generation
        message = AssistantMessage(parts, metadata=generation.output.metadata)
        return replace(generation, output=message)

    return replace(chunk, generations=tuple(map(replaced, chunk.generations)))


def _cut_like(pieces: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Return *text* cut into pieces with the lengths of *pieces*; the last has the rest."""
    cut: list[str] = []
    for piece in pieces[:-1]:
        cut.append(text[: len(piece)])
        text = text[len(piece) :]
    return tuple(piece for piece in (*cut, text) if piece)


def _without_metadata(message: dict[str, Any]) -> dict[str, Any]:
    """Return *message* without its id and time, and without the metadata of a user message."""
    left_out = {"id", "stored_at"} | ({"metadata"} if message["role"] == "user" else set())
    return {key: value for key, value in message.items() if key not in left_out}


def output_mode_key(options: ChatOptions) -> str:
    """Return the key of requests with *options* in `Recording.output_modes`."""
    return "with tools" if options.tool_callbacks or options.tool_names else "without"


def _tool(callback: Any) -> dict[str, Any]:
    definition = callback.definition
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
    }


def set_options(options: ChatOptions) -> dict[str, Any]:
    """Return the *options* that are set and recorded, without tools."""
    return {
        name: value
        for name, value in options.set_values().items()
        if name not in _UNRECORDED and value not in ((), {})
    }


def redacted_json(data: Any, redact: Redact) -> Any:
    """Return JSON values with each text redacted."""
    if redact is unchanged:
        return data
    match data:
        case str():
            return redacted_text(redact, data)
        case list():
            return [redacted_json(item, redact) for item in data]
        case dict():
            return {key: redacted_json(item, redact) for key, item in data.items()}
        case _:
            return data


class ReplayError(AssertionError):
    """A request was not recorded; the message shows the difference to the next recorded one."""


class ReplayingModel(ChatModel):
    """Returns the recorded responses to equal requests.

    Each exchange is used once; the order of requests does not matter. Messages, tools and the
    options set by the request must be equal. Default options of the recorded model are ignored.

    Args:
        recording: The recording, or its file.
    """

    def __init__(self, recording: Recording | str | Path) -> None:
        if not isinstance(recording, Recording):
            recording = Recording.load(recording)
        self.recording = recording
        self._unused = list(recording.exchanges)
        self._lock = threading.Lock()

    @property
    def unused(self) -> tuple[Exchange, ...]:
        """The exchanges that have not been used."""
        return tuple(self._unused)

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return the output mode of the recorded model."""
        return self.recording.output_modes.get(output_mode_key(options), "schema")

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:  # noqa: ARG002
        """Return the recorded response.

        Raises:
            ReplayError: The request was not recorded.
        """
        return response_from_dict(from_stored(self._take(prompt).response))

    async def generate_stream(
        self,
        prompt: Prompt,
        runtime: Runtime,  # noqa: ARG002 - no I/O
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the recorded response in its original pieces."""
        exchange = self._take(prompt)
        response = response_from_dict(from_stored(exchange.response))
        if not exchange.pieces:
            yield response
            return
        start = 0
        first = response.generations[0]
        for part in first.output.parts:
            if not isinstance(part, str):
                yield ChatResponse((Generation(AssistantMessage([part])),))
                start += len(text_of((part,)))
                continue
            pieces = _slice_pieces(exchange.pieces, start, start + len(part))
            start += len(part)
            for piece in pieces if "".join(pieces) == part else [part]:
                yield piece
        without_parts = AssistantMessage([], metadata=first.output.metadata)
        last = replace(first, output=without_parts)
        yield ChatResponse((last, *response.generations[1:]), response.metadata)

    def _take(self, prompt: Prompt) -> Exchange:
        request = self.recording.request_of(prompt)
        with self._lock:
            for at, exchange in enumerate(self._unused):
                if _comparable(exchange, request) == request:
                    return self._unused.pop(at)
            raise ReplayError(_difference(self._unused, request))


def _difference(unused: list[Exchange], request: dict[str, Any]) -> str:
    if not unused:
        return f"the recording has no exchange left for this request:\n{_text(request)}"
    lines = difflib.unified_diff(
        _text(_comparable(unused[0], request)).splitlines(),
        _text(request).splitlines(),
        "recorded",
        "requested",
        lineterm="",
    )
    return "this was not recorded; the next recorded request differs:\n" + "\n".join(lines)


def _comparable(exchange: Exchange, request: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded request without options that *request* does not set."""
    recorded = exchange.request
    options = {k: v for k, v in recorded["options"].items() if k in request["options"]}
    return {**recorded, "options": options}


def _text(request: dict[str, Any]) -> str:
    return json.dumps(request, indent=1, ensure_ascii=False)


def _slice_pieces(pieces: tuple[str, ...], start: int, end: int) -> list[str]:
    """Return the text of *pieces* from *start* to *end*, cut at the same positions."""
    cut: list[str] = []
    at = 0
    for piece in pieces:
        cut.append(piece[max(0, start - at) : max(0, end - at)])
        at += len(piece)
    return [piece for piece in cut if piece]

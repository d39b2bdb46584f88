"""Records what a real model says, for tests that play it back."""

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from chatclient.aggregator import MessageAggregator
from chatclient.chain import LOWEST_PRECEDENCE, ChatClientRequest, ChatClientResponse, Next
from chatclient.errors import UsageError
from chatclient.events import TextDelta
from chatclient.json import dumps, loads
from chatclient.messages import AssistantMessage, Part
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.redaction import redacted_text
from chatclient.response import ChatResponse, Generation
from chatclient.runtime import Runtime
from chatclient.serialization import message_to_dict, response_to_dict

Redact = Callable[[str], str]
"""Takes any text of a recording, and returns what may be kept of it."""

_UNRECORDED = {"tool_callbacks", "tool_names", "tool_context", "internal_tool_execution_enabled"}


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request to a model, and what came of it.

    Attributes:
        request: Messages, tools and options, as JSON values.
        response: The response, as `response_to_dict` wrote it.
        pieces: The text as it was streamed; empty when it was not.
    """

    request: dict[str, Any]
    response: dict[str, Any]
    pieces: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Recording:
    """Exchanges with a model, in the order in which they ended.

    Args:
        redact: Sees every text, before it is kept and before it is compared. Of a text that is
            JSON, such as arguments, it also sees each string that is escaped in it.

    Attributes:
        exchanges: What was recorded.
        output_modes: How the model is best held to a schema, `"with tools"` and `"without"`, as
            far as it was asked.
    """

    redact: Redact = _as_it_is
    exchanges: list[Exchange] = field(default_factory=list)
    output_modes: dict[str, OutputMode] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path, *, redact: Redact = _as_it_is) -> "Recording":
        """Read what `save` wrote.

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
        """Write everything to a JSON file that people can read and compare.

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
        # What was there stays until the new file is whole.
        beside = path.with_name(f"{path.name}.{uuid4().hex}")
        # Half a surrogate pair, which some models say, becomes the escape that JSON has for it.
        beside.write_bytes(text.encode("utf-8", "backslashreplace"))
        beside.replace(path)

    def add(self, prompt: Prompt, response: ChatResponse, pieces: Iterable[str] = ()) -> None:
        """Keep one exchange."""
        kept = _redacted(_values(response_to_dict(response)), self.redact)
        said = tuple(pieces)
        whole = "".join(said)
        redacted = _redacted(whole, self.redact)  # a stream may cut a secret in two
        if redacted != whole:
            said = _cut_like(said, redacted)
        self.exchanges.append(Exchange(self.request_of(prompt), kept, said))

    def request_of(self, prompt: Prompt) -> dict[str, Any]:
        """Return what of *prompt* is recorded and compared."""
        options = prompt.options
        request = {
            "messages": [_without_notes(message_to_dict(m)) for m in prompt.messages],
            "tools": [_tool(callback) for callback in options.tool_callbacks or ()],
            "options": _set_options(options),
        }
        return _redacted(_values(request), self.redact)  # type: ignore[no-any-return]


class RecordingAdvisor:
    """Records what goes to the model and what comes back, next to the model.

    Args:
        recording: What it is added to; save it when all is said.
    """

    name = "RecordingAdvisor"
    order = LOWEST_PRECEDENCE

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Pass everything on as it is."""
        pieces: list[str] = []
        runtime = request.runtime

        async def listen(event: Any) -> None:
            if isinstance(event, TextDelta):
                pieces.append(event.text)
            await runtime.emit(event)

        response = await call_next(request.mutate(runtime=runtime.with_emitter(listen)))
        self.recording.add(request.prompt, response.chat_response, pieces)
        return response


class RecordingModel(ChatModel):
    """A model that records all it is asked and says, for tests that build their own client.

    Args:
        model: The real one.
        recording: What it is added to; save it when all is said.
    """

    def __init__(self, model: ChatModel, recording: Recording) -> None:
        self._model = model
        self.recording = recording

    @property
    def options(self) -> ChatOptions:
        """Those of the real model."""
        return self._model.options

    @property
    def address(self) -> str:
        """That of the real model."""
        return self._model.address

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the real model is best held to a schema."""
        mode = self._model.output_mode(options)
        self.recording.output_modes[occasion(options)] = mode
        return mode

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the real model's response."""
        response = await self._model.generate(prompt, runtime)
        self.recording.add(prompt, response)
        return response

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the real model's response as it comes; one that is cut short is not recorded."""
        whole = MessageAggregator()
        pieces: list[str] = []
        async with aclosing(self._model.generate_stream(prompt, runtime)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, str):
                    whole.add_text(chunk)
                    pieces.append(chunk)
                    yield chunk
                else:
                    pieces.append(chunk.text)
                    yield _with_parts(chunk, whole.take(chunk))
        self.recording.add(prompt, whole.response(), filter(None, pieces))

    def close(self) -> None:
        """Close the real model."""
        self._model.close()

    async def aclose(self) -> None:
        """Close the real model."""
        await self._model.aclose()


def _with_parts(chunk: ChatResponse, parts: list[Part]) -> ChatResponse:
    """Return *chunk* with what it tells of the first answer.

    A call that came without an id has one there, which is to be the same in what is recorded and in
    what follows on it.
    """

    def told(generation: Generation) -> Generation:
        if generation.index:
            return generation
        message = AssistantMessage(parts, metadata=generation.output.metadata)
        return replace(generation, output=message)

    return replace(chunk, generations=tuple(map(told, chunk.generations)))


def _cut_like(pieces: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Return *text* in as many pieces, of the same lengths as far as it reaches."""
    cut: list[str] = []
    for piece in pieces[:-1]:
        cut.append(text[: len(piece)])
        text = text[len(piece) :]
    return tuple(piece for piece in (*cut, text) if piece)


def _without_notes(message: dict[str, Any]) -> dict[str, Any]:
    """Return *message* without what an application notes on a user's, such as when it came."""
    if message["role"] != "user":
        return message
    return {key: value for key, value in message.items() if key != "metadata"}


def occasion(options: ChatOptions) -> str:
    """Return the name, among the output modes of a recording, of a request with *options*."""
    return "with tools" if options.tool_callbacks or options.tool_names else "without"


def _tool(callback: Any) -> dict[str, Any]:
    definition = callback.definition
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
    }


def _set_options(options: ChatOptions) -> dict[str, Any]:
    return {
        name: value
        for name, value in options.set_values().items()
        if name not in _UNRECORDED and value not in ((), {})
    }


def _values(data: Any) -> Any:
    """Return *data* as JSON reads it back: lists for tuples, dicts for mappings of any kind."""
    return loads(dumps(data))


def _redacted(data: Any, redact: Redact) -> Any:
    if redact is _as_it_is:
        return data
    match data:
        case str():
            return redacted_text(redact, data)
        case list():
            return [_redacted(item, redact) for item in data]
        case dict():
            return {key: _redacted(item, redact) for key, item in data.items()}
        case _:
            return data

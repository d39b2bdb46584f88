"""`ReplayingModel`: replays recorded responses of a model in tests."""

import difflib
import json
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

from chatclient.chat.messages import AssistantMessage
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.chat.parts import text_of
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse, Generation
from chatclient.chat.serialization import response_from_dict
from chatclient.chat.stored_values import from_stored
from chatclient.runtime.runtime import Runtime
from chatclient.testing.recording import Exchange, Recording, output_mode_key


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

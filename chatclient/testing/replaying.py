"""Plays back in tests what a real model has said."""

import difflib
import json
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

from chatclient.messages import AssistantMessage
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions
from chatclient.parts import text_of
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse, Generation
from chatclient.runtime import Runtime
from chatclient.serialization import response_from_dict
from chatclient.testing.recording import Exchange, Recording, occasion


class ReplayError(AssertionError):
    """A model that replays was asked something else than was recorded; it says what differs."""


class ReplayingModel(ChatModel):
    """Answers what was recorded, to requests like those that were recorded.

    Each exchange is used once. Requests made at the same time may come in another order. Messages
    and tools have to be the same, and the options that are set; the recorded model's own default
    options, which this one does not have, are of no account.

    Args:
        recording: The exchanges, or the file that they are in.
    """

    def __init__(self, recording: Recording | str | Path) -> None:
        if not isinstance(recording, Recording):
            recording = Recording.load(recording)
        self.recording = recording
        self._unused = list(recording.exchanges)
        self._lock = threading.Lock()

    @property
    def unused(self) -> tuple[Exchange, ...]:
        """The exchanges that nobody asked for so far."""
        return tuple(self._unused)

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the recorded model was best held to a schema."""
        return self.recording.output_modes.get(occasion(options), "schema")

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:  # noqa: ARG002
        """Return what was answered.

        Raises:
            ReplayError: This was never asked.
        """
        return response_from_dict(self._take(prompt).response)

    async def generate_stream(
        self,
        prompt: Prompt,
        runtime: Runtime,  # noqa: ARG002 - a recording waits for nothing
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield what was answered, in the pieces in which it came."""
        exchange = self._take(prompt)
        response = response_from_dict(exchange.response)
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
            pieces = _between(exchange.pieces, start, start + len(part))
            start += len(part)
            for piece in pieces if "".join(pieces) == part else [part]:
                yield piece
        silent = AssistantMessage([], metadata=first.output.metadata)
        last = replace(first, output=silent)
        yield ChatResponse((last, *response.generations[1:]), response.metadata)

    def _take(self, prompt: Prompt) -> Exchange:
        asked = self.recording.request_of(prompt)
        with self._lock:
            for at, exchange in enumerate(self._unused):
                if _comparable(exchange, asked) == asked:
                    return self._unused.pop(at)
            raise ReplayError(_difference(self._unused, asked))


def _difference(unused: list[Exchange], asked: dict[str, Any]) -> str:
    if not unused:
        return f"the recording has no exchange left for this request:\n{_text(asked)}"
    lines = difflib.unified_diff(
        _text(_comparable(unused[0], asked)).splitlines(),
        _text(asked).splitlines(),
        "recorded",
        "asked",
        lineterm="",
    )
    return "this was not recorded; the next recorded request differs:\n" + "\n".join(lines)


def _comparable(exchange: Exchange, asked: dict[str, Any]) -> dict[str, Any]:
    recorded = exchange.request
    set_now = {k: v for k, v in recorded["options"].items() if k in asked["options"]}
    return {**recorded, "options": set_now}


def _text(request: dict[str, Any]) -> str:
    return json.dumps(request, indent=1, ensure_ascii=False)


def _between(pieces: tuple[str, ...], start: int, end: int) -> list[str]:
    """Return the pieces of what stands between two places of the text that *pieces* make up."""
    cut: list[str] = []
    at = 0
    for piece in pieces:
        cut.append(piece[max(0, start - at) : max(0, end - at)])
        at += len(piece)
    return [piece for piece in cut if piece]

"""A custom provider: a chat model behind a proprietary HTTP API.

The service takes `{"model": ..., "lines": ["user: ..."]}` at `/v0/speak` and answers with
`{"said": ..., "stopped": ...}`, or, for `"stream": true`, with lines of JSON: `{"piece": ...}`, and
finally `{"stopped": ...}`. The provider converts requests and answers; `HttpClient` adds
connections, retries, timeouts and errors for all four modes.

    python examples/custom_provider.py http://127.0.0.1:9000
"""

import json
import sys
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatModel,
    ChatOptions,
    ChatResponse,
    FinishReason,
    Generation,
    Prompt,
    Runtime,
)
from chatclient.errors import InvalidResponseError, StreamInterruptedError
from chatclient.extend import HttpAnswer, HttpClient, HttpModel
from chatclient.providers import Headers

PROVIDER = "speak"


class SpeakModel(HttpModel, ChatModel):
    """A model of the service.

    Args:
        base_url: The URL of the service.
        model: The name of a model.
    """

    def __init__(self, base_url: str, model: str = "parrot") -> None:
        self._options = ChatOptions(model=model)
        self._http = HttpClient(PROVIDER, base_url, {})  # no additional headers

    @property
    def options(self) -> ChatOptions:
        """The default options of the model."""
        return self._options

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        body = body_of(prompt, stream=False)
        return await self._http.post(runtime, "/v0/speak", body, response_of)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the chunks of the model's response to *prompt*."""
        body = body_of(prompt, stream=True)
        return self._http.stream(runtime, "/v0/speak", body, Lines)


def body_of(prompt: Prompt, *, stream: bool) -> bytes:
    """Return the JSON body of a request."""
    lines = [f"{message.role}: {message.text}" for message in prompt.messages]
    return json.dumps({"model": prompt.options.model, "lines": lines, "stream": stream}).encode()


def response_of(answer: HttpAnswer) -> ChatResponse:
    """Return the response in a complete answer."""
    said = decoded(answer.body)
    return ChatResponse((Generation(AssistantMessage(said["said"]), said["stopped"]),))


class Lines:
    """Decodes a streamed answer: one JSON object per line."""

    def __init__(self, _headers: Headers) -> None:
        self._rest = b""
        self._stopped: FinishReason | None = None

    def feed(self, piece: bytes) -> Iterator[str]:
        """Yield the text of the lines that *piece* completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in map(decoded, lines):
            self._stopped = line.get("stopped", self._stopped)
            if "piece" in line:
                yield line["piece"]

    def finish(self) -> Iterator[ChatResponse]:
        """Yield the finish reason."""
        if self._stopped is None:
            raise StreamInterruptedError("the stream ended before its answer", provider=PROVIDER)
        yield ChatResponse((Generation(AssistantMessage(), self._stopped),))


def decoded(line: bytes) -> Any:
    """Return the JSON value of *line*."""
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidResponseError(f"no JSON: {line[:80]!r}", provider=PROVIDER) from error


if __name__ == "__main__":
    with ChatClient.builder(SpeakModel(sys.argv[1])).build() as client:
        for text in client.prompt("Say something.").stream():
            print(text, end="", flush=True)
    print()

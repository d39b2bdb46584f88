"""A provider of one's own: a model behind an API that nobody else speaks.

The service takes `{"model": ..., "lines": ["user: ..."]}` at `/v0/speak` and answers with
`{"said": ..., "stopped": ...}`, or, for `"stream": true`, with lines of JSON: `{"piece": ...}`, and
`{"stopped": ...}` at last. That is all there is to write; `HttpClient` does the rest for the four
ways of calling: connections, retries, time-outs, and errors that tell what happened.

    python examples/custom_provider.py http://127.0.0.1:9000
"""

import json
import sys
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from chatclient import AssistantMessage, ChatClient, ChatModel, ChatOptions, ChatResponse, Prompt
from chatclient.errors import InvalidResponseError, StreamInterruptedError
from chatclient.providers.http import Headers, HttpAnswer, HttpClient, OverHttp
from chatclient.response import FinishReason, Generation
from chatclient.runtime import Runtime

PROVIDER = "speak"


class SpeakModel(OverHttp, ChatModel):
    """A model of the service.

    Args:
        base_url: Where the service is.
        model: Which of its models.
    """

    def __init__(self, base_url: str, model: str = "parrot") -> None:
        self._options = ChatOptions(model=model)
        self._http = HttpClient(PROVIDER, base_url, {})  # no headers of its own

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        body = body_of(prompt, stream=False)
        return await self._http.post(runtime, "/v0/speak", body, response_of)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*, as they come."""
        body = body_of(prompt, stream=True)
        return self._http.stream(runtime, "/v0/speak", body, Lines)


def body_of(prompt: Prompt, *, stream: bool) -> bytes:
    """Return what the service is sent."""
    lines = [f"{message.role}: {message.text}" for message in prompt.messages]
    return json.dumps({"model": prompt.options.model, "lines": lines, "stream": stream}).encode()


def response_of(answer: HttpAnswer) -> ChatResponse:
    """Return the response that a whole answer spells."""
    said = decoded(answer.body)
    return ChatResponse((Generation(AssistantMessage(said["said"]), said["stopped"]),))


class Lines:
    """Reads a streamed answer, a JSON object a line."""

    def __init__(self, _headers: Headers) -> None:
        self._rest = b""
        self._stopped: FinishReason | None = None

    def feed(self, piece: bytes) -> Iterator[str]:
        """Yield the texts that *piece* completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in map(decoded, lines):
            self._stopped = line.get("stopped", self._stopped)
            if "piece" in line:
                yield line["piece"]

    def finish(self) -> Iterator[ChatResponse]:
        """Yield what only the end of the stream says."""
        if self._stopped is None:
            raise StreamInterruptedError("the stream ended before its answer", provider=PROVIDER)
        yield ChatResponse((Generation(AssistantMessage(), self._stopped),))


def decoded(line: bytes) -> Any:
    """Return what the service said."""
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidResponseError(f"no JSON: {line[:80]!r}", provider=PROVIDER) from error


if __name__ == "__main__":
    with ChatClient.builder(SpeakModel(sys.argv[1])).build() as client:
        for text in client.prompt("Say something.").stream():
            print(text, end="", flush=True)
    print()

"""A model whose answer stops in the middle until the test opens a gate."""

import asyncio
import threading
from collections.abc import AsyncGenerator

from chatclient import AssistantMessage, ChatModel, ChatResponse, Prompt
from chatclient.chat.response import Generation
from chatclient.runtime.runtime import Runtime


class GatedModel(ChatModel):
    """Streams half a sentence, and the rest when the gate is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.closed = threading.Event()

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise NotImplementedError

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        try:
            yield "There are "
            while not self.gate.is_set():  # noqa: ASYNC110 - opened by another thread
                await asyncio.sleep(0.01)
            yield "two trains."
            yield ChatResponse((Generation(AssistantMessage(), "stop"),))
        finally:
            self.closed.set()

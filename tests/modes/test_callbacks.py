"""Functions of the application that may wait: they do not block the event loop."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.advisors import RetrievalAugmentationAdvisor
from chatclient.chat import PlaceholderRenderer
from chatclient.retrieval import Document
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolFailurePolicy, tool_callbacks


@dataclass
class Waiting:
    """A function that waits until the event loop has run something else."""

    answer: Callable[..., Any]
    threads: list[threading.Thread] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, *arguments: object) -> Any:
        self.threads.append(threading.current_thread())
        self.started.set()
        assert self.released.wait(10), "the event loop was blocked"
        return self.answer(*arguments)

    async def release(self) -> None:
        await asyncio.to_thread(self.started.wait, 10)
        self.released.set()


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("out of stock")


def client_with(*, answers: tuple[Any, ...] = (call("fail"), "done"), **manager: Any) -> Any:
    builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(fail)
    return builder.tool_calling_manager(ToolCallingManager(**manager)).build().prompt("x")


def converting(waiting: Waiting, *, is_async: bool) -> Any:
    async def look() -> int:
        """Look."""
        return 1

    def look_plainly() -> int:
        """Look."""
        return 1

    function = look if is_async else look_plainly
    mark = tool(name="look", result_converter=waiting)
    model = ScriptedModel(call("look"), "done")
    return ChatClient.builder(model).default_tools(mark(function)).build().prompt("x")


def retrieving(**steps: Any) -> Any:
    advisor = RetrievalAugmentationAdvisor(lambda query, runtime: [Document("a")], **steps)
    return ChatClient.builder(ScriptedModel("done")).default_advisors(advisor).build().prompt("x")


def resolving(waiting: Waiting) -> Any:
    class Resolver:
        def resolve(self, name: str) -> Any:
            return waiting(name)

    builder = ChatClient.builder(ScriptedModel("done")).tool_callback_resolver(Resolver())
    return builder.build().prompt("x").tools("look")


def rendering(waiting: Waiting) -> Any:
    client = ChatClient.create(ScriptedModel("done"))
    request = client.prompt().system("For {company}.", params={"company": "Acme"})
    return request.user("Hi {name}", params={"name": "Ann"}).template_renderer(waiting)


CALLBACKS: dict[str, tuple[Callable[[Waiting], Any], Callable[..., Any]]] = {
    "exception processor": (lambda w: client_with(exception_processor=w), lambda _: "told"),
    "reaction": (
        lambda w: client_with(exception_processor=ToolFailurePolicy(tools={"fail": w})),
        lambda _: "told",
    ),
    "needed": (lambda w: client_with(interceptors=[ToolApproval(needed=w)]), lambda _: False),
    "converter of a plain tool": (lambda w: converting(w, is_async=False), lambda _: "1"),
    "converter of an async tool": (lambda w: converting(w, is_async=True), lambda _: "1"),
    "template renderer": (rendering, PlaceholderRenderer()),
    "joiner": (lambda w: retrieving(joiner=w), lambda found: found[0]),
    "augmenter": (lambda w: retrieving(augmenter=w), lambda *_: "augmented"),
    "resolver": (resolving, lambda _: tool_callbacks(fail)[0]),
}


@pytest.mark.parametrize(("request_with", "answer"), CALLBACKS.values(), ids=CALLBACKS)
def test_plain_functions_do_not_block_the_loop(
    request_with: Callable[[Waiting], Any], answer: Callable[..., Any], ask: Ask
) -> None:
    """On an event loop they run in worker threads, otherwise on the caller's thread."""
    waiting = Waiting(answer)
    request = request_with(waiting)
    if ask.blocking:
        waiting.released.set()
        assert ask(request).text == "done"
        assert set(waiting.threads) == {threading.current_thread()}
        return

    async def run() -> str:
        releasing = asyncio.create_task(waiting.release())
        text = "".join([piece async for piece in request.astream()]) if ask.streaming else None
        text = text or await request.acall().content()
        await releasing
        return str(text)

    assert asyncio.run(run()).strip() == "done"
    assert threading.current_thread() not in waiting.threads

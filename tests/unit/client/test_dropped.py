"""Builders and requests that a statement drops are reported, and no others."""

import copy
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.errors import UsageError
from chatclient.testing import ScriptedModel

client = ChatClient.create(ScriptedModel(lambda prompt: "fine"))


def returned() -> Any:
    return client.prompt("x")


def drop_prompt() -> None:
    client.prompt("x")


def drop_changed_request() -> None:
    request = client.prompt("x")
    request.system("y")


def drop_returned() -> None:
    returned()


def drop_list() -> None:
    [client.prompt("x")]  # pyright: ignore[reportUnusedExpression]


@pytest.mark.parametrize("drop", [drop_prompt, drop_changed_request, drop_returned, drop_list])
def test_a_dropped_request_warns(drop: Callable[[], None]) -> None:
    """At the line that drops it, also if a function returned it, or a list contained it."""
    with pytest.warns(RuntimeWarning, match="never sent") as caught:
        drop()

    assert [warning.filename for warning in caught] == [__file__]


def drop_builder() -> None:
    ChatClient.builder(client.model)


def drop_mutated() -> None:
    client.prompt("x").mutate()


def drop_changed_builder() -> None:
    builder = client.mutate()
    builder.default_system("x")


def drop_builder_of_model() -> None:
    client.mutate().model(client.model)


@pytest.mark.parametrize(
    "drop", [drop_builder, drop_mutated, drop_changed_builder, drop_builder_of_model]
)
def test_a_dropped_builder_warns(drop: Callable[[], None]) -> None:
    """It was to change a client, or another builder."""
    with pytest.warns(RuntimeWarning, match="never built"):
        drop()


class Holder:
    """Something that stores a request."""

    def __init__(self, request: Any) -> None:
        self.request = request

    def ask(self) -> "Holder":
        """Use the request."""
        self.request.system("y").call().content()
        return self


def test_nothing_else_warns() -> None:
    """Stored requests, used or not, intermediate ones and copies do not warn."""

    def unused(condition: bool) -> None:
        request, builder = client.prompt("x"), client.mutate()
        if condition:
            request.call().content()
            builder.build()

    def of_generator() -> Iterator[Any]:
        yield client.prompt("x")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unused(condition=False)
        unused(condition=True)
        base = client.prompt().system("s")
        for text in ("a", "b"):
            base.user(text).call().content()
        requests = [client.prompt("x") for _ in range(3)]
        list(client.batch(requests))
        del requests[0], requests
        list(client.mutate().default_system("x").build().prompt("x").stream())
        client.prompt("x").settings  # noqa: B018
        base.mutate().clone().build()
        Holder(client.prompt("x")).ask()
        request = copy.copy(client.prompt("x"))
        request = client.prompt("z")  # the copy is replaced
        cycle: list[Any] = [request]
        cycle.append(cycle)
        del request, cycle
        for _ in of_generator():
            pass
        gc.collect()


def test_a_request_in_a_traceback() -> None:
    """A request whose method raised lives in the traceback, which may be dropped anywhere."""

    class Suppressed:
        """Keeps the error for as long as the block lasts."""

        error: BaseException | None = None

        def __enter__(self) -> None: ...

        def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
            self.error = error
            return True

    blank: Any = ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Suppressed():
            client.resume(blank, "approve")
        with Suppressed():
            client.batch([client.prompt("x")], concurrency=0)
        with pytest.raises(UsageError):
            client.resume(blank, "approve")


def test_a_dropped_response_warns_once() -> None:
    """The request of a response that was never asked is used."""
    with pytest.warns(RuntimeWarning) as caught:
        client.prompt("x").call()

    [warning] = caught
    assert "CallResponse was never asked" in str(warning.message)


UNSENT: dict[str, Callable[[], object]] = {
    "events": lambda: str(client.prompt("x").stream().events()),
    "text": lambda: client.prompt("x").stream().content(),
    "values": lambda: client.prompt("x").stream().entity(int),
    "async events": lambda: str(client.prompt("x").astream().events()),
    "async text": lambda: client.prompt("x").astream().content(),
}


@pytest.mark.parametrize("forget", UNSENT.values(), ids=UNSENT)
def test_iterators_that_are_not_iterated_over(forget: Callable[[], object]) -> None:
    """One that is dropped or printed sends nothing, and causes a warning."""
    with pytest.warns(RuntimeWarning, match=r"Stream.* was never iterated over: nothing was sent"):
        forget()  # CPython frees it at once


def test_a_dropped_batch_warns() -> None:
    """A batch sends its requests when it is iterated over."""
    with pytest.warns(RuntimeWarning, match="a batch was made and never iterated over"):
        client.batch(["x"])

    assert [each.value for each in client.batch(["x"])] == ["fine"]


def test_a_second_user_text_warns() -> None:
    """The first one is not sent; one that replaces the client's default is no mistake."""
    default = client.mutate().default_user("Hi").build()
    assert default.prompt().user("Ho").call().content() == "fine"

    with pytest.warns(RuntimeWarning, match="an earlier user text is replaced"):
        client.prompt("a").user("b").call().content()

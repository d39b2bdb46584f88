"""`CallResponse` and `AsyncCallResponse`: the response to a request that is not streamed."""

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, TypeVar, overload

from chatclient._internal.checks import missing_attribute
from chatclient._internal.parameters import with_parentheses
from chatclient._internal.text import text_as_html
from chatclient.chain.chain import ChatClientResponse
from chatclient.chain.params import Native
from chatclient.chat.document import Document
from chatclient.chat.messages import Message
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.response import ChatResponse, Usage
from chatclient.chat.tool import ToolExecution
from chatclient.client.accessors import (
    documents_in,
    entity_of,
    executions_in,
    messages_in,
    new_messages_in,
    pending_in,
    round_responses_in,
    text_of,
    trail_of,
    warn_waiting,
)
from chatclient.observability.trail import Trail
from chatclient.runtime.blocking import drive
from chatclient.runtime.cancellation import Cancellation, run_request
from chatclient.runtime.runtime import Runtime
from chatclient.structured.converters import StructuredOutputConverter, converter_of
from chatclient.structured.output import ResponseEntity, StructuredOutput

if TYPE_CHECKING:
    # `type[T]` does not accept unions, literals and annotated types.
    from typing_extensions import TypeForm


T = TypeVar("T")

EntityType: TypeAlias = type[T] | StructuredOutputConverter[T]
"""A class, or a converter: the type of an entity, apart from other type expressions."""


class Run(Protocol):
    """Runs a prepared request."""

    def __call__(
        self, runtime: Runtime, output: StructuredOutput[Any] | None = None
    ) -> Coroutine[Any, Any, ChatClientResponse]:
        """Return the response; *output* is the requested type of the answer."""
        ...


class LazyResponse:
    """Base class of responses. The request runs at the first access.

    A response that is garbage-collected without any access emits a `RuntimeWarning`, like a
    coroutine that is never awaited, because a forgotten `.content()` would send nothing.
    """

    def __init_subclass__(cls) -> None:
        for name, accessor in list(vars(cls).items()):
            if isinstance(accessor, FunctionType) and not name.startswith("_"):
                setattr(cls, name, with_parentheses(accessor))

    # The expression for the `ChatResponse`, for errors about missing attributes.
    _path: ClassVar[str]

    def __init__(self, run: Run, runtime: Runtime) -> None:
        self._run = run
        self._runtime = runtime
        self._used = False
        self._response: ChatClientResponse | None = None
        self._error: Exception | None = None
        self._pending_seen = False

    def _output_of(
        self, kind: Any, native: Native | None, *, validate: bool, streamed: bool = False
    ) -> StructuredOutput[Any]:
        self._used = True  # also if this raises: the caller did not forget the response
        return StructuredOutput(converter_of(kind), native, validate, streamed)

    def _text_of_answer(self, response: ChatClientResponse) -> str:
        text, pending = text_of(response), pending_in(response)
        if pending is not None and not self._pending_seen:
            self._pending_seen = True
            warn_waiting(pending)
        return text

    def _pending_in(self, response: ChatClientResponse) -> PendingTurn | None:
        self._pending_seen = True
        return pending_in(response)

    @contextmanager
    def _storing_error(self) -> Iterator[None]:
        """Store an error of the request, for later accesses."""
        try:
            yield
        except Exception as error:
            self._error = error
            raise

    if not TYPE_CHECKING:  # see `ChatClientBuilder.__getattr__`

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name in ("answer", "final_output", "output_text", "text"):
                hint = "; its text is its .content()"
            elif name in ("astream", "stream"):
                hint = f"; a request has it: client.prompt(...).{name}()"
            elif name in ("data", "json", "parsed", "value"):
                hint = "; its answer as data is its .entity(type)"
            elif name == "tool_calls":
                hint = "; those that were run are its .tool_executions()"
            elif hasattr(ChatResponse, name):
                hint = f"; its response has it: {self._path}.{name}"
            raise missing_attribute(self, name, hint)

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._response is not None:
            return f"{name}({self._response.chat_response.text!r})"
        return f"<{name}: {'no answer yet' if self._used else 'nothing was sent yet'}>"

    def _repr_html_(self) -> str | None:
        """Return the text of the answer, which notebooks show; None before there is one."""
        return None if self._response is None else text_as_html(self._response.chat_response.text)

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if not getattr(self, "_used", True):
            name = type(self).__name__
            what = "iterated over" if getattr(self, "_consumed", False) else "asked for its content"
            warn(f"{name} was never {what}: nothing was sent", RuntimeWarning, 2)


class CallResponse(LazyResponse):
    """The response to a blocking call.

    The first accessor runs the request; later ones return data of the same response. If the
    request fails, all accessors raise the same error, usually a `ChatClientError`.
    """

    _path = "answer.chat_response()"

    def __init__(self, run: Run, runtime: Runtime) -> None:
        super().__init__(run, runtime)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, response: ChatClientResponse) -> Self:
        """Return a `CallResponse` for the response of a completed request."""
        call_response = cls.__new__(cls)
        call_response._used = True
        call_response._response = response
        call_response._pending_seen = False
        return call_response

    def content(self) -> str:
        """Return the text of the answer, which may be empty.

        If the turn waits for approval (see `pending_turn`), this is the text before the tool
        calls, usually empty, and a warning is logged.

        Raises:
            ChatClientError: The request failed; see `chatclient.errors`.
            ToolUsageError: The turn waits for approval inside another turn, which cannot resume
                it: the request was made by a tool or an advisor.
        """
        return self._text_of_answer(self.chat_client_response())

    def chat_response(self) -> ChatResponse:
        """Return the response of the model, with usage and finish reason."""
        return self.chat_client_response().chat_response

    def chat_client_response(self) -> ChatClientResponse:
        """Return the response of the model with the context of the advisors."""
        return self._respond(None)

    def _respond(self, output: StructuredOutput[Any] | None) -> ChatClientResponse:
        if self._response is not None:
            return self._response
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._response is None:
                self._used = True
                try:
                    self._response = drive(self._run(self._runtime, output))
                except Exception as error:
                    self._error = error
                    raise
            return self._response

    @overload
    def entity(
        self, kind: EntityType[T], *, native: Native | None = None, validate: bool = False
    ) -> T: ...

    @overload
    def entity(
        self, kind: Mapping[str, Any], *, native: Native | None = None, validate: bool = False
    ) -> Any: ...

    @overload
    def entity(
        self, kind: "TypeForm[T]", *, native: Native | None = None, validate: bool = False
    ) -> T: ...

    def entity(self, kind: Any, *, native: Native | None = None, validate: bool = False) -> Any:
        """Return the answer as a value of a type.

        If this is the first accessor, the request asks the model for this type. After another
        accessor, it converts the existing answer.

        Args:
            kind: A pydantic model, dataclass, `TypedDict`, `NamedTuple`, enum, primitive,
                `Literal`, union, `list[...]`, `dict[...]`, a `StructuredOutputConverter`, or a
                JSON Schema as a mapping, which returns plain data.
            native: Whether the provider enforces the schema, instead of instructions in the
                prompt. True selects the best mechanism of the model, `"schema"` or `"tool"`.
            validate: Whether an answer that cannot be converted is requested again, with at most
                three attempts. A `StructuredOutputValidationAdvisor` in the chain replaces this.

        Raises:
            EntityError: The answer cannot be converted.
            UsageError: The type has no JSON Schema.
        """
        return self.response_entity(kind, native=native, validate=validate).entity

    @overload
    def response_entity(
        self, kind: EntityType[T], *, native: Native | None = None, validate: bool = False
    ) -> ResponseEntity[T]: ...

    @overload
    def response_entity(
        self, kind: Mapping[str, Any], *, native: Native | None = None, validate: bool = False
    ) -> ResponseEntity[Any]: ...

    @overload
    def response_entity(
        self, kind: "TypeForm[T]", *, native: Native | None = None, validate: bool = False
    ) -> ResponseEntity[T]: ...

    def response_entity(
        self, kind: Any, *, native: Native | None = None, validate: bool = False
    ) -> ResponseEntity[Any]:
        """Return the value of `entity` together with the response of the model."""
        output = self._output_of(kind, native, validate=validate)
        response = self._respond(output)
        return ResponseEntity(response.chat_response, entity_of(response, output.converter))

    def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return the executed tool calls, in order."""
        return executions_in(self.chat_client_response())

    def documents(self) -> tuple[Document, ...]:
        """Return the retrieved documents in the order of their numbers in the prompt.

        Each retrieval advisor numbers its documents from 1.
        """
        return documents_in(self.chat_client_response())

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of the request, the tool calls and results, and the answer.

        System messages, default messages of the client and messages from a memory are excluded.
        Without a memory, pass the result to `messages` of the next request.
        """
        return messages_in(self.chat_client_response())

    def new_messages(self) -> tuple[Message, ...]:
        """Return the messages of this turn: question, tool calls and results, answer."""
        return new_messages_in(self.chat_client_response())

    def round_responses(self) -> tuple[ChatResponse, ...]:
        """Return the response of the model in each round, including the last."""
        return round_responses_in(self.chat_client_response())

    def usage(self) -> Usage:
        """Return the tokens of all model calls of the turn, what they cost, and what was cached.

        `usage.cached_share` is the share of the input that the provider read from its cache.
        """
        return self.trail().usage

    def trail(self) -> Trail:
        """Return the trail of the turn, which `print` formats round by round."""
        return trail_of(self.chat_client_response())

    def pending_turn(self) -> PendingTurn | None:
        """Return the turn if it waits for approval, for `client.resume`; otherwise None."""
        return self._pending_in(self.chat_client_response())


class AsyncCallResponse(LazyResponse):
    """The response to an async call: `await` it for a `CallResponse`, or await an accessor.

    The first await runs the request; later ones return data of the same response. If the request
    fails, all accessors raise the same error. After a cancellation, the next await runs it again.
    """

    _path = "(await answer.chat_response())"

    def __init__(self, run: Run, runtime: Runtime) -> None:
        super().__init__(run, runtime)
        self._lock = asyncio.Lock()

    def __await__(self) -> Generator[Any, None, CallResponse]:
        return self._call_response().__await__()

    async def content(self) -> str:
        """Return the text of the answer; see `CallResponse.content`."""
        return self._text_of_answer(await self.chat_client_response())

    async def chat_response(self) -> ChatResponse:
        """Return the response of the model, with usage and finish reason."""
        return (await self.chat_client_response()).chat_response

    async def chat_client_response(self) -> ChatClientResponse:
        """Return the response of the model with the context of the advisors."""
        return await self._respond(None)

    async def _respond(self, output: StructuredOutput[Any] | None) -> ChatClientResponse:
        if self._response is not None:
            return self._response
        async with self._lock:
            with self._storing_error():
                if self._error is not None:
                    raise self._error
                if self._response is None:
                    self._used = True
                    cancellation = Cancellation()
                    runtime = self._runtime.with_cancellation(cancellation)
                    self._response = await run_request(self._run(runtime, output), cancellation)
                return self._response

    @overload
    async def entity(
        self, kind: EntityType[T], *, native: Native | None = None, validate: bool = False
    ) -> T: ...

    @overload
    async def entity(
        self, kind: Mapping[str, Any], *, native: Native | None = None, validate: bool = False
    ) -> Any: ...

    @overload
    async def entity(
        self, kind: "TypeForm[T]", *, native: Native | None = None, validate: bool = False
    ) -> T: ...

    async def entity(
        self, kind: Any, *, native: Native | None = None, validate: bool = False
    ) -> Any:
        """Return the answer as a value of a type; see `CallResponse.entity`."""
        return (await self.response_entity(kind, native=native, validate=validate)).entity

    @overload
    async def response_entity(
        self, kind: EntityType[T], *, native: Native | None = None, validate: bool = False
    ) -> ResponseEntity[T]: ...

    @overload
    async def response_entity(
        self, kind: Mapping[str, Any], *, native: Native | None = None, validate: bool = False
    ) -> ResponseEntity[Any]: ...

    @overload
    async def response_entity(
        self, kind: "TypeForm[T]", *, native: Native | None = None, validate: bool = False
    ) -> ResponseEntity[T]: ...

    async def response_entity(
        self, kind: Any, *, native: Native | None = None, validate: bool = False
    ) -> ResponseEntity[Any]:
        """Return the value of `entity` together with the response of the model."""
        output = self._output_of(kind, native, validate=validate)
        response = await self._respond(output)
        return ResponseEntity(response.chat_response, entity_of(response, output.converter))

    async def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return the executed tool calls, in order."""
        return executions_in(await self.chat_client_response())

    async def documents(self) -> tuple[Document, ...]:
        """Return the retrieved documents; see `CallResponse.documents`."""
        return documents_in(await self.chat_client_response())

    async def messages(self) -> tuple[Message, ...]:
        """Return the messages of the turn and its request; see `CallResponse.messages`."""
        return messages_in(await self.chat_client_response())

    async def new_messages(self) -> tuple[Message, ...]:
        """Return the messages of this turn: question, tool calls and results, answer."""
        return new_messages_in(await self.chat_client_response())

    async def round_responses(self) -> tuple[ChatResponse, ...]:
        """Return the response of the model in each round, including the last."""
        return round_responses_in(await self.chat_client_response())

    async def usage(self) -> Usage:
        """Return the tokens of all model calls of the turn."""
        return (await self._call_response()).usage()

    async def trail(self) -> Trail:
        """Return the trail of the turn; see `CallResponse.trail`."""
        return trail_of(await self.chat_client_response())

    async def pending_turn(self) -> PendingTurn | None:
        """Return the turn if it waits for approval, for `client.resume`; otherwise None."""
        return self._pending_in(await self.chat_client_response())

    async def _call_response(self) -> CallResponse:
        return CallResponse.of(await self.chat_client_response())

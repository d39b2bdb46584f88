"""The answer to a request, or a stream of what happens on the way to it."""

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, overload

from chatclient.accessors import (
    documents_in,
    entity_of,
    executions_in,
    pending_in,
    text_of,
    trail_of,
)
from chatclient.chain import ChatClientResponse
from chatclient.checks import missing
from chatclient.driving import drive
from chatclient.errors import UsageError
from chatclient.exchange import messages_in, new_messages_in, round_responses_in
from chatclient.messages import Message
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime
from chatclient.structured import ResponseEntity, StructuredOutput, StructuredOutputConverter
from chatclient.structured.converters import converter_of
from chatclient.structured.output import Native
from chatclient.tools import PendingTurn, ToolExecution
from chatclient.trail import Trail

if TYPE_CHECKING:
    # `type[T]` takes classes only: no unions, no literals, nothing annotated.
    from typing_extensions import TypeForm

    from chatclient.vector_store import Document  # loaded by who retrieves

T = TypeVar("T")


class Run(Protocol):
    """A request that is ready to run."""

    def __call__(
        self, runtime: Runtime, output: StructuredOutput[Any] | None = None
    ) -> Coroutine[Any, Any, ChatClientResponse]:
        """Return the response, asked for as *output* says."""
        ...


class PendingRequest:
    """Something that runs when it is first asked, and warns when it never was."""

    # How to reach the `ChatResponse` from here; errors about missing attributes say it.
    _way: ClassVar[str]

    def __init__(self, run: Run, runtime: Runtime) -> None:
        self._run = run
        self._runtime = runtime
        self._asked = False
        self._response: ChatClientResponse | None = None
        self._error: Exception | None = None

    def _output_of(
        self, kind: Any, native: Native | None, *, validate: bool, streamed: bool = False
    ) -> StructuredOutput[Any]:
        try:
            return StructuredOutput(converter_of(kind), native, validate, streamed)
        except UsageError:
            self._asked = True  # nothing was forgotten
            raise

    if not TYPE_CHECKING:  # see the client's builder

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name == "text":
                hint = "; its text is its .content()"
            elif hasattr(ChatResponse, name):
                hint = f"; its response has it: {self._way}.{name}"
            raise missing(self, name, hint)

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._response is not None:
            return f"{name}({self._response.chat_response.text!r})"
        return f"<{name}: {'no answer yet' if self._asked else 'nothing was sent yet'}>"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # As with a coroutine that was never awaited: without this, a forgotten `.content()`
        # would silently send nothing.
        if not getattr(self, "_asked", True):
            name = type(self).__name__
            warn(f"{name} was never asked for its content: nothing was sent", RuntimeWarning, 2)


class CallResponse(PendingRequest):
    """The answer to a blocking call.

    The request runs once, when the first accessor is called; the others are free. If it fails,
    every accessor raises the same error, as a rule a `ChatClientError`; `chatclient.errors` says
    which there are.
    """

    _way = "answer.chat_response()"

    def __init__(self, run: Run, runtime: Runtime) -> None:
        super().__init__(run, runtime)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, response: ChatClientResponse) -> Self:
        """Return the answer of a request that has run already."""
        answer = cls.__new__(cls)
        answer._asked = True
        answer._response = response
        return answer

    def content(self) -> str:
        """Return the text of the answer; empty if the model said nothing.

        If the turn waits for approval, this is what the model said before its calls, usually
        nothing: see `pending_turn`.

        Raises:
            ChatClientError: The request failed; see `chatclient.errors`.
            ToolUsageError: The turn waits for approval inside the turn of another request, whose
                tool or advisor asked for it: nobody would resume it.
        """
        return text_of(self.chat_client_response())

    def chat_response(self) -> ChatResponse:
        """Return what the model said, with usage and finish reason."""
        return self.chat_client_response().chat_response

    def chat_client_response(self) -> ChatClientResponse:
        """Return the chat response with the context that the advisors left."""
        return self._ask(None)

    def _ask(self, output: StructuredOutput[Any] | None) -> ChatClientResponse:
        if self._response is not None:
            return self._response
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._response is None:
                self._asked = True
                try:
                    self._response = drive(self._run(self._runtime, output))
                except Exception as error:
                    self._error = error
                    raise
            return self._response

    @overload
    def entity(
        self,
        kind: type[T] | StructuredOutputConverter[T],
        *,
        native: Native | None = None,
        validate: bool = False,
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

        If this is the first accessor that is called, the model is told how to answer. Called
        after another one, it reads the answer that has arrived.

        Args:
            kind: A pydantic model, dataclass, `TypedDict`, `NamedTuple`, enum, primitive,
                `Literal`, union, `list[...]`, `dict[...]`, a `StructuredOutputConverter`, or a
                JSON Schema as a mapping, for plain data.
            native: Whether the provider enforces the type's schema; if not, the model is told in
                words. True chooses what suits the model best, `"schema"` or `"tool"`.
            validate: Whether the model is asked again, up to three times in all, when its answer
                does not fit; another `StructuredOutputValidationAdvisor` in the chain replaces it.

        Raises:
            EntityError: The answer is not what was asked for.
            UsageError: The type has no JSON Schema.
        """
        output = self._output_of(kind, native, validate=validate)
        return entity_of(self._ask(output), output.converter)

    @overload
    def response_entity(
        self,
        kind: type[T] | StructuredOutputConverter[T],
        *,
        native: Native | None = None,
        validate: bool = False,
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
        """Return the answer as `entity` does, with the response that it was read from."""
        output = self._output_of(kind, native, validate=validate)
        response = self._ask(output)
        return ResponseEntity(response.chat_response, entity_of(response, output.converter))

    def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return every tool call that was run for this answer, in order."""
        return executions_in(self.chat_client_response())

    def documents(self) -> "tuple[Document, ...]":
        """Return the documents that retrieval found for this answer, in the order of their numbers.

        Numbers start at 1 for each advisor that retrieves.
        """
        return documents_in(self.chat_client_response())

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of the request, of the turn, and the answer.

        Tool calls and their results are among them. System texts and the client's default
        messages are not, and neither is what a memory showed: without a memory, these are the
        `messages` of the next request.
        """
        return messages_in(self.chat_client_response())

    def new_messages(self) -> tuple[Message, ...]:
        """Return those of the messages that are this turn's: question, tool rounds, answer."""
        return new_messages_in(self.chat_client_response())

    def round_responses(self) -> tuple[ChatResponse, ...]:
        """Return what the model answered, round by round, the last one among them."""
        return round_responses_in(self.chat_client_response())

    def trail(self) -> Trail:
        """Return what happened in the turn, round by round; `print` it."""
        return trail_of(self.chat_client_response())

    def pending_turn(self) -> PendingTurn | None:
        """Return the turn that waits for approvals, to be continued with `client.resume`."""
        return pending_in(self.chat_client_response())


class AsyncCallResponse(PendingRequest):
    """The answer to an asynchronous call: `await` it, or one of its accessors.

    The request runs once, when first awaited; what is awaited later is free. When it fails, every
    accessor raises its error. A cancelled request runs again when something is awaited again.
    """

    _way = "(await answer.chat_response())"

    def __init__(self, run: Run, runtime: Runtime) -> None:
        super().__init__(run, runtime)
        self._lock = asyncio.Lock()

    def __await__(self) -> Generator[Any, None, CallResponse]:
        return self._answer().__await__()

    async def content(self) -> str:
        """Return the text of the answer; see `CallResponse.content`."""
        return text_of(await self.chat_client_response())

    async def chat_response(self) -> ChatResponse:
        """Return what the model said, with usage and finish reason."""
        return (await self.chat_client_response()).chat_response

    async def chat_client_response(self) -> ChatClientResponse:
        """Return the chat response with the context that the advisors left."""
        return await self._ask(None)

    async def _ask(self, output: StructuredOutput[Any] | None) -> ChatClientResponse:
        if self._response is not None:
            return self._response
        async with self._lock:
            if self._error is not None:
                raise self._error
            if self._response is None:
                self._asked = True
                try:
                    self._response = await self._run(self._runtime, output)
                except Exception as error:
                    self._error = error
                    raise
            return self._response

    @overload
    async def entity(
        self,
        kind: type[T] | StructuredOutputConverter[T],
        *,
        native: Native | None = None,
        validate: bool = False,
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
        output = self._output_of(kind, native, validate=validate)
        return entity_of(await self._ask(output), output.converter)

    @overload
    async def response_entity(
        self,
        kind: type[T] | StructuredOutputConverter[T],
        *,
        native: Native | None = None,
        validate: bool = False,
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
        """Return the answer as `entity` does, with the response that it was read from."""
        output = self._output_of(kind, native, validate=validate)
        response = await self._ask(output)
        return ResponseEntity(response.chat_response, entity_of(response, output.converter))

    async def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Return every tool call that was run for this answer, in order."""
        return executions_in(await self.chat_client_response())

    async def documents(self) -> "tuple[Document, ...]":
        """Return the documents that retrieval found; see `CallResponse.documents`."""
        return documents_in(await self.chat_client_response())

    async def messages(self) -> tuple[Message, ...]:
        """Return the messages of the conversation; see `CallResponse.messages`."""
        return messages_in(await self.chat_client_response())

    async def new_messages(self) -> tuple[Message, ...]:
        """Return those of the messages that are this turn's: question, tool rounds, answer."""
        return new_messages_in(await self.chat_client_response())

    async def round_responses(self) -> tuple[ChatResponse, ...]:
        """Return what the model answered, round by round, the last one among them."""
        return round_responses_in(await self.chat_client_response())

    async def trail(self) -> Trail:
        """Return what happened in the turn, round by round."""
        return trail_of(await self.chat_client_response())

    async def pending_turn(self) -> PendingTurn | None:
        """Return the turn that waits for approvals, to be continued with `client.resume`."""
        return pending_in(await self.chat_client_response())

    async def _answer(self) -> CallResponse:
        return CallResponse.of(await self.chat_client_response())

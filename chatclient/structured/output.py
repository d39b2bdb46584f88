"""`StructuredOutput`: requests with a typed answer, and the values in their responses."""

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from chatclient._internal.json import loads
from chatclient.chain.chain import ChatClientResponse
from chatclient.chain.params import Native, check_native
from chatclient.chat.events import RoundEnded, TextDelta
from chatclient.chat.messages import UserMessage
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import ChatResponse
from chatclient.errors import EntityError
from chatclient.structured.answer_cleaning import NOTHING, cleaned
from chatclient.structured.converters import StructuredOutputConverter
from chatclient.structured.type_converter import entity_error

T = TypeVar("T")

_ENDED_EARLY = {
    "length": "it was cut off at the limit of output tokens; be brief, or raise max_tokens",
    "tool_call_limit_exceeded": "the turn ended at a limit: tool_call_limit_exceeded; answer with"
    " the results so far, or raise ToolLimits",
}

_GROWTH = 0.01  # relative growth of an answer after which its partial value is computed again


@dataclass(frozen=True, slots=True, eq=False)
class StructuredOutput(Generic[T]):
    """The typed answer that a request asks for.

    Attributes:
        converter: Defines the format and converts the answer.
        native: Whether the provider enforces the schema; None: the advisor param decides.
        validate: Whether the request is repeated if the answer is invalid.
        streamed: Whether partial values are consumed; the answer must not be buffered then.
        mode: How the model returns JSON; set by `for_request`.

    Raises:
        UsageError: *native* has an unknown value.
    """

    converter: StructuredOutputConverter[T]
    native: Native | None = None
    validate: bool = False
    streamed: bool = False
    mode: OutputMode = "instructions"

    def __post_init__(self) -> None:
        check_native("native", self.native)

    def for_request(
        self, model: ChatModel, options: ChatOptions, default: Native | None
    ) -> tuple["StructuredOutput[T]", ChatOptions]:
        """Return this with its mode, and the options for the request.

        If the options have a schema, it is kept and no format is added.

        Args:
            model: The model that will be called.
            options: The complete options of the request.
            default: The advisor param for native output.
        """
        native, schema = default if self.native is None else self.native, self.converter.json_schema
        mode: OutputMode = "instructions"
        if options.output_schema is not None:
            mode = "schema"
        elif native and schema is not None:
            with_schema = options.mutate(output_schema=schema)
            mode = model.output_mode(with_schema) if native is True else native
            options = with_schema if mode == "schema" else options
        return replace(self, native=native, mode=mode), options


def with_format(message: UserMessage, format: str) -> UserMessage:
    """Return *message* with *format* appended to its text."""
    return UserMessage((*message.parts, f"\n\n{format}"), metadata=message.metadata, id=message.id)


@dataclass(frozen=True, slots=True)
class ResponseEntity(Generic[T]):
    """A value and the response that contains it.

    Attributes:
        response: The response, with usage and finish reason.
        entity: The value.
    """

    response: ChatResponse
    entity: T


def entity_in(response: ChatClientResponse, converter: StructuredOutputConverter[T]) -> T:
    """Return the value in *response*.

    Raises:
        EntityError: The answer cannot be converted.
    """
    validated: tuple[Any, str, T] | None = response.turn.validated
    answer = response.chat_response
    if validated is not None and validated[0] is converter and validated[1] == answer.text:
        return validated[2]
    try:
        return read_answer(answer, converter)
    except EntityError as error:
        error.trail = response.trail
        raise


def read_answer(answer: ChatResponse, converter: StructuredOutputConverter[T]) -> T:
    """Return the value in *answer*.

    Raises:
        EntityError: The answer cannot be converted.
    """
    try:
        _check_finished(answer, converter)
        return converter.convert(_json_in_reasoning(answer) or answer.text)
    except EntityError as error:
        error.response = answer
        raise
    except Exception as cause:
        # Converters of the application may raise any error.
        unreadable = entity_error("value that can be read", answer.text, [str(cause)])
        unreadable.response = answer
        raise unreadable from cause


def _json_in_reasoning(answer: ChatResponse) -> str:
    """Return the reasoning of an answer without text, if it is JSON; else an empty text.

    Servers that separate reasoning may take the answer of a model that did not reason for it.
    """
    reasoning = () if answer.output is None else answer.output.reasoning
    if not reasoning or cleaned(answer.text):
        return ""
    text = "".join(part.text for part in reasoning)
    try:
        return text if isinstance(loads(text), dict | list) else ""
    except ValueError:
        return ""


def _check_finished(answer: ChatResponse, converter: StructuredOutputConverter[Any]) -> None:
    """Check that *answer* is complete.

    Raises:
        EntityError: It is not.
    """
    text = answer.text
    if answer.has_tool_calls() and not text:
        raise entity_error("answer yet", text, ["it asks for tools, which were not run"])
    if answer.finish_reason == "content_filter" and not text:
        raise entity_error("answer", text, ["the provider's content filter withheld it"])
    hint = _ENDED_EARLY.get(answer.finish_reason or "")
    if hint is None or converter.json_schema is None:
        return
    try:
        loads(cleaned(text))
    except ValueError:
        raise entity_error("complete answer", text, [hint]) from None


class PartialEntities(Generic[T]):
    """Computes partial values from the events of a stream."""

    def __init__(self, converter: StructuredOutputConverter[T]) -> None:
        self._partial = getattr(converter, "partial", None)
        self._pieces: list[str] = []
        self._length = self._converted = 0  # characters received, and at the last conversion
        self._last: Any = NOTHING

    def take(self, event: Any) -> T:
        """Add *event*; return the new partial value if it differs from the last, else `NOTHING`."""
        value: Any = NOTHING
        match event:
            case TextDelta(text=text):
                self._pieces.append(text)
                self._length += len(text)
                if not text.isspace():
                    value = self._partial_value()
            case RoundEnded():
                self._pieces, self._length, self._converted = [], 0, 0
            case _:
                pass
        return self.new(value)

    def new(self, value: Any) -> T:
        """Return *value*, or `NOTHING` if it equals the last one."""
        if value is NOTHING or self._is_last(value):
            return NOTHING  # type: ignore[no-any-return]
        self._last = value
        return value  # type: ignore[no-any-return]

    def _partial_value(self) -> Any:
        """Return the partial value if the text has grown enough since the last conversion.

        Each conversion reads the complete text. Converting after each chunk would take quadratic
        time; converting after each growth by one percent takes linear time.
        """
        if self._partial is None or self._length - self._converted < self._converted * _GROWTH:
            return NOTHING
        self._converted = self._length
        self._pieces = ["".join(self._pieces)]
        try:
            return self._partial(self._pieces[0])
        except Exception:  # noqa: BLE001 - the conversion of the final answer reports errors
            return NOTHING

    def _is_last(self, value: Any) -> bool:
        try:
            return type(value) is type(self._last) and bool(value == self._last)
        except Exception:  # noqa: BLE001 - `__eq__` of the type may not support partial values
            return False

"""What a request asks for beside a text, and what its response comes to."""

from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from chatclient.chain import ChatClientResponse
from chatclient.checks import check_word
from chatclient.errors import EntityError
from chatclient.events import RoundEnded, TextDelta
from chatclient.json import loads
from chatclient.messages import Message, UserMessage, last_user_message
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions
from chatclient.response import ChatResponse
from chatclient.structured.cleaning import cleaned
from chatclient.structured.converters import StructuredOutputConverter
from chatclient.structured.partial import NOTHING
from chatclient.structured.type_converter import entity_error

T = TypeVar("T")

_ENDED_EARLY = {
    "length": "it was cut off at the limit of output tokens; be brief, or raise max_tokens",
    "tool_call_limit_exceeded": "the turn ended at a limit: tool_call_limit_exceeded; answer from"
    " what there is, or raise ToolLimits",
}

Native: TypeAlias = bool | Literal["schema", "tool"]
"""Whether the provider holds its model to the schema (True: as the model is best held to it)."""

STRUCTURED_OUTPUT = "structured_output"
"""The key in a request's context of what it asks for, a `StructuredOutput`."""

NATIVE_STRUCTURED_OUTPUT = "native_structured_output"
"""The advisor param that says how natively `entity` asks when it is not told itself, a `Native`."""

VALIDATED = "validated_output"
"""The key in a response's context of its value, when an advisor has read it already."""

_GROWTH = 0.01  # how much longer an answer has to be for its value so far to be read again


@dataclass(frozen=True, slots=True, eq=False)
class StructuredOutput(Generic[T]):
    """What a request asks for.

    Attributes:
        converter: Says how to answer, and reads the answer.
        native: Whether the provider is to enforce it; None leaves that to the advisor param.
        validate: Whether the model is asked again when its answer does not fit.
        streamed: Whether partial values are consumed, so that no answer may be held back.
        mode: How the model is made to answer, once that is decided.
        asked: The user's message that the format is added to, but in schema mode.
        told: That message with the format.

    Raises:
        UsageError: *native* is not a known value.
    """

    converter: StructuredOutputConverter[T]
    native: Native | None = None
    validate: bool = False
    streamed: bool = False
    mode: OutputMode = "instructions"
    asked: UserMessage | None = None
    told: UserMessage | None = None

    def __post_init__(self) -> None:
        _check_native("native", self.native)

    def for_request(
        self, model: ChatModel, messages: tuple[Message, ...], options: ChatOptions, default: Any
    ) -> tuple["StructuredOutput[T]", ChatOptions]:
        """Return this with everything decided, and the options to ask with.

        A schema that is set in the options stays, and nothing is said beside it.

        Args:
            model: The model that will be asked.
            messages: What it will be asked.
            options: All options of the request.
            default: What the advisor param says about native output.
        """
        if options.output_schema is not None:
            return replace(self, mode="schema"), options
        mode = self._mode(model, options, default)
        if mode == "schema":
            options = options.mutate(output_schema=self.converter.json_schema)
            return replace(self, mode=mode), options
        # Of an answer that is to be a tool call too: words have to do where none may be called.
        asked = last_user_message(messages)
        told = None if asked is None else with_format(asked, self.converter.format)
        return replace(self, mode=mode, asked=asked, told=told), options

    def _mode(self, model: ChatModel, options: ChatOptions, default: Any) -> OutputMode:
        native: Native | None = default if self.native is None else self.native
        _check_native(NATIVE_STRUCTURED_OUTPUT, native)
        if not native or self.converter.json_schema is None:
            return "instructions"
        if native is not True:
            return native
        return model.output_mode(options.mutate(output_schema=self.converter.json_schema))


def _check_native(what: str, given: object) -> None:
    check_word(what, given, True, False, None, "schema", "tool")  # noqa: FBT003 - words


def with_format(message: UserMessage, format: str) -> UserMessage:
    """Return *message* with the format after everything else it says."""
    return UserMessage((*message.parts, f"\n\n{format}"), metadata=message.metadata)


@dataclass(frozen=True, slots=True)
class ResponseEntity(Generic[T]):
    """A value with the response that it was read from.

    Attributes:
        response: What the model said, with usage and finish reason.
        entity: The value.
    """

    response: ChatResponse
    entity: T


def entity_in(response: ChatClientResponse, converter: StructuredOutputConverter[T]) -> T:
    """Return the value in *response*.

    Raises:
        EntityError: It is not what was asked for.
    """
    known: tuple[Any, str, T] | None = response.context.get(VALIDATED)
    answer = response.chat_response
    if known is not None and known[0] is converter and known[1] == answer.text:
        return known[2]
    try:
        return read_answer(answer, converter)
    except EntityError as error:
        error.trail = response.trail
        raise


def read_answer(answer: ChatResponse, converter: StructuredOutputConverter[T]) -> T:
    """Return the value that the model answered.

    Raises:
        EntityError: It is not what was asked for.
    """
    try:
        _refuse_unfinished(answer, converter)
        return converter.convert(_json_among_thoughts(answer) or answer.text)
    except EntityError as error:
        error.response = answer
        raise
    except Exception as cause:
        # A converter of the application's own may say in any way that it cannot read the answer.
        unreadable = entity_error("value that can be read", answer.text, [str(cause)])
        unreadable.response = answer
        raise unreadable from cause


def _json_among_thoughts(answer: ChatResponse) -> str:
    """Return the JSON of an answer that says nothing, but is said to have thought just that.

    Servers that look for thoughts may take an answer for one whose model did not think.
    """
    reasoning = () if answer.output is None else answer.output.reasoning
    if not reasoning or cleaned(answer.text):
        return ""
    thoughts = "".join(thought.text for thought in reasoning)
    try:
        return thoughts if isinstance(loads(thoughts), dict | list) else ""
    except ValueError:
        return ""


def _refuse_unfinished(answer: ChatResponse, converter: StructuredOutputConverter[Any]) -> None:
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
        raise entity_error("whole answer", text, [hint]) from None


class PartialEntities(Generic[T]):
    """Takes the events of a stream, one by one, and gives the values they amount to so far."""

    def __init__(self, converter: StructuredOutputConverter[T]) -> None:
        self._partial = getattr(converter, "partial", None)
        self._pieces: list[str] = []
        self._length = self._read = 0  # of the text, and of what of it has been read
        self._last: Any = NOTHING

    def take(self, event: Any) -> T:
        """Return a value that *event* makes more complete than all before, or `NOTHING`."""
        value: Any = NOTHING
        match event:
            case TextDelta(text=text):
                self._pieces.append(text)
                self._length += len(text)
                if not text.isspace():
                    value = self._half_value()
            case RoundEnded():
                self._pieces, self._length, self._read = [], 0, 0  # what follows is another answer
            case _:
                pass
        return self.new(value)

    def new(self, value: Any) -> T:
        """Return *value*, unless there is none or it is the one before: `NOTHING` then."""
        if value is NOTHING or self._is_last(value):
            return NOTHING  # type: ignore[no-any-return]
        self._last = value
        return value  # type: ignore[no-any-return]

    def _half_value(self) -> Any:
        """Return the value so far, if enough has come since the one before.

        Reading is about the whole text. Done for every piece, a long answer would take the square
        of its length; done each time that it has grown by one per cent, hardly more than itself.
        """
        if self._partial is None or self._length - self._read < self._read * _GROWTH:
            return NOTHING
        self._read = self._length
        self._pieces = ["".join(self._pieces)]
        try:
            return self._partial(self._pieces[0])
        except Exception:  # noqa: BLE001 - half a value may fail in any way; the last one tells why
            return NOTHING

    def _is_last(self, value: Any) -> bool:
        try:
            return type(value) is type(self._last) and bool(value == self._last)
        except Exception:  # noqa: BLE001 - comparing is the type's own code, made for whole values
            return False

"""Guardrails: the result, the built-in ones, and the advisors that apply them."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile
from typing import Any, Literal

from chatclient._internal.checks import check_callable, check_choice, check_number, wants_both
from chatclient.advisors.response_cache import REFRESH
from chatclient.chain.chain import (
    MEMORY_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    name_of,
)
from chatclient.chain.params import ANY, CACHE_RESPONSES
from chatclient.chat.events import RoundEnded, TextDelta
from chatclient.chat.message_merging import CORRECTION, current_turn_start, with_correction
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    UserMessage,
    last_user_message,
    system_messages,
)
from chatclient.chat.moderation import ModerationModel
from chatclient.chat.prompt import Prompt, is_blank
from chatclient.chat.response import NO_USAGE, ChatResponse
from chatclient.chat.tool import ToolResult
from chatclient.errors import EntityError, GuardrailError, UsageError, WrongTypeError
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import is_async
from chatclient.structured.converters import converter_of
from chatclient.structured.output import read_answer


class HeldStream:
    """Buffers the events of a call from the first text delta on.

    Events before it, such as reasoning, are emitted immediately.
    """

    __slots__ = ("_events", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._events: list[Any] = []

    @property
    def runtime(self) -> Runtime:
        """The runtime to make the call with."""
        return self._runtime.with_emitter(self._buffer)

    async def release(self, *, text: bool = True) -> None:
        """Emit the buffered events; without *text*, drop text deltas and the answers of rounds."""
        events, self._events = self._events, []
        for event in events:
            if text:
                await self._runtime.emit(event)
            elif isinstance(event, RoundEnded):
                await self._runtime.emit(RoundEnded(replace(event.response, generations=())))
            elif not isinstance(event, TextDelta):
                await self._runtime.emit(event)

    async def _buffer(self, event: Any) -> None:
        if self._events or isinstance(event, TextDelta):
            self._events.append(event)
        else:
            await self._runtime.emit(event)


Outcome = Literal["success", "failure", "fatal", "retry", "reprompt"]
"""The decision of a guardrail."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """The decision of a guardrail; created by one of the class methods.

    Attributes:
        outcome: The decision.
        message: The reason, for the error message.
        text: The rewritten text, or the prompt of a retry.

    Raises:
        UsageError: *outcome* is not a known value, or `reprompt` without a text.
    """

    outcome: Outcome
    message: str = ""
    text: str | None = None

    def __post_init__(self) -> None:
        check_choice("a guardrail's outcome", self.outcome, Outcome)
        if self.outcome == "reprompt" and not (self.text or "").strip():
            msg = (
                "a reprompt needs what the model is told: GuardrailResult.reprompt(message, prompt)"
            )
            raise UsageError(msg)

    @classmethod
    def success(cls, text: str | None = None) -> "GuardrailResult":
        """Accept the message, with its text replaced by *text* if that is given."""
        return cls("success", text=text)

    @classmethod
    def failure(cls, message: str) -> "GuardrailResult":
        """Refuse the message, after the other guardrails have checked it as well."""
        return cls("failure", message)

    @classmethod
    def fatal(cls, message: str) -> "GuardrailResult":
        """Refuse the message; the other guardrails are not called."""
        return cls("fatal", message)

    @classmethod
    def retry(cls, message: str) -> "GuardrailResult":
        """Call the model again with the same messages and tool results (output only)."""
        return cls("retry", message)

    @classmethod
    def reprompt(cls, message: str, prompt: str) -> "GuardrailResult":
        """Call the model again with its answer and *prompt* appended (output only)."""
        return cls("reprompt", message, prompt)


Judgement = GuardrailResult | None | Awaitable[GuardrailResult | None]
"""The return value of a guardrail, plain or async; None is success."""

InputGuardrail = Callable[[ChatClientRequest], Judgement]
"""Checks a request and returns a `GuardrailResult`, or None for success; plain or async."""

OutputGuardrail = (
    Callable[[ChatResponse], Judgement] | Callable[[ChatResponse, ChatClientRequest], Judgement]
)
"""Checks a response and returns a `GuardrailResult`, or None for success; plain or async.

It may take the request as a second argument. The context of that request is the response's, and its
turn has the documents that the answer is based on (`sources`) and the tools that were run."""


# Based on OWASP's cheat sheet on prompt injection; only a first line of defence.
INJECTIONS = re.compile(
    r"""
      \b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:previous|prior|above|earlier|all|your)\b
        .{0,40}\b(?:instruction|prompt|rule|direction|guideline)s?\b
    | \b(?:reveal|show|print|repeat|tell\s+me)\b.{0,40}\b(?:system|hidden|initial)\s+
        (?:prompt|instructions?|message)\b
    | \byou\s+are\s+now\b.{0,40}\b(?:dan|developer\s+mode|jailbroken|unrestricted)\b
    | \b(?:enable|enter|activate)\b.{0,20}\b(?:developer|debug|admin|god)\s+mode\b
    | \bbypass\b.{0,40}\b(?:safety|security|filter|restriction|guardrail)s?\b
    | <\|(?:im_start|im_end|system|endoftext)\|>
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def refuse_prompt_injection(request: ChatClientRequest) -> GuardrailResult:
    """Refuse a user's text that looks like an attempt to override the application's instructions.

    Patterns find simple attempts only.
    """
    if INJECTIONS.search(last_user_text(request)):
        return GuardrailResult.fatal("the text looks like a prompt injection")
    return GuardrailResult.success()


def json_guardrail(kind: Any = dict[str, Any]) -> OutputGuardrail:
    """Return an output guardrail that retries until the answer is JSON that fits *kind*."""
    converter = converter_of(kind)

    def json_answer(answer: ChatResponse) -> GuardrailResult:
        try:
            read_answer(answer, converter)
        except EntityError as error:
            errors = "\n".join(f"- {line}" for line in error.errors)
            prompt = f"That is not what was asked for:\n{errors}\n{converter.format}"
            return GuardrailResult.reprompt("the answer is not the JSON asked for", prompt)
        return GuardrailResult.success()

    return json_answer


def moderated_input(model: ModerationModel) -> InputGuardrail:
    """Return an input guardrail that refuses user messages that a moderation model flags.

    The error names the categories.
    """

    def moderated(request: ChatClientRequest) -> GuardrailResult:
        return _moderated(model, last_user_text(request))

    return moderated


def moderated_output(model: ModerationModel) -> OutputGuardrail:
    """Return an output guardrail that refuses answers that a moderation model flags."""

    def moderated(answer: ChatResponse) -> GuardrailResult:
        return _moderated(model, "\n".join(each.output.text for each in answer.generations))

    return moderated


def last_user_text(request: ChatClientRequest) -> str:
    """Return the text of the last user messages, back to the assistant message before them."""
    newest_first = reversed(request.prompt.messages)
    from_user = dropwhile(lambda m: not isinstance(m, UserMessage), newest_first)
    recent = list(takewhile(lambda m: not isinstance(m, AssistantMessage), from_user))
    return "\n".join(m.text for m in reversed(recent) if isinstance(m, UserMessage))


def _moderated(model: ModerationModel, text: str) -> GuardrailResult:
    if text.strip():
        verdict = model.moderate(text)
        if verdict.flagged:
            return GuardrailResult.fatal(f"flagged for {', '.join(verdict.categories)}")
    return GuardrailResult.success()


__all__ = [
    "INPUT_GUARDRAIL_ORDER",
    "OUTPUT_GUARDRAIL_ORDER",
    "GuardrailResult",
    "InputGuardrail",
    "InputGuardrailAdvisor",
    "Judgement",
    "Outcome",
    "OutputGuardrail",
    "OutputGuardrailAdvisor",
    "json_guardrail",
    "moderated_input",
    "moderated_output",
    "refuse_prompt_injection",
]

INPUT_GUARDRAIL_ORDER = MEMORY_ORDER - 50
"""The default order of input guardrails: outside memory, which never stores a refused request."""

OUTPUT_GUARDRAIL_ORDER = MEMORY_ORDER + 40
"""The default order of output guardrails: inside memory, which only stores accepted answers, and
outside of the tool loop, so that they check final answers and not each round."""

_SUCCESS = GuardrailResult("success")


class InputGuardrailAdvisor:
    """Accepts a request only if all guardrails accept it; they may rewrite the user's text.

    They are called in order, each with the text as the previous ones have rewritten it. A refused
    request reaches neither the model nor a memory of default order.

    Args:
        *guardrails: The guardrails.
        order: The position in the chain.

    Raises:
        UsageError: There is no guardrail, or one of them cannot be called.
    """

    name = "InputGuardrailAdvisor"

    def __init__(self, *guardrails: InputGuardrail, order: int = INPUT_GUARDRAIL_ORDER) -> None:
        check_guardrails(guardrails, ("request",))
        self.guardrails = guardrails
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the request as the guardrails rewrote it.

        Raises:
            GuardrailError: A guardrail refused the request.
            UsageError: A guardrail rewrote the user's text to a blank one.
        """
        failures = Failures()
        judged = _with_original_messages(request)
        for guardrail in self.guardrails:
            result = await judgement_of(guardrail, request.runtime, judged)
            if result.outcome in ("retry", "reprompt"):
                msg = (
                    f"input guardrail {name_of(guardrail)!r} asks for another answer, but there is"
                    " none yet"
                )
                raise UsageError(msg)
            if failures.add(guardrail, result):
                break
            if result.text is not None:
                prompt = judged.prompt.augment_user_message(result.text)
                rewritten = last_user_message(prompt.messages)
                if rewritten is not None and is_blank(rewritten):
                    msg = (
                        f"input guardrail {name_of(guardrail)!r} leaves nothing of what the"
                        " user says; to refuse a request, return GuardrailResult.failure(...)"
                    )
                    raise UsageError(msg)
                judged = judged.mutate(prompt=prompt)
        failures.raise_if_any(None)
        # A resumed turn sends the messages that it was suspended with, so a new text has no effect.
        if request.turn.part.resumption is not None:
            return await call_next(request)
        if judged is not request:
            # Record the user's message in the turn as the guardrails left it.
            turn = request.turn
            after = last_user_message(judged.prompt.messages)
            if after is not None:
                before = _judged_message(turn.request_messages, request.prompt.messages)
                turn.request_messages = tuple(
                    after if message is before else message for message in turn.request_messages
                )
        return await call_next(judged)


def _with_original_messages(request: ChatClientRequest) -> ChatClientRequest:
    """Return *request*; if it resumes a turn, with the messages as the user wrote them.

    The suspended turn contains them as advisors rewrote them.
    """
    turn = request.turn
    if not turn.resumed:
        return request
    systems = system_messages(request.prompt.messages)
    messages = (*systems, *turn.messages())
    return request.mutate(prompt=Prompt.of(messages, request.prompt.options))


def _judged_message(recorded: Sequence[Message], sent: Sequence[Message]) -> Message | None:
    """Return the one of the *recorded* messages that the guardrails judged, or None.

    They judge the last user message that is *sent*. If it is not recorded, either an advisor
    further out has rewritten a recorded one, which is no longer sent: that one is returned. Or it
    is new: an advisor has added it, or it is user input of the running turn.
    """
    judged = last_user_message(sent)
    if any(message is judged for message in recorded):
        return judged
    turn = takewhile(lambda m: isinstance(m, UserMessage), sent[current_turn_start(sent) :])
    if not any(m is judged and CORRECTION not in m.metadata for m in turn):
        return None
    present = {id(message) for message in sent}
    return last_user_message([message for message in recorded if id(message) not in present])


class OutputGuardrailAdvisor:
    """Accepts an answer only if all guardrails accept it; they may rewrite it, or request another.

    They are called in order, each with the text as the previous ones have rewritten it. Another
    answer is checked by all of them. The request for it contains the tool results so far, and the
    model may call more tools.

    A memory of default order stores the original question and the accepted answer. In a stream,
    text is buffered until it is accepted.

    Args:
        *guardrails: The guardrails.
        max_retries: The maximum number of further answers.
        order: The position in the chain.

    Raises:
        UsageError: There is no guardrail, one of them cannot be called, or *max_retries* is
            negative.
    """

    name = "OutputGuardrailAdvisor"

    def __init__(
        self,
        *guardrails: OutputGuardrail,
        max_retries: int = 2,
        order: int = OUTPUT_GUARDRAIL_ORDER,
    ) -> None:
        check_guardrails(guardrails, ("response", "request"))
        check_number("max_retries", max_retries)
        self.guardrails = guardrails
        self._want_request = tuple(map(wants_both, guardrails))
        self.params = (ANY,) if any(self._want_request) else ()
        self.max_retries = max_retries
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the first response that all guardrails accept.

        Raises:
            GuardrailError: A response was refused, or the last retry was not accepted.
        """
        usage, sent, left, turn = NO_USAGE, request, self.max_retries, request.turn
        while True:
            held = HeldStream(request.runtime)
            streaming = request.runtime.streaming
            rounds = len(turn.rounds)
            response = await call_next(sent.mutate(runtime=held.runtime) if streaming else sent)
            usage += response.chat_response.usage
            response = response.mutate(chat_response=response.chat_response.with_usage(usage))
            verdict = await self._judge(response, sent)
            if isinstance(verdict, ChatResponse):
                rewritten = verdict.text != response.chat_response.text
                await held.release(text=not rewritten)
                if rewritten:
                    await request.runtime.emit(TextDelta(verdict.text))
                return response.mutate(chat_response=verdict)
            await held.release(text=False)
            guardrail, result = verdict
            if not left:
                name = name_of(guardrail)
                msg = (
                    f"{name} still refuses the answer after {self.max_retries} retries:"
                    f" {result.message}"
                )
                raise GuardrailError(
                    msg, guardrail=name, messages=[result.message], response=response.chat_response
                )
            caches = sent.context.get(CACHE_RESPONSES) is not False
            context = {CACHE_RESPONSES: REFRESH} if caches else None
            messages = (*turn.updated(sent.prompt.messages), *turn.rounds[rounds:])
            if result.text is not None:
                messages = with_correction(messages, response.chat_response.output, result.text)
            sent = sent.mutate(prompt=Prompt.of(messages, sent.prompt.options), context=context)
            left -= 1

    async def _judge(
        self, response: ChatClientResponse, sent: ChatClientRequest
    ) -> ChatResponse | tuple[OutputGuardrail, GuardrailResult]:
        """Return the accepted answer, or the guardrail that requests another and its result."""
        answer = response.chat_response
        if answer.has_tool_calls() or answer.finish_reason == "return_direct":
            return answer  # not a final answer of the model
        failures = Failures()
        for guardrail, wants_request in zip(self.guardrails, self._want_request, strict=True):
            request = [sent.mutate(context=response.context)] if wants_request else []
            result = await judgement_of(guardrail, sent.runtime, answer, *request)
            if result.outcome in ("retry", "reprompt"):
                return guardrail, result
            if failures.add(guardrail, result):
                break
            if result.text is not None:
                answer = answer.with_text(result.text)
        failures.raise_if_any(answer)
        return answer


def check_guardrails(guardrails: tuple[Any, ...], takes: tuple[str, ...]) -> None:
    """Check that there are *guardrails*, and that each of them takes the parameters *takes*.

    Raises:
        UsageError: There is none, or one of them cannot be called.
    """
    if not guardrails:
        msg = "without guardrails everything would pass; give at least one"
        raise UsageError(msg)
    for guardrail in guardrails:
        hint = "give several one by one: Advisor(first, second)"
        both = len(takes) > 1 and callable(guardrail) and wants_both(guardrail)
        check_callable("a guardrail", guardrail, hint, takes=takes if both else takes[:1])


class Failures:
    """Collects the failures of guardrails, each with the guardrail's name and its message."""

    def __init__(self) -> None:
        self._failures: list[tuple[str, str]] = []

    def add(self, guardrail: Callable[..., Any], result: GuardrailResult) -> bool:
        """Add *result* if it is a failure, and return whether it is fatal."""
        if result.outcome in ("failure", "fatal"):
            self._failures.append((name_of(guardrail), result.message))
        return result.outcome == "fatal"

    def raise_if_any(self, response: ChatResponse | ToolResult | None) -> None:
        """Raise a `GuardrailError` about *response* if there are failures."""
        if self._failures:
            reasons = ", ".join(f"{name}: {message}" for name, message in self._failures)
            raise GuardrailError(
                f"refused by {reasons}",
                guardrail=self._failures[-1][0],
                messages=[message for _, message in self._failures],
                response=response,
            )


async def judgement_of(
    guardrail: Callable[..., Any], runtime: Runtime, *arguments: Any
) -> GuardrailResult:
    """Return what *guardrail* says about *arguments*.

    Raises:
        WrongTypeError: It returns something else.
    """
    # Asynchronous guardrails of this library wait through the runtime of the request.
    call = runtime.call if is_async(guardrail) else runtime.invoke
    result = await call(guardrail, *arguments)
    if result is None:
        return _SUCCESS
    if not isinstance(result, GuardrailResult):
        name = name_of(guardrail)
        msg = (
            f"guardrail {name!r} returned {result!r}, which is not a GuardrailResult; return"
            " GuardrailResult.success(), or .failure(message)"
        )
        raise WrongTypeError(msg)
    return result

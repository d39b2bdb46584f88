"""Checks what goes to the model and what comes back, and may ask for something better."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from chatclient.advisors.caching import CACHE_RESPONSES, REFRESH
from chatclient.advisors.holding import HeldBack
from chatclient.advisors.questions import RETRIEVED
from chatclient.advisors.tool_calling import (
    RESUME,
    TOOL_EXECUTIONS,
    TOOL_MESSAGES,
    wants_both,
)
from chatclient.chain import MEMORY_ORDER, ChatClientRequest, ChatClientResponse, Next, name_of
from chatclient.checks import check_callable, check_number, check_word
from chatclient.errors import EntityError, GuardrailError, UsageError, WrongTypeError
from chatclient.events import TextDelta
from chatclient.exchange import as_said
from chatclient.messages import Message, UserMessage, last_user_message
from chatclient.moderation import ModerationModel
from chatclient.operations import ClientCall
from chatclient.prompt import Prompt, is_blank
from chatclient.response import NO_USAGE, ChatResponse
from chatclient.runtime import Runtime
from chatclient.structured.converters import converter_of
from chatclient.structured.output import read_answer
from chatclient.turn_taking import CORRECTION, corrected, present_turn

INPUT_GUARDRAIL_ORDER = MEMORY_ORDER - 50
"""Where input guardrails stand by default: outside memory, which never sees what they refuse."""

OUTPUT_GUARDRAIL_ORDER = MEMORY_ORDER + 40
"""Where output guardrails stand by default: inside memory, which only sees what they let pass, and
outside of the tool loop, so that they judge answers and not the steps towards them."""


Outcome = Literal["success", "failure", "fatal", "retry", "reprompt"]
"""What a guardrail may say."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """What a guardrail says; made by one of the methods.

    Attributes:
        outcome: Which of them.
        message: Why, for whoever reads the error.
        text: What to go on with: the rewritten text, or the words to ask again with.

    Raises:
        UsageError: *outcome* is not a known value.
    """

    outcome: Outcome
    message: str = ""
    text: str | None = None

    def __post_init__(self) -> None:
        check_word("a guardrail's outcome", self.outcome, Outcome)

    @classmethod
    def success(cls, text: str | None = None) -> "GuardrailResult":
        """Let it pass, as *text* if that is given."""
        return cls("success", text=text)

    @classmethod
    def failure(cls, message: str) -> "GuardrailResult":
        """Refuse it, but let the other guardrails have their say first."""
        return cls("failure", message)

    @classmethod
    def fatal(cls, message: str) -> "GuardrailResult":
        """Refuse it at once."""
        return cls("fatal", message)

    @classmethod
    def retry(cls, message: str) -> "GuardrailResult":
        """Ask the model for its answer once more, from the same results of tools (output only)."""
        return cls("retry", message)

    @classmethod
    def reprompt(cls, message: str, prompt: str) -> "GuardrailResult":
        """Show the model its answer, and ask again with the words of *prompt* (output only)."""
        return cls("reprompt", message, prompt)


Judgement = GuardrailResult | None | Awaitable[GuardrailResult | None]
"""What a guardrail returns, plain or async; None lets pass."""

InputGuardrail = Callable[[ChatClientRequest], Judgement]
"""Looks at a request and returns a `GuardrailResult`, or None for success; plain or async."""

OutputGuardrail = (
    Callable[[ChatResponse], Judgement] | Callable[[ChatResponse, ChatClientRequest], Judgement]
)
"""Looks at a response and returns a `GuardrailResult`, or None for success; plain or async.

It may ask for the request as well. The context of that is what advisors found out for the answer:
the documents that it rests on (`SOURCES`), the tools that were run."""

_PASSED = GuardrailResult("success")

# What is not done again for another answer: the loop goes on from what its tools have said.
_DONE = (TOOL_EXECUTIONS, TOOL_MESSAGES, RETRIEVED)


class InputGuardrailAdvisor:
    """Lets a request pass only when all guardrails agree; they may rewrite the user's text.

    They are asked in order, each seeing what the ones before it have rewritten. Nothing of a
    refused request reaches the model, or a memory at its default place.

    Args:
        *guardrails: What to ask.
        order: Where the advisor stands in the chain.

    Raises:
        UsageError: There is no guardrail, or one of them cannot be called.
    """

    name = "InputGuardrailAdvisor"

    def __init__(self, *guardrails: InputGuardrail, order: int = INPUT_GUARDRAIL_ORDER) -> None:
        _check(guardrails)
        self.guardrails = guardrails
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the request as the guardrails leave it.

        Raises:
            GuardrailError: One of them refused it.
            UsageError: One of them left nothing of it.
        """
        failures = _Failures()
        judged = as_said(request)  # that of a turn that goes on is what advisors have made of it
        for guardrail in self.guardrails:
            result = await _ask(guardrail, request.runtime, judged)
            if result.outcome in ("retry", "reprompt"):
                msg = (
                    f"input guardrail {name_of(guardrail)!r} asks for another answer, but there is"
                    " none yet"
                )
                raise UsageError(msg)
            if failures.add(guardrail, result):
                break
            if result.text is not None:
                judged = _rewritten(judged, result.text, guardrail)
        failures.raise_if_any(None)
        if RESUME in request.context:
            return await call_next(request)
        if judged is not request:
            _note(request, judged)
        return await call_next(judged)


def _rewritten(
    request: ChatClientRequest, text: str, guardrail: InputGuardrail
) -> ChatClientRequest:
    prompt = request.prompt.augment_user_message(text)
    said = last_user_message(prompt.messages)
    if said is not None and is_blank(said):
        msg = (
            f"input guardrail {name_of(guardrail)!r} leaves nothing of what the user says; to"
            " refuse a request, return GuardrailResult.failure(...)"
        )
        raise UsageError(msg)
    return request.mutate(prompt=prompt)


def _note(request: ChatClientRequest, judged: ChatClientRequest) -> None:
    """Have the trail and the turn's messages show what the user says as guardrails let it pass."""
    steps = request.runtime.steps
    after = last_user_message(judged.prompt.messages)
    if steps and isinstance(call := steps[0].operation, ClientCall) and after is not None:
        before = _own_words(call.asked, request.prompt.messages)
        call.asked = tuple(after if message is before else message for message in call.asked)


def _own_words(asked: Sequence[Message], shown: Sequence[Message]) -> Message | None:
    """Return the one of the messages *asked* that is judged, or None.

    Judged is the user's last message that is *shown*. If it was not asked, an advisor further out
    has put it in the place of one that is shown no more, which is returned, or has added it; or
    the user has said it meanwhile.
    """
    judged = last_user_message(shown)
    if any(message is judged for message in asked):
        return judged
    turn = takewhile(lambda m: isinstance(m, UserMessage), shown[present_turn(shown) :])
    if not any(m is judged and CORRECTION not in m.metadata for m in turn):
        return None
    present = {id(message) for message in shown}
    return last_user_message([message for message in asked if id(message) not in present])


class OutputGuardrailAdvisor:
    """Lets an answer pass only when all guardrails agree; they may rewrite it, or ask for another.

    They are asked in order, each seeing what the ones before it have rewritten. A new answer is
    judged by all of them from the first. The model is shown what tools have said already, and may
    call more of them.

    Memory at its default place sees the first question and the answer that passed. In a stream,
    what the model says is held back until it passed.

    Args:
        *guardrails: What to ask.
        max_retries: How often another answer may be asked for.
        order: Where the advisor stands in the chain.

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
        _check(guardrails)
        check_number("max_retries", max_retries)
        self.guardrails = guardrails
        self._want_request = tuple(map(wants_both, guardrails))
        self.max_retries = max_retries
        self.order = order

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the first response that passes.

        Raises:
            GuardrailError: One was refused, or too many were asked for.
        """
        usage, sent, left = NO_USAGE, request, self.max_retries
        while True:
            held = HeldBack(request.runtime)
            streaming = request.runtime.streaming
            response = await call_next(sent.mutate(runtime=held.runtime) if streaming else sent)
            usage += response.chat_response.usage
            response = response.mutate(chat_response=response.chat_response.with_usage(usage))
            verdict = await self._judge(response, sent)
            if isinstance(verdict, ChatResponse):
                return await _release(response, verdict, held, request.runtime)
            await held.release(words=False)
            guardrail, result = verdict
            if not left:
                raise _exhausted(guardrail, result, self.max_retries, response.chat_response)
            sent, left = _again(sent, response, result.text), left - 1

    async def _judge(
        self, response: ChatClientResponse, sent: ChatClientRequest
    ) -> ChatResponse | tuple[OutputGuardrail, GuardrailResult]:
        """Return the answer as it passed, or the guardrail that wants another one, and why."""
        answer = response.chat_response
        if answer.has_tool_calls() or answer.finish_reason == "return_direct":
            return answer  # no answer of the model's own
        failures = _Failures()
        for guardrail, wants_request in zip(self.guardrails, self._want_request, strict=True):
            more = [sent.mutate(context=response.context)] if wants_request else []
            result = await _ask(guardrail, sent.runtime, answer, *more)
            if result.outcome in ("retry", "reprompt"):
                return guardrail, result
            if failures.add(guardrail, result):
                break
            if result.text is not None:
                answer = answer.with_text(result.text)
        failures.raise_if_any(answer)
        return answer


def _check(guardrails: tuple[object, ...]) -> None:
    if not guardrails:
        msg = "without guardrails everything would pass; give at least one"
        raise UsageError(msg)
    for guardrail in guardrails:
        check_callable("a guardrail", guardrail, "give several one by one: Advisor(first, second)")


class _Failures:
    """Gathers what guardrails have against something."""

    def __init__(self) -> None:
        self._said: list[tuple[str, str]] = []

    def add(self, guardrail: Callable[..., Any], result: GuardrailResult) -> bool:
        """Take a result, and return whether nobody else needs to be asked."""
        if result.outcome in ("failure", "fatal"):
            self._said.append((name_of(guardrail), result.message))
        return result.outcome == "fatal"

    def raise_if_any(self, response: ChatResponse | None) -> None:
        if self._said:
            told = ", ".join(f"{name}: {message}" for name, message in self._said)
            raise GuardrailError(
                f"refused by {told}",
                guardrail=self._said[-1][0],
                messages=[message for _, message in self._said],
                response=response,
            )


async def _ask(guardrail: Callable[..., Any], runtime: Runtime, *about: Any) -> GuardrailResult:
    result = await runtime.invoke(guardrail, *about)
    if result is None:
        return _PASSED
    if not isinstance(result, GuardrailResult):
        name = name_of(guardrail)
        msg = (
            f"guardrail {name!r} returned {result!r}, which is not a GuardrailResult; return"
            " GuardrailResult.success(), or .failure(message)"
        )
        raise WrongTypeError(msg)
    return result


async def _release(
    response: ChatClientResponse, answer: ChatResponse, held: HeldBack, runtime: Runtime
) -> ChatClientResponse:
    rewritten = answer.text != response.chat_response.text
    await held.release(words=not rewritten)
    if rewritten:
        await runtime.emit(TextDelta(answer.text))
    return response.mutate(chat_response=answer)


def _again(
    sent: ChatClientRequest, response: ChatClientResponse, text: str | None
) -> ChatClientRequest:
    """Return the request for another answer, from what the tools have said for this one.

    With *text*, the model is shown its answer, and asked with that.
    """
    context = {key: response.context[key] for key in _DONE if key in response.context}
    if sent.context.get(CACHE_RESPONSES) is not False:
        context[CACHE_RESPONSES] = REFRESH
    before = sent.context.get(TOOL_MESSAGES, ())
    tools = context.get(TOOL_MESSAGES, ())
    # What was shown before may have been undone since.
    present = {id(old): new for old, new in zip(before, tools, strict=False)}
    messages: list[Message] = [present.get(id(m), m) for m in sent.prompt.messages]
    messages += tools[len(before) :]
    shown = tuple(messages)
    if text is not None:
        shown = corrected(shown, response.chat_response.output, text)
    return sent.mutate(prompt=Prompt.of(shown, sent.prompt.options), context=context)


def _exhausted(
    guardrail: OutputGuardrail, result: GuardrailResult, retries: int, answer: ChatResponse
) -> GuardrailError:
    name = name_of(guardrail)
    msg = f"{name} still refuses the answer after {retries} retries: {result.message}"
    return GuardrailError(msg, guardrail=name, messages=[result.message], response=answer)


# --- guardrails that come with the library --------------------------------------------------

# After OWASP's cheat sheet on prompt injection: a first line of defence, and no more than that.
_INJECTIONS = re.compile(
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

    Patterns find the clumsy attempts only.
    """
    message = request.prompt.user_message
    if message is not None and _INJECTIONS.search(message.text):
        return GuardrailResult.fatal("the text looks like a prompt injection")
    return GuardrailResult.success()


def json_guardrail(kind: Any = dict[str, Any]) -> OutputGuardrail:
    """Return an output guardrail that asks again until the answer is JSON of a type."""
    converter = converter_of(kind)

    def json_answer(answer: ChatResponse) -> GuardrailResult:
        try:
            read_answer(answer, converter)
        except EntityError as error:
            told = "\n".join(f"- {line}" for line in error.errors)
            prompt = f"That is not what was asked for:\n{told}\n{converter.format}"
            return GuardrailResult.reprompt("the answer is not the JSON asked for", prompt)
        return GuardrailResult.success()

    return json_answer


def moderated_input(model: ModerationModel) -> InputGuardrail:
    """Return an input guardrail that refuses what a moderation model flags of what the user says.

    The error names the categories.
    """

    def moderated(request: ChatClientRequest) -> GuardrailResult:
        message = request.prompt.user_message
        return _moderated(model, "" if message is None else message.text)

    return moderated


def moderated_output(model: ModerationModel) -> OutputGuardrail:
    """Return an output guardrail that refuses what a moderation model flags of an answer."""

    def moderated(answer: ChatResponse) -> GuardrailResult:
        return _moderated(model, answer.text)

    return moderated


def _moderated(model: ModerationModel, text: str) -> GuardrailResult:
    if text.strip():
        verdict = model.moderate(text)
        if verdict.flagged:
            return GuardrailResult.fatal(f"flagged for {', '.join(verdict.categories)}")
    return GuardrailResult.success()

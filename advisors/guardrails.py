"""Checks what goes to the model and what comes back, and may ask for something better."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from chatclient.advisors.caching import CACHE_RESPONSES, REFRESH
from chatclient.advisors.guardrail_result import (
    GuardrailResult,
    InputGuardrail,
    Judgement,
    Outcome,
    OutputGuardrail,
)
from chatclient.advisors.holding import HeldBack
from chatclient.advisors.questions import RETRIEVED
from chatclient.advisors.ready_guardrails import (
    json_guardrail,
    moderated_input,
    moderated_output,
    refuse_prompt_injection,
)
from chatclient.advisors.tool_calling import (
    RESUME,
    TOOL_EXECUTIONS,
    TOOL_MESSAGES,
)
from chatclient.chain import MEMORY_ORDER, ChatClientRequest, ChatClientResponse, Next, name_of
from chatclient.checks import check_callable, check_number, wants_both
from chatclient.errors import GuardrailError, UsageError, WrongTypeError
from chatclient.events import TextDelta
from chatclient.exchange import as_said
from chatclient.messages import Message, UserMessage, last_user_message
from chatclient.operations import ClientCall
from chatclient.prompt import Prompt, is_blank
from chatclient.response import NO_USAGE, ChatResponse
from chatclient.runtime import Runtime
from chatclient.turn_taking import CORRECTION, corrected, present_turn

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
"""Where input guardrails stand by default: outside memory, which never sees what they refuse."""

OUTPUT_GUARDRAIL_ORDER = MEMORY_ORDER + 40
"""Where output guardrails stand by default: inside memory, which only sees what they let pass, and
outside of the tool loop, so that they judge answers and not the steps towards them."""

_PASSED = GuardrailResult("success")

# What a request for another answer takes over from the answer before, so that nothing of it is done
# twice: no tool is run again, and no document looked for.
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
        # Guardrails judge the user's words. A turn that goes on has what advisors made of them.
        judged = as_said(request)
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
    """Let the trail and the turn's messages show the user's words as guardrails left them."""
    steps = request.runtime.steps
    after = last_user_message(judged.prompt.messages)
    if steps and isinstance(call := steps[0].operation, ClientCall) and after is not None:
        before = _own_words(call.asked, request.prompt.messages)
        call.asked = tuple(after if message is before else message for message in call.asked)


def _own_words(asked: Sequence[Message], shown: Sequence[Message]) -> Message | None:
    """Return which of the messages *asked* the guardrails have judged, or None for none of them.

    They judge the user's last message that is *shown*. If that is not among those asked, either an
    advisor further out has rewritten one of them, which is no longer shown: that one is returned.
    Or it is new: an advisor has added it, or the user has said it meanwhile.
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
    """Return the request for another answer, which goes on from what tools have said for this one.

    With a *text*, the model is also shown its answer, and then asked with that text.
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

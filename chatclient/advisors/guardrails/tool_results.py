"""`ToolGuardrailInterceptor`: checks results of tools before the model sees them."""

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from chatclient._internal.checks import names, wants_both
from chatclient._internal.frozen import merged
from chatclient._internal.text import error_text, readable_text
from chatclient.advisors.guardrails.advisors import (
    INJECTIONS,
    Failures,
    GuardrailResult,
    Judgement,
    check_guardrails,
    judgement_of,
)
from chatclient.chain.chain import name_of
from chatclient.chat.pending_turn import ApprovalRequired
from chatclient.chat.tool import GUARDRAIL, ToolResult
from chatclient.errors import ToolError, ToolExecutionError, ToolUsageError, UsageError
from chatclient.tools.execution.approval import NextTool, ToolInvocation

ToolGuardrail = (
    Callable[[ToolResult], Judgement] | Callable[[ToolResult, ToolInvocation], Judgement]
)
"""Checks the result of a tool and returns a `GuardrailResult`, or None for success; plain or async.

It may take the call as a second argument."""


class ToolGuardrailInterceptor:
    """Passes the results of tools on to the model only if all guardrails accept them.

    A tool interceptor, best the first one. Guardrails are called in order, each with the text as
    the previous ones have rewritten it. A refused result is a failure of the call: the model is
    told, or the turn ends, as the `ToolFailurePolicy` decides. Messages of exceptions of tools are
    checked as well. The record of the call keeps the value that the tool returned, and the names of
    the guardrails that rewrote it, in the metadata of the response.

    Args:
        *guardrails: The guardrails.
        tools: The names of the tools whose results are checked; default: all.

    Raises:
        UsageError: There is no guardrail, or one of them cannot be called.
    """

    def __init__(self, *guardrails: ToolGuardrail, tools: Collection[str] | None = None) -> None:
        check_guardrails(guardrails, ("result", "invocation"))
        self.guardrails = guardrails
        self.tools = None if tools is None else names(tools)
        self._want_invocation = tuple(map(wants_both, guardrails))

    async def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
        """Return the result of the tool, perhaps with another text.

        Raises:
            GuardrailError: A guardrail refused the result; it is the `response` of the error.
            ToolError: The tool failed, and guardrails rewrote the message.
        """
        if self.tools is not None and invocation.tool_call.name not in self.tools:
            return await call_next(invocation)
        try:
            result = await call_next(invocation)
        except (ApprovalRequired, ToolExecutionError, UsageError):
            raise  # not what a tool says
        except Exception as error:
            failed = ToolResult(error_text(error), is_error=True)
            judged = await self._judged(failed, invocation)
            if judged is failed:
                raise
            raise ToolError(judged.text, metadata=judged.metadata) from error
        return await self._judged(result, invocation)

    async def _judged(self, result: ToolResult, invocation: ToolInvocation) -> ToolResult:
        """Return *result* as the guardrails rewrote it; the same object if they did not."""
        failures, judged, rewritten_by = Failures(), result, list[str]()
        for guardrail, wants_invocation in zip(self.guardrails, self._want_invocation, strict=True):
            call = [invocation] if wants_invocation else []
            verdict = await judgement_of(guardrail, invocation.context.runtime, judged, *call)
            if verdict.outcome in ("retry", "reprompt"):
                msg = (
                    f"tool guardrail {name_of(guardrail)!r} asks for another answer, but only a"
                    " model can be asked again"
                )
                raise ToolUsageError(msg)
            if failures.add(guardrail, verdict):
                break
            if verdict.text is not None and verdict.text != judged.text:
                rewritten_by.append(name_of(guardrail))
                judged = replace(judged, text=verdict.text)
        failures.raise_if_any(result)
        if not rewritten_by:
            return result
        metadata = merged(judged.metadata, {GUARDRAIL: rewritten_by})
        return replace(judged, metadata=metadata)


# Like those of users, and what only makes sense in a text that was written for a model.
_INJECTED = re.compile(
    r"""
      ^[^\w\n]{0,20}(?:system|assistant|developer)(?:\s+(?:message|prompt|note|override))?\s*[\])>]?\s*:
        .{0,60}\b(?:you|must|should|always|never|now|instructions?)\b
    | <\|?/?(?:system|im[ _]start|im[ _]end|assistant)\|?> | \[/?INST\] | <</?SYS>>
    | \b(?:new|updated|real|actual|hidden)\s+(?:instruction|directive|order|task)s?
        \s*(?:for\s+(?:you|the\s+\w+))?\s*:
    | \b(?:as|for|to|dear|hey|attention|any|every)\s+(?:the\s+|an?\s+|any\s+|all\s+|every\s+)?
        (?:(?:ai|llm|language)\s+)?(?:assistants?|agents?|models?|llms?|chatbots?|bots?|ai)\b
        (?:\s+(?:that|who|which)\s+reads?\b.{0,20})?\s*[,:]
    | \b(?:ai|llm)\s+(?:assistant|agent|model)s?\s*[,:]
    | \b(?:do\s+not|don.?t|never|without)\s+
        (?:tell|inform|notify|mention|alert)\w*\b.{0,30}\buser\b
    | \b(?:decode|decrypt)\s+(?:this|it)?\s*and\s+(?:follow|execute|obey|do)\b
    | \bignor\w*\b.{0,40}\b(?:anweisung|vorgabe|befehl)\w*
    | \bignor\w*\b.{0,40}\b(?:instructions|consignes)\s+pr[ée]c[ée]dentes
    | \b(?:ignor|olvid|descart|esque[çc])\w*\b.{0,40}\b(?:instruc|instru[çc])\w*
    | \bignor\w*\b.{0,40}\bistruzion\w*
    | \b(?:игнорируй|забудь)\w*\b.{0,40}\b(?:инструкци|указани)\w*
    | (?:忽略|无视|忘记).{0,12}(?:指令|指示|提示) | 指示.{0,8}無視 | 지시.{0,8}무시
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)


def refuse_injected_instructions(result: ToolResult) -> GuardrailResult:
    """Refuse a tool's result that seems to contain instructions to the model.

    Patterns find known wordings only, also if they are disguised by encodings or lookalikes. Texts
    about such instructions are refused as well.
    """
    text = readable_text(result.text).replace("_", " ")
    if INJECTIONS.search(text) or _INJECTED.search(text):
        return GuardrailResult.fatal("the result seems to contain instructions to the model")
    return GuardrailResult.success()


_PERSONAL = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}\b"),
    "iban": re.compile(r"\b[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?\b"),
    "card": re.compile(r"(?<![\d.-])\d(?:[ -]?\d){12,18}(?![\d-])"),
    "phone": re.compile(r"(?<![\w+])(?:\+|00)\d(?:[ ()/.-]{0,2}\d){6,14}\b"),
}


def mask_personal_data(result: ToolResult) -> GuardrailResult:
    """Replace e-mail addresses, IBANs, card numbers and international phone numbers in a result.

    Each is replaced by its kind, such as `[email]`. IBANs and card numbers need valid check digits.
    Names and addresses are not found; that takes a model.
    """
    text = result.text
    for kind, pattern in _PERSONAL.items():
        text = pattern.sub(partial(_masked, kind), text)
    return GuardrailResult.success(None if text == result.text else text)


def _masked(kind: str, found: re.Match[str]) -> str:
    """Return `[kind]`, or the text that was found if its check digits are wrong."""
    text = found[0]
    bare = re.sub(r"[ -]", "", text)
    if kind == "iban":
        number = "".join(str(int(char, 36)) for char in bare[4:] + bare[:4])
        valid = int(number) % 97 == 1
    elif kind == "card":  # the algorithm of Luhn
        doubled = [int(digit) * (1 + at % 2) for at, digit in enumerate(reversed(bare))]
        valid = sum(each - 9 * (each > 9) for each in doubled) % 10 == 0  # noqa: PLR2004
    else:
        valid = True
    return f"[{kind}]" if valid else text

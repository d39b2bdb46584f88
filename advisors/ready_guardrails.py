"""The guardrails that come with the library."""

import re
from itertools import dropwhile, takewhile
from typing import Any

from chatclient.advisors.guardrail_result import GuardrailResult, InputGuardrail, OutputGuardrail
from chatclient.chain import ChatClientRequest
from chatclient.errors import EntityError
from chatclient.messages import AssistantMessage, UserMessage
from chatclient.moderation import ModerationModel
from chatclient.response import ChatResponse
from chatclient.structured.converters import converter_of
from chatclient.structured.output import read_answer

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
    if _INJECTIONS.search(_said_last(request)):
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
        return _moderated(model, _said_last(request))

    return moderated


def moderated_output(model: ModerationModel) -> OutputGuardrail:
    """Return an output guardrail that refuses what a moderation model flags of an answer."""

    def moderated(answer: ChatResponse) -> GuardrailResult:
        return _moderated(model, "\n".join(each.output.text for each in answer.generations))

    return moderated


def _said_last(request: ChatClientRequest) -> str:
    """Return what the user has said last, in as many messages as that took."""
    back = reversed(request.prompt.messages)
    until_user = dropwhile(lambda m: not isinstance(m, UserMessage), back)
    said = list(takewhile(lambda m: not isinstance(m, AssistantMessage), until_user))
    return "\n".join(m.text for m in reversed(said) if isinstance(m, UserMessage))


def _moderated(model: ModerationModel, text: str) -> GuardrailResult:
    if text.strip():
        verdict = model.moderate(text)
        if verdict.flagged:
            return GuardrailResult.fatal(f"flagged for {', '.join(verdict.categories)}")
    return GuardrailResult.success()

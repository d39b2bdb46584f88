"""Built-in guardrails: prompt injection, JSON answers, and moderation models."""

import re
from itertools import dropwhile, takewhile
from typing import Any

from chatclient.advisors.guardrails.result import GuardrailResult, InputGuardrail, OutputGuardrail
from chatclient.chain.chain import ChatClientRequest
from chatclient.chat.messages import AssistantMessage, UserMessage
from chatclient.chat.moderation import ModerationModel
from chatclient.chat.response import ChatResponse
from chatclient.errors import EntityError
from chatclient.structured.converters import converter_of
from chatclient.structured.output import read_answer

# Based on OWASP's cheat sheet on prompt injection; only a first line of defence.
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

    Patterns find simple attempts only.
    """
    if _INJECTIONS.search(last_user_text(request)):
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

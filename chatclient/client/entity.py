"""Prepares a request for an answer of a given type."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chatclient._internal.frozen import merged
from chatclient.advisors.structured_output import (
    StructuredOutputAdvisor,
    StructuredOutputValidationAdvisor,
)
from chatclient.chain.chain import Advisor
from chatclient.chat.model import ChatModel
from chatclient.chat.prompt import Prompt
from chatclient.client.request_settings import RequestSettings
from chatclient.structured.output import (
    NATIVE_STRUCTURED_OUTPUT,
    STRUCTURED_OUTPUT,
    StructuredOutput,
)

# Stateless, so all clients share them.
_FORMAT = StructuredOutputAdvisor()
_VALIDATION = StructuredOutputValidationAdvisor()


def with_output_advisors(settings: RequestSettings, *, validate: bool) -> RequestSettings:
    """Return *settings* with the advisor that requests the format, and one for validation."""
    more: list[Advisor] = [_FORMAT]
    kind = StructuredOutputValidationAdvisor
    if validate and not any(isinstance(advisor, kind) for advisor in settings.advisors):
        more.append(_VALIDATION)
    return replace(settings, advisors=(*settings.advisors, *more))


def prompt_for_entity(
    output: StructuredOutput[Any], prompt: Prompt, context: Mapping[str, Any], model: ChatModel
) -> tuple[Prompt, Mapping[str, Any]]:
    """Return *prompt* and *context* with the options and the context entry for *output*."""
    native = context.get(NATIVE_STRUCTURED_OUTPUT)
    output, options = output.for_request(model, prompt.messages, prompt.options, native)
    return prompt.with_options(options), merged(context, {STRUCTURED_OUTPUT: output})

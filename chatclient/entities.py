"""Makes a request one for an entity."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chatclient.advisors.structured_output import (
    StructuredOutputAdvisor,
    StructuredOutputValidationAdvisor,
)
from chatclient.chain import Advisor
from chatclient.model import ChatModel
from chatclient.prompt import Prompt
from chatclient.spec import RequestSpec
from chatclient.structured import NATIVE_STRUCTURED_OUTPUT, StructuredOutput
from chatclient.structured.output import STRUCTURED_OUTPUT
from chatclient.values import merged

# They know nothing of single requests, so one of each serves all clients.
_FORMAT = StructuredOutputAdvisor()
_VALIDATION = StructuredOutputValidationAdvisor()


def with_output_advisors(spec: RequestSpec, *, validate: bool) -> RequestSpec:
    """Return *spec* with what asks for its entity, and for a better one if that is wanted."""
    more: list[Advisor] = [_FORMAT]
    if validate and not any(getattr(a, "validates_output", False) for a in spec.advisors):
        more.append(_VALIDATION)
    return replace(spec, advisors=(*spec.advisors, *more))


def prompt_for_entity(
    output: StructuredOutput[Any], prompt: Prompt, context: Mapping[str, Any], model: ChatModel
) -> tuple[Prompt, Mapping[str, Any]]:
    """Return prompt and context of a request for an entity."""
    native = context.get(NATIVE_STRUCTURED_OUTPUT)
    output, options = output.for_request(model, prompt.messages, prompt.options, native)
    return prompt.with_options(options), merged(context, {STRUCTURED_OUTPUT: output})

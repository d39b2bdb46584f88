"""Differences between servers of the Chat Completions API."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from chatclient._internal.frozen import EMPTY
from chatclient.providers.openai.efforts import COMPATIBLE_EFFORT, SAMPLING, openai_effort
from chatclient.providers.wire.common_options import Encode
from chatclient.providers.wire.sendable_schemas import (
    COMPATIBLE_RULES,
    OPENAI_RULES,
    SchemaRules,
)

SystemRole = Literal["system", "developer", "user"]

REASONING_FIELD = "reasoning_field"
"""Key in a message's metadata: the field in which its reasoning was received."""


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """Differences of a server's Chat Completions from OpenAI's.

    Attributes:
        provider: The provider's name, in errors and `ProviderPart`.
        max_tokens: Name of the field for the maximum output tokens.
        seed: Name of the field for the seed.
        unsupported: Common options that the server does not have.
        reasoning: Encodes the option `reasoning`.
        sampling: Encoders of other common options that depend on the model.
        user_id: Name of the field for the end user.
        system_role: Role of system messages.
        usage_in_stream: Whether usage has to be requested for streams.
        reasoning_field: Field in which earlier reasoning is sent back; `received` for the field in
            which it was received, `content` for content parts.
        needs_reasoning: Whether the reasoning field is required in each assistant message, empty
            if there was no reasoning.
        resent_fields: Other fields of an answer to send back.
        inline_types: The only images and sounds that the server takes as content; None: unknown.
        document_field: Type of document parts: `file`, or Mistral's `document_url`.
        documents_by_url: Whether documents may be sent as URLs.
        video_field: Type of video parts; None to send videos like documents.
        call_id_length: Required length of tool call ids (letters and digits), if fixed.
        max_call_id_length: Maximum length of tool call ids; those of other servers may be longer.
        takes_cache_control: Whether messages may contain prompt-cache breakpoints.
        parses_arguments: Whether arguments of earlier tool calls have to be JSON objects.
        output_schema: When the server enforces an output schema.
        forces_calls: Whether a tool call can be forced.
        user_after_tool: Whether a user message may directly follow tool results.
        one_system_message: Whether leading system messages have to be merged.
        names_tools: Whether tool results need the name of their tool.
        think_tags: Whether text may begin with reasoning in `<think>` or `<mm:think>` tags.
        tool_schemas: The server's rules for tool schemas.
        logprobs: Whether the server is known to report log probabilities.
        key_header: Header of the key; `Bearer` precedes it in `authorization` only.
    """

    provider: str = "openai"
    max_tokens: str = "max_completion_tokens"
    seed: str = "seed"
    unsupported: frozenset[str] = frozenset()
    reasoning: Encode = COMPATIBLE_EFFORT
    sampling: Mapping[str, Encode] = EMPTY
    user_id: str = "user"
    system_role: SystemRole = "system"
    usage_in_stream: bool = True
    reasoning_field: str | None = None
    needs_reasoning: bool = False
    resent_fields: frozenset[str] = frozenset({"refusal", "audio", "name"})
    inline_types: frozenset[str] | None = None
    document_field: str = "file"
    documents_by_url: bool = False
    video_field: str | None = None
    call_id_length: int | None = None
    max_call_id_length: int | None = None
    takes_cache_control: bool = False
    parses_arguments: bool = False
    output_schema: Literal["always", "without_tools", "never"] = "always"
    forces_calls: bool = True
    user_after_tool: bool = True
    one_system_message: bool = False
    names_tools: bool = False
    think_tags: bool = False
    tool_schemas: SchemaRules = OPENAI_RULES
    logprobs: bool = False
    key_header: str = "authorization"


# developers.openai.com/api/docs/guides/images-vision, and `input_audio` in the API's reference
IMAGES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
_SOUNDS = frozenset(
    {f"audio/{name}" for name in ("wav", "x-wav", "wave", "vnd.wave", "mpeg", "mp3")}
)

OPENAI = Dialect(
    max_call_id_length=40,
    inline_types=IMAGES | _SOUNDS,
    unsupported=frozenset({"top_k"}),
    reasoning=openai_effort("reasoning_effort"),
    sampling=SAMPLING,
    user_id="safety_identifier",
    logprobs=True,
)
COMPATIBLE = Dialect(
    provider="openai-compatible",
    max_tokens="max_tokens",
    reasoning_field="received",
    resent_fields=frozenset({"reasoning_details", "thinking_blocks", "extra_content", "name"}),
    documents_by_url=True,
    video_field="video_url",
    takes_cache_control=True,
    parses_arguments=True,
    # The chat templates of many models, such as Qwen's, reject a second system message.
    one_system_message=True,
    tool_schemas=COMPATIBLE_RULES,
)
"""Default for servers without a preset."""


def with_think_tags(dialect: Dialect, *, enabled: bool | None) -> Dialect:
    """Return *dialect* with `think_tags` set to *enabled*; None leaves it as it is."""
    return dialect if enabled is None else replace(dialect, think_tags=enabled)


@lru_cache(maxsize=64)
def with_system_role(dialect: Dialect, role: SystemRole) -> Dialect:
    """Return *dialect* with another role for system messages; cached, so identities are stable."""
    return dialect if dialect.system_role == role else replace(dialect, system_role=role)

"""In what the many servers of Chat Completions differ."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

SystemRole = Literal["system", "developer", "user"]

REASONING_FIELD = "reasoning_field"
"""In a message's metadata: in which field its reasoning came."""


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """In what a server's Chat Completions differ from OpenAI's.

    Attributes:
        provider: What the server is called in errors and in the parts only it understands.
        max_tokens: The field that bounds the output.
        seed: The field for repeatable sampling.
        lacks: Common options that the server does not have, and would refuse: they are not sent.
        system_role: Who speaks a system message.
        usage_in_stream: Whether usage at a stream's end has to be asked for.
        reasoning_field: The field of a message in which the server wants its earlier reasoning
            back; `received` for the one it came in, `content` for parts of the content.
        needs_reasoning: Whether the field of a fixed name must not be missing, even where there was
            no reasoning, as in what another model has said: it is empty then.
        replayed: What else of an answer the server takes back, field by field.
        document_field: How a document is sent: `file`, or Mistral's `document_url`.
        documents_by_url: Whether a document may be sent by its URL.
        video_field: How a video is sent; None for like a document.
        call_id_length: How long ids of tool calls have to be (letters and digits only), if fixed.
        longest_call_id: How long ids of tool calls may be, if that is bounded; conversations
            that began with another server may have longer ones.
        takes_marks: Whether messages may be marked as the end of what is cached.
        parses_arguments: Whether earlier tool calls' arguments have to be JSON objects.
        output_schema: When the server holds its models to a schema.
        forces_calls: Whether its models can be made to call a tool.
        user_after_tool: Whether a user's message may follow tool results at once.
        one_system_message: Whether system messages at the beginning are sent as one.
    """

    provider: str = "openai"
    max_tokens: str = "max_completion_tokens"
    seed: str = "seed"
    lacks: frozenset[str] = frozenset()
    system_role: SystemRole = "system"
    usage_in_stream: bool = True
    reasoning_field: str | None = None
    needs_reasoning: bool = False
    replayed: frozenset[str] = frozenset({"refusal", "audio", "name"})
    document_field: str = "file"
    documents_by_url: bool = False
    video_field: str | None = None
    call_id_length: int | None = None
    longest_call_id: int | None = None
    takes_marks: bool = False
    parses_arguments: bool = False
    output_schema: Literal["always", "without_tools", "never"] = "always"
    forces_calls: bool = True
    user_after_tool: bool = True
    one_system_message: bool = False


OPENAI = Dialect(longest_call_id=40, lacks=frozenset({"top_k"}))
COMPATIBLE = Dialect(
    provider="openai-compatible",
    max_tokens="max_tokens",
    reasoning_field="received",
    replayed=frozenset({"reasoning_details", "thinking_blocks", "extra_content", "name"}),
    documents_by_url=True,
    video_field="video_url",
    takes_marks=True,
    parses_arguments=True,
    # The chat templates of many models, such as Qwen's, take a single one and refuse others.
    one_system_message=True,
)
"""The common ground of servers that nothing more is known about."""


@lru_cache(maxsize=64)
def with_system_role(dialect: Dialect, role: SystemRole) -> Dialect:
    """Return *dialect* with another role for system messages, the same object every time."""
    return dialect if dialect.system_role == role else replace(dialect, system_role=role)

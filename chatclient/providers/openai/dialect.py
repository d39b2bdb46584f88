"""Differences between servers of the Chat Completions API, known servers, and reasoning."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

from chatclient._internal.frozen import EMPTY
from chatclient.chat.options import ChatOptions
from chatclient.errors import UsageError
from chatclient.providers.http.auth import Key, KeySource, key_source
from chatclient.providers.wire.common_options import Encode, encode_effort, is_off, lacking
from chatclient.providers.wire.sendable_schemas import (
    COMPATIBLE_RULES,
    OPENAI_RULES,
    SchemaRules,
)

_UP_TO_HIGH = ("low", "medium", "high")
_UP_TO_XHIGH = (*_UP_TO_HIGH, "xhigh")
_UP_TO_MAX = (*_UP_TO_XHIGH, "max")
_ALL = ("none", "minimal", *_UP_TO_MAX)

# developers.openai.com/api/docs/guides/reasoning and the pages of the models; the first match
# counts. Models without efforts do not reason.
_BY_MODEL = [
    (re.compile(rf"(?:^|[/:]){name}"), efforts)
    for name, efforts in (
        (r"(?:gpt-[34]|chatgpt|gpt-5-chat)", ()),
        (r"o\d", _UP_TO_HIGH),
        (r"gpt-5\.\d+-chat", ("medium",)),
        (r"gpt-5-pro", ("high",)),
        (r"gpt-5-codex", _UP_TO_HIGH),
        (r"gpt-5(?!\.)", ("minimal", *_UP_TO_HIGH)),
        (r"gpt-5\.1-codex-max", _UP_TO_XHIGH),
        (r"gpt-5\.1-codex", _UP_TO_HIGH),
        (r"gpt-5\.1(?!\d)", ("none", *_UP_TO_HIGH)),
        (r"gpt-5\.[2-5]-pro", ("medium", "high", "xhigh")),
        (r"gpt-5\.[2-5](?!\d)", ("none", *_UP_TO_XHIGH)),
        (r"gpt-5\.", ("none", *_UP_TO_MAX)),
        (r"gpt-6", _UP_TO_MAX),
    )
]
# These reason only on request.
_OPT_IN = re.compile(r"(?:^|[/:])gpt-5\.[1-4](?!\d)(?!.*(?:chat|pro|5\.1-codex))")

SystemRole = Literal["system", "developer", "user"]

REASONING_FIELD = "reasoning_field"
"""Key in a message's metadata: the field in which its reasoning was received."""


def efforts_of(model: str) -> tuple[str, ...] | None:
    """Return the efforts that OpenAI's *model* takes, none if it does not reason; None: unknown."""
    return next((efforts for name, efforts in _BY_MODEL if name.search(model)), None)


def reasons(options: ChatOptions) -> bool:
    """Return whether OpenAI's model in *options* is known to reason with these options."""
    model = options.model or ""
    if not efforts_of(model) or "reasoning" in options.extra or "reasoning_effort" in options.extra:
        return False
    effort = getattr(options, "reasoning_effort", None)
    if effort is None:
        effort = options.reasoning
    return _OPT_IN.search(model) is None if effort is None else not is_off(effort)


def _unless_reasoning(name: str, neutral: float) -> Encode:
    """Return the encoder of a sampling option, of which reasoning models take only *neutral*."""

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if value != neutral and reasons(options):
            return "models that reason do not take it"
        return {name: value}

    return encode


_WITHOUT_STOP = re.compile(r"(?:^|[/:])(?:o\d|gpt-5(?!\.|-chat))")


def stop(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option `stop` for OpenAI's models."""
    if _WITHOUT_STOP.search(options.model or ""):
        return "models that reason do not take it"
    return {"stop": value}


SAMPLING: Mapping[str, Encode] = {
    "temperature": _unless_reasoning("temperature", 1),
    "top_p": _unless_reasoning("top_p", 1),
    "presence_penalty": _unless_reasoning("presence_penalty", 0),
    "frequency_penalty": _unless_reasoning("frequency_penalty", 0),
    "stop": stop,
}
"""Encoders of the options that OpenAI's reasoning models do not take."""


def openai_effort(path: str) -> Encode:
    """Return the encoder for OpenAI's models, with the effort in the field *path*."""

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        offered = efforts_of(options.model or "")
        return encode_effort(value, path, _ALL if offered is None else offered)

    return encode


def effort(*offered: str, path: str = "reasoning_effort") -> Encode:
    """Return the encoder for a server whose models take the efforts *offered*."""

    def encode(value: Any, _options: ChatOptions) -> Mapping[str, Any] | str:
        return encode_effort(value, path, offered)

    return encode


COMPATIBLE_EFFORT = effort("none", *_UP_TO_HIGH)
"""The encoder for servers of which nothing else is known."""


def switch(path: str, on: Any, off: Any, efforts: Encode | None = None) -> Encode:
    """Return the encoder for a server with a switch in *path*.

    Args:
        path: The field.
        on: The field's value for models that reason.
        off: The field's value for models that do not.
        efforts: Encodes efforts, if the server takes these besides.
    """

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if is_off(value):
            return {path: off}
        if efforts is not None:
            fields = efforts(value, options)
            return fields if isinstance(fields, str) else {path: on, **fields}
        if isinstance(value, int):
            return "reasoning is on or off; there is no number of tokens"
        return {path: on}

    return encode


def or_budget(path: str, efforts: Encode) -> Encode:
    """Return the encoder for a server that takes *efforts*, or a number of tokens in *path*."""

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if isinstance(value, int) and value:
            return {path: value}
        return efforts(value, options)

    return encode


def groq_effort(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option for Groq: Qwen's reasoning is on or off, that of GPT-OSS has efforts."""
    if "qwen" in (options.model or ""):
        return _GROQ_QWEN(value, options)
    return _GROQ(value, options)


_GROQ_QWEN = switch("reasoning_effort", "default", "none")
_GROQ = effort(*_UP_TO_HIGH)

# llama.cpp and vLLM pass these to the chat template; templates of models that do not reason ignore
# them.
_ENABLED = "chat_template_kwargs.enable_thinking"
LLAMA_CPP = switch(_ENABLED, on=True, off=False)
"""The encoder for llama.cpp, which has no efforts."""


def llama_cpp(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option for llama.cpp, which takes a number of tokens but no effort."""
    if isinstance(value, int) and value:
        return {_ENABLED: True, "thinking_budget_tokens": value}
    return LLAMA_CPP(value, options)


def local(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option for models on this machine; those of the extras do not reason."""
    if "qwen2.5-coder" in (options.model or "").lower():
        return EMPTY if is_off(value) else "it does not reason"
    return llama_cpp(value, options)


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


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings for a server of the Chat Completions API.

    Attributes:
        name: The provider's name, as in `groq:llama-3.3-70b-versatile`.
        base_url: The default URL; empty if each user has another one.
        key_variable: Environment variable with the key.
        dialect: Differences from OpenAI's API.
        needs_key: Whether a key is required.
        url_variable: Environment variable with the URL, if any.
        url_path: Path to append to the URL in *url_variable*.
    """

    name: str
    base_url: str
    key_variable: str
    dialect: Dialect
    needs_key: bool = True
    url_variable: str | None = None
    url_path: str = ""

    def locate(self) -> str:
        """Return the server's URL.

        Raises:
            UsageError: There is no default, and the environment variable is not set.
        """
        given = os.environ.get(self.url_variable, "") if self.url_variable else ""
        if given:
            return given.rstrip("/").removesuffix(self.url_path) + self.url_path
        if not self.base_url:
            msg = f"{self.name} has another address for everybody: set {self.url_variable}"
            raise UsageError(f"{msg} or pass base_url=")
        return self.base_url

    def has_key(self) -> bool:
        """Return whether the environment has a key."""
        return bool(os.environ.get(self.key_variable))

    def key(self, api_key: Key = None) -> KeySource:
        """Return *api_key*, or the key in the environment.

        Raises:
            UsageError: A required key is missing.
        """
        required = self.needs_key and api_key is None
        return key_source(api_key, self.key_variable, required_by=self.name if required else "")


def _compatible(
    name: str, base_url: str, key_variable: str, *, needs_key: bool = True, **differences: Any
) -> Preset:
    """Return a preset whose dialect has these *differences* from `COMPATIBLE`."""
    dialect = replace(COMPATIBLE, provider=name, **differences)
    return Preset(name, base_url, key_variable, dialect, needs_key)


_THINKING = ("thinking", {"type": "enabled"}, {"type": "disabled"})

# Comments name the source of each difference: documentation or recorded traffic.
PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        # learn.microsoft.com/azure/foundry/openai/api-version-lifecycle: the v1 API takes a key or
        # an Entra ID token, and the deployment's name as the model.
        Preset(
            "azure",
            "",
            "AZURE_OPENAI_API_KEY",
            # The names of deployments do not tell what the models take.
            replace(OPENAI, provider="azure", sampling=EMPTY, logprobs=False),
            url_variable="AZURE_OPENAI_ENDPOINT",
            url_path="/openai/v1",
        ),
        # openrouter.ai/docs: reasoning_details and annotations are sent back unchanged; efforts up
        # to xhigh, or a number of tokens.
        _compatible(
            *("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
            resent_fields=COMPATIBLE.resent_fields | {"annotations"},
            reasoning=or_budget(
                "reasoning.max_tokens",
                effort(
                    *("none", "minimal", "low", "medium", "high", "xhigh"), path="reasoning.effort"
                ),
            ),
        ),
        # console.groq.com/docs/api-reference: max_tokens is deprecated, unknown fields rejected.
        # console.groq.com/docs/structured-outputs: no schema together with tools.
        _compatible(
            *("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
            max_tokens="max_completion_tokens",
            unsupported=frozenset({"top_k"}),
            # console.groq.com/docs/reasoning
            reasoning=groq_effort,
            output_schema="without_tools",
        ),
        # api-docs.deepseek.com/guides/thinking_mode: after tool calls, requests without the earlier
        # reasoning are rejected, even if there was none, or another model was used:
        # github.com/vercel/ai/pull/14740.
        _compatible(
            *("deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
            reasoning_field="reasoning_content",
            needs_reasoning=True,
            resent_fields=COMPATIBLE.resent_fields | {"prefix"},
            reasoning=switch(*_THINKING, effort("low", "high", "max")),
            unsupported=frozenset({"service_tier"}),
            # api-docs.deepseek.com/guides/json_mode: JSON, but no schema.
            output_schema="never",
            # Its models reason by default, and then reject `tool_choice`:
            # github.com/deepseek-ai/DeepSeek-V3/issues/1376.
            forces_calls=False,
        ),
        # docs.mistral.ai/api: unknown fields are rejected, including stream_options.
        _compatible(
            *("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
            seed="random_seed",
            unsupported=frozenset({"top_k", "service_tier", "user_id"}),
            # docs.mistral.ai/capabilities/reasoning/adjustable
            reasoning=effort("none", "high"),
            usage_in_stream=False,
            reasoning_field="content",
            resent_fields=frozenset({"prefix"}),
            document_field="document_url",
            call_id_length=9,
            # "Unexpected role 'user' after role 'tool'"
            user_after_tool=False,
        ),
        # docs.x.ai: max_tokens is deprecated.
        _compatible(
            "xai", "https://api.x.ai/v1", "XAI_API_KEY", max_tokens="max_completion_tokens"
        ),
        _compatible(
            *("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
            unsupported=frozenset({"service_tier", "user_id"}),
        ),
        # platform.moonshot.ai/docs: thinking models need their earlier reasoning; `tool_choice` may
        # not force a call; `partial` continues an answer.
        _compatible(
            *("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
            reasoning_field="reasoning_content",
            resent_fields=COMPATIBLE.resent_fields | {"partial"},
            reasoning=switch(*_THINKING),
            unsupported=frozenset({"service_tier"}),
            output_schema="never",
            forces_calls=False,
        ),
        # platform.minimax.io/docs: reasoning is in `<think>` tags of the text, or with the option
        # reasoning_split in reasoning_details; both are sent back. Errors are in `base_resp`.
        # Models always reason.
        _compatible(
            *("minimax", "https://api.minimax.io/v1", "MINIMAX_API_KEY"),
            think_tags=True,
            reasoning=lacking("its models reason as much as they choose"),
            unsupported=frozenset({"service_tier"}),
            output_schema="never",
            forces_calls=False,
        ),
        # docs.z.ai/api-reference: `tool_choice` is `auto` only; JSON, but no schema.
        _compatible(
            *("zhipu", "https://open.bigmodel.cn/api/paas/v4", "ZHIPUAI_API_KEY"),
            reasoning_field="reasoning_content",
            reasoning=switch(*_THINKING),
            user_id="user_id",
            unsupported=frozenset({"service_tier", "seed"}),
            output_schema="never",
            forces_calls=False,
        ),
        # docs.vllm.ai, reasoning outputs: the field was called reasoning_content before.
        # With a schema, the grammar does not allow tool calls.
        _compatible(
            *("vllm", "http://localhost:8000/v1", "VLLM_API_KEY"),
            needs_key=False,
            reasoning_field="reasoning",
            reasoning=switch(
                "chat_template_kwargs.enable_thinking",
                on=True,
                off=False,
                efforts=COMPATIBLE_EFFORT,
            ),
            unsupported=frozenset({"service_tier"}),
            output_schema="without_tools",
            logprobs=True,
        ),
        # lmstudio.ai/docs/developer/core/authentication; a schema is a grammar, as with vLLM.
        _compatible(
            *("lmstudio", "http://localhost:1234/v1", "LM_API_TOKEN"),
            needs_key=False,
            unsupported=frozenset({"service_tier", "user_id"}),
            output_schema="without_tools",
        ),
        # The key variable is that of the server.
        _compatible(
            *("llamacpp", "http://localhost:8080/v1", "LLAMA_API_KEY"),
            needs_key=False,
            reasoning_field="reasoning_content",
            reasoning=llama_cpp,
            unsupported=frozenset({"service_tier", "user_id"}),
            output_schema="without_tools",
            logprobs=True,
        ),
    )
}
"""The presets by name."""

# ai.google.dev/gemini-api/docs/openai: results of tools are matched by name.
_GEMINI = replace(
    COMPATIBLE,
    provider="gemini",
    names_tools=True,
    reasoning=effort("none", "minimal", "low", "medium", "high"),
)

_DIALECTS: Mapping[str, Dialect] = {
    "generativelanguage.googleapis.com": _GEMINI,
    "api.moonshot.cn": PRESETS["moonshot"].dialect,
    "api.minimaxi.com": PRESETS["minimax"].dialect,
    "api.z.ai": PRESETS["zhipu"].dialect,
    **{
        host: preset.dialect
        for preset in PRESETS.values()
        if preset.needs_key and (host := urlsplit(preset.base_url).hostname)
    },
}
_AZURE = (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com")


def dialect_at(base_url: str) -> Dialect:
    """Return the dialect of the server at *base_url*, by its host."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:  # reported when the URL is used
        return COMPATIBLE
    if host.endswith(_AZURE):
        return PRESETS["azure"].dialect
    return _DIALECTS.get(host, COMPATIBLE)

"""Known servers of the Chat Completions API: URL, key and differences from OpenAI."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from chatclient._internal.frozen import EMPTY
from chatclient.errors import UsageError
from chatclient.providers.http.auth import Key, KeySource, key_source
from chatclient.providers.openai.dialect import COMPATIBLE, OPENAI, Dialect
from chatclient.providers.openai.efforts import (
    COMPATIBLE_EFFORT,
    effort,
    groq_effort,
    llama_cpp,
    or_budget,
    switch,
)
from chatclient.providers.wire.common_options import lacking


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

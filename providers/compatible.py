"""Servers that speak Chat Completions, by name: where they are, their key, their quirks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chatclient.checks import check_kind
from chatclient.errors import UsageError
from chatclient.options import ChatOptions
from chatclient.providers.addresses import first_url
from chatclient.providers.http import RetryPolicy, Timeouts
from chatclient.providers.keys import Key, KeySource, key_source
from chatclient.providers.openai import COMPATIBLE, OPENAI, OpenAIChatModel
from chatclient.providers.openai_dialect import Dialect


@dataclass(frozen=True, slots=True)
class Preset:
    """A server of Chat Completions.

    Attributes:
        name: What to call it, as in `groq:llama-3.3-70b-versatile`.
        base_url: Where it is; empty for one that is somewhere else for everybody.
        key_variable: The environment variable that holds its key.
        dialect: In what it differs.
        needs_key: Whether it answers nobody without a key.
        url_variable: The environment variable that says where it is, if there is one.
        url_path: What to add to the address from there.
    """

    name: str
    base_url: str
    key_variable: str
    dialect: Dialect
    needs_key: bool = True
    url_variable: str | None = None
    url_path: str = ""

    def locate(self) -> str:
        """Return where the server is.

        Raises:
            UsageError: Only the user knows, and has not said.
        """
        given = os.environ.get(self.url_variable, "") if self.url_variable else ""
        if given:
            return given.rstrip("/").removesuffix(self.url_path) + self.url_path
        if not self.base_url:
            msg = f"{self.name} has another address for everybody: set {self.url_variable}"
            raise UsageError(f"{msg} or pass base_url=")
        return self.base_url

    def key(self, api_key: Key = None) -> KeySource:
        """Return the key, or what gives it: *api_key*, or the environment's.

        Raises:
            UsageError: The server wants one, and there is none.
        """
        wanted = self.needs_key and api_key is None
        return key_source(api_key, self.key_variable, wanted_by=self.name if wanted else "")


def _like(dialect: Dialect, provider: str, **quirks: Any) -> Dialect:
    return replace(dialect, provider=provider, **quirks)


# Each quirk has its source: what the service's documentation says, or what recorded traffic shows.
PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            # learn.microsoft.com/azure/foundry/openai/api-version-lifecycle: the v1 API, which
            # takes a key or an Entra ID token alike, and the deployment's name for the model.
            "azure",
            "",
            "AZURE_OPENAI_API_KEY",
            _like(OPENAI, "azure"),
            url_variable="AZURE_OPENAI_ENDPOINT",
            url_path="/openai/v1",
        ),
        Preset(
            # openrouter.ai/docs: reasoning_details and the annotations of files go back as they
            # came.
            "openrouter",
            "https://openrouter.ai/api/v1",
            "OPENROUTER_API_KEY",
            _like(COMPATIBLE, "openrouter", replayed=COMPATIBLE.replayed | {"annotations"}),
        ),
        Preset(
            # console.groq.com/docs/api-reference: max_tokens is deprecated; unknown fields are
            # refused.
            # console.groq.com/docs/structured-outputs: not together with tools.
            "groq",
            "https://api.groq.com/openai/v1",
            "GROQ_API_KEY",
            _like(
                COMPATIBLE,
                "groq",
                max_tokens="max_completion_tokens",
                lacks=frozenset({"top_k"}),
                output_schema="without_tools",
            ),
        ),
        Preset(
            # api-docs.deepseek.com/guides/thinking_mode: after tool calls, requests without the
            # earlier reasoning are refused; also where the model had none, or was another one:
            # github.com/vercel/ai/pull/14740.
            "deepseek",
            "https://api.deepseek.com",
            "DEEPSEEK_API_KEY",
            _like(
                COMPATIBLE,
                "deepseek",
                reasoning_field="reasoning_content",
                needs_reasoning=True,
                replayed=COMPATIBLE.replayed | {"prefix"},
                # api-docs.deepseek.com/guides/json_mode: JSON, but no schema.
                output_schema="never",
                # Its models think unless told otherwise, and then refuse a choice of tool:
                # github.com/deepseek-ai/DeepSeek-V3/issues/1376.
                forces_calls=False,
            ),
        ),
        Preset(
            # docs.mistral.ai/api: unknown fields are refused, stream_options among them.
            "mistral",
            "https://api.mistral.ai/v1",
            "MISTRAL_API_KEY",
            _like(
                COMPATIBLE,
                "mistral",
                seed="random_seed",
                lacks=frozenset({"top_k"}),
                usage_in_stream=False,
                reasoning_field="content",
                replayed=frozenset({"prefix"}),
                document_field="document_url",
                call_id_length=9,
                # "Unexpected role 'user' after role 'tool'"
                user_after_tool=False,
            ),
        ),
        Preset(
            # docs.x.ai: max_tokens is deprecated.
            "xai",
            "https://api.x.ai/v1",
            "XAI_API_KEY",
            _like(COMPATIBLE, "xai", max_tokens="max_completion_tokens"),
        ),
        Preset(
            "together",
            "https://api.together.xyz/v1",
            "TOGETHER_API_KEY",
            _like(COMPATIBLE, "together"),
        ),
        Preset(
            # docs.vllm.ai, reasoning outputs: the field was called reasoning_content before.
            # Its grammar for a schema leaves a model no way to call a tool.
            "vllm",
            "http://localhost:8000/v1",
            "VLLM_API_KEY",
            _like(COMPATIBLE, "vllm", reasoning_field="reasoning", output_schema="without_tools"),
            needs_key=False,
        ),
        Preset(
            # lmstudio.ai/docs/developer/core/authentication
            "lmstudio",
            "http://localhost:1234/v1",
            "LM_API_TOKEN",
            # As with vLLM, a schema is a grammar.
            _like(COMPATIBLE, "lmstudio", output_schema="without_tools"),
            needs_key=False,
        ),
        Preset(
            # The server's own environment variable for the key that it asks for.
            "llamacpp",
            "http://localhost:8080/v1",
            "LLAMA_API_KEY",
            _like(
                COMPATIBLE,
                "llamacpp",
                reasoning_field="reasoning_content",
                output_schema="without_tools",
            ),
            needs_key=False,
        ),
    )
}
"""The servers by name."""


def compatible_model(
    preset: str,
    model: str,
    *,
    api_key: Key = None,
    base_url: str | None = None,
    options: ChatOptions | None = None,
    max_retries: int | RetryPolicy = 2,
    timeout: float | Timeouts | None = 600.0,
    headers: Mapping[str, str] | None = None,
    http_client: Any = None,
) -> OpenAIChatModel:
    """Return a model behind the server called *preset*.

    Args:
        preset: One of `PRESETS`.
        model: Which model; with Azure the deployment's name.
        api_key: The key, or a function that returns the current one, such as a token of Entra ID;
            default: the environment's.
        base_url: Where the server is, with the API's version; default: where it usually is.
        options: As with `OpenAIChatModel`, and so on.
        max_retries: How often a request that failed for a passing reason is repeated, or a
            `RetryPolicy`.
        timeout: Seconds to wait for an answer, or `Timeouts`.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with, which the caller closes; or
            `Connections`, for a proxy or HTTP/2.

    Raises:
        UsageError: There is no such preset, or its key or address is missing.
    """
    found = _preset(preset)
    return OpenAIChatModel(
        model,
        api_key=found.key(api_key),
        base_url=first_url(base_url) or found.locate(),
        options=options,
        max_retries=max_retries,
        timeout=timeout,
        headers=headers,
        http_client=http_client,
        dialect=found.dialect,
    )


def _preset(name: str) -> Preset:
    check_kind("a preset", name, str)
    found = PRESETS.get(name)
    if found is None:
        msg = f"no preset is called {name!r}; there are {', '.join(sorted(PRESETS))}"
        raise UsageError(msg)
    return found

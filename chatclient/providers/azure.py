"""OpenAI's models on Azure, with an API key or with tokens of Entra ID (extra `azure`)."""

import inspect
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Unpack
from urllib.parse import quote

from chatclient._internal.checks import check_model_name
from chatclient.chat.options import ChatOptions
from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
    MissingExtraError,
    UsageError,
)
from chatclient.providers.http.auth import (
    TOKEN_SECONDS,
    ExpiringCredentials,
    Key,
    KeySource,
    token_service_error,
)
from chatclient.providers.http.model import HttpOptions
from chatclient.providers.http.request import first_url, path_step
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.dialect import PRESETS, Dialect

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

_PRESET = PRESETS["azure"]
_DATED = re.compile(r"\d{4}-")
# learn.microsoft.com/azure/developer/identity: the national clouds have services of their own.
_CLOUD = re.compile(r"https?://[^/?#]+\.azure\.(us|cn)(?=[:/?#]|$)")

# learn.microsoft.com/azure/ai-foundry: projects have a token of their own, resources have not.
_FOUNDRY = re.compile(r"https?://[^/?#]+\.services\.ai\.azure\.com(?::\d+)?/api/projects/")


def azure_model(
    model: str,
    *,
    endpoint: str | None = None,
    api_version: str | None = None,
    api_key: Key = None,
    credential: "TokenCredential | None" = None,
    base_url: str | None = None,
    options: ChatOptions | None = None,
    **http: Unpack[HttpOptions],
) -> OpenAIChatModel:
    """Return a model that is deployed on Azure, asked with Chat Completions.

    Args:
        model: The deployment's name.
        endpoint: URL of the resource, such as `https://acme.openai.azure.com`; default: the
            environment's `AZURE_OPENAI_ENDPOINT`.
        api_version: The version of the API: a date such as `2024-10-21` for the API with
            deployments in the path; default: the v1 API, which needs no version.
        api_key: The key, or a function that returns the current one; default: the environment's
            `AZURE_OPENAI_API_KEY`.
        credential: A credential of azure-identity, for tokens of Entra ID; default, if there is no
            key: `DefaultAzureCredential`.
        base_url: URL of the API, which is used unchanged in place of *endpoint*.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: There is no endpoint, or neither a key nor azure-identity, or both a key and a
            credential are given.
    """
    check_model_name(model)
    url = first_url(base_url) or _url(first_url(endpoint) or _PRESET.locate(), model, api_version)
    if api_version is not None:
        url = f"{url}{'&' if '?' in url else '?'}api-version={quote(api_version)}"
    key = _key(api_key, credential, url)
    dated = api_version is not None and _DATED.match(api_version)
    with_key = dated and not isinstance(key, ExpiringCredentials)
    dialect = _with_key_header() if with_key else _PRESET.dialect
    return OpenAIChatModel(
        model, api_key=key, base_url=url, options=options, dialect=dialect, **http
    )


@cache
def _with_key_header() -> Dialect:
    """Return the dialect of the API with a date: only the v1 API takes keys as bearer tokens."""
    return replace(_PRESET.dialect, key_header="api-key")


def _url(endpoint: str, deployment: str, api_version: str | None) -> str:
    resource = endpoint.rstrip("/").removesuffix(_PRESET.url_path)
    if api_version is None or not _DATED.match(api_version):
        return resource + _PRESET.url_path
    return f"{resource}/openai/deployments/{path_step(deployment)}"


def _key(api_key: Key, credential: "TokenCredential | None", url: str) -> KeySource:
    if credential is not None and api_key is not None:
        msg = "Azure takes either api_key= or credential=, not both"
        raise UsageError(msg)
    if credential is None:
        if api_key is not None or _PRESET.has_key():
            return _PRESET.key(api_key)
        try:
            from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - an extra
        except ImportError as error:
            msg = (
                f"Azure needs an API key: set {_PRESET.key_variable} or pass api_key=; for"
                " tokens of Entra ID, pip install 'chatclient[azure]'"
            )
            raise MissingExtraError(msg) from error
        # Its parts ask other services, each with these time-outs.
        credential = DefaultAzureCredential(
            connection_timeout=TOKEN_SECONDS, read_timeout=TOKEN_SECONDS
        )
    if inspect.iscoroutinefunction(getattr(credential, "get_token", None)):
        msg = "credential= takes a credential of azure.identity, not of azure.identity.aio"
        raise UsageError(msg)
    cloud = _CLOUD.match(url)
    scope = f"https://cognitiveservices.azure.{cloud[1] if cloud else 'com'}/.default"
    if _FOUNDRY.match(url):
        scope = "https://ai.azure.com/.default"
    from azure.core.exceptions import (  # noqa: PLC0415 - an extra
        AzureError,
        ServiceRequestError,
        ServiceResponseError,
    )

    def fetch() -> tuple[str, float | None]:
        try:
            token = credential.get_token(scope)
        except (ServiceRequestError, ServiceResponseError) as error:
            what = "Entra ID cannot be reached"
            raise token_service_error(ConnectionFailedError, what, error, _PRESET.name) from error
        except AzureError as error:
            what = "there is no token of Entra ID"
            raise token_service_error(AuthenticationError, what, error, _PRESET.name) from error
        return token.token, token.expires_on

    return ExpiringCredentials(fetch)

"""Gemini and Claude on Google Cloud's Vertex AI (extra `vertex`)."""

import os
import re
from collections.abc import Callable
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from chatclient._internal.checks import check_model_name
from chatclient._internal.extras import needed_by
from chatclient._internal.frozen import EMPTY
from chatclient.chat.model import ChatModel, SendItem
from chatclient.chat.options import ChatOptions
from chatclient.errors import AuthenticationError, ConnectionFailedError, UsageError
from chatclient.providers.anthropic.encoding import ANTHROPIC
from chatclient.providers.anthropic.model import AnthropicChatModel, AnthropicChatOptions
from chatclient.providers.anthropic.options import VERTEX_TOOLS
from chatclient.providers.gemini.model import GeminiChatModel
from chatclient.providers.http.auth import (
    TOKEN_SECONDS,
    ExpiringCredentials,
    SecretHeaders,
    token_service_error,
)
from chatclient.providers.http.model import HttpOptions
from chatclient.providers.http.request import first_url, path_step

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

_PROVIDER = "vertex"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_LOCATION = re.compile(r"[a-z0-9-]+")
_MULTI_REGIONS = ("eu", "us")
# platform.claude.com/docs/en/api/claude-on-vertex-ai
_ANTHROPIC_VERSION = "vertex-2023-10-16"


class VertexGeminiChatModel(GeminiChatModel):
    """A Gemini model on Vertex AI; see `vertex_model`."""

    @property
    def provider(self) -> str:
        """The provider's name in spans and metrics."""
        return _PROVIDER


class VertexAnthropicChatModel(AnthropicChatModel):
    """A Claude model on Vertex AI; see `vertex_model`."""

    _default_headers = EMPTY  # the version is in the body
    _server_tools = VERTEX_TOOLS
    _key_header = ("authorization", "Bearer ")

    def __init__(
        self,
        model: str,
        *,
        api_key: ExpiringCredentials[SecretHeaders],
        base_url: str,
        options: ChatOptions | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        options = AnthropicChatOptions(cache="auto").merge(options)
        super().__init__(model, api_key=api_key, base_url=base_url, options=options, **http)
        self._dialect = ANTHROPIC

    @property
    def provider(self) -> str:
        """The provider's name in spans and metrics."""
        return _PROVIDER

    def batched(self, send: SendItem) -> None:
        """Return None: batches of Vertex AI are in Cloud Storage or BigQuery."""

    def _path(self, options: ChatOptions, *, streaming: bool = False) -> str:
        method = "streamRawPredict" if streaming else "rawPredict"
        return f"/models/{path_step(options.model or self.name, safe='@')}:{method}"

    def _fields(self, options: ChatOptions, *, streaming: bool) -> dict[str, Any]:
        fields = {"anthropic_version": _ANTHROPIC_VERSION}
        fields |= super()._fields(options, streaming=streaming)
        fields.pop("model", None)  # part of the path
        return fields


def vertex_model(
    model: str,
    *,
    project: str | None = None,
    location: str | None = None,
    credentials: "Credentials | None" = None,
    base_url: str | None = None,
    options: ChatOptions | None = None,
    **http: Unpack[HttpOptions],
) -> ChatModel:
    """Return a Gemini or Claude model on Vertex AI, with access tokens of google-auth.

    Args:
        model: The model's name, such as `gemini-2.5-flash` or `claude-sonnet-4-5@20250929`.
        project: The project; default: the environment's `GOOGLE_CLOUD_PROJECT`, else that of the
            default credentials, which are then looked for immediately.
        location: The location, such as `europe-west1`; default: the environment's
            `GOOGLE_CLOUD_LOCATION`, else `global`.
        credentials: Credentials of google-auth; default: Application Default Credentials.
        base_url: URL of the server, without version and project; default: that of *location*.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: google-auth is not installed, there is no project, *location* is not the name of
            one, or *model* is neither a Gemini nor a Claude model.
    """
    check_model_name(model)
    kind: Callable[..., ChatModel]
    if model.startswith("claude"):
        kind, publisher = VertexAnthropicChatModel, "anthropic"
    elif model.startswith("gemini"):
        kind, publisher = VertexGeminiChatModel, "google"
    else:
        msg = f"{model!r} is neither a Gemini nor a Claude model, such as gemini-2.5-flash"
        raise UsageError(msg)
    with needed_by("Vertex AI"):
        import google.auth.transport.requests  # noqa: F401, PLC0415 - an extra
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT")
    if not project:
        credentials, project = _with_project(credentials)
    location = location or os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
    if not _LOCATION.fullmatch(location):  # it becomes a part of the host's name
        msg = f"{location!r} is not the name of a location, such as europe-west1"
        raise UsageError(msg)
    server = first_url(base_url, _server_of(location)).rstrip("/")
    place = f"projects/{path_step(project, safe=':')}/locations/{location}"
    return kind(
        model,
        api_key=ExpiringCredentials(_fetching(credentials)),
        base_url=f"{server}/v1/{place}/publishers/{publisher}",
        options=options,
        **http,
    )


def _server_of(location: str) -> str:
    if location == "global":
        return "https://aiplatform.googleapis.com"
    if location in _MULTI_REGIONS:
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _with_project(credentials: "Credentials | None") -> "tuple[Credentials | None, str]":
    """Return *credentials*, or the default ones, and their project.

    Raises:
        UsageError: There is no project.
    """
    import google.auth  # noqa: PLC0415 - an extra
    from google.auth.exceptions import DefaultCredentialsError  # noqa: PLC0415

    project = getattr(credentials, "project_id", None)
    if credentials is None:
        try:
            credentials, project = google.auth.default(scopes=_SCOPES)
        except DefaultCredentialsError as error:
            msg = f"Vertex AI needs credentials and a project: {error}"
            raise UsageError(msg) from error
    if not project:
        msg = "Vertex AI needs a project: set GOOGLE_CLOUD_PROJECT or pass project="
        raise UsageError(msg)
    return credentials, str(project)


def _fetching(given: "Credentials | None") -> Callable[[], tuple[SecretHeaders, float | None]]:
    """Return a function for the headers of *given* or the default credentials."""
    import google.auth  # noqa: PLC0415 - an extra
    from google.auth.credentials import with_scopes_if_required  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError, TransportError  # noqa: PLC0415
    from google.auth.transport.requests import Request  # noqa: PLC0415

    loaded: Any = None
    request = partial(Request(), timeout=TOKEN_SECONDS)

    def fetch() -> tuple[SecretHeaders, float | None]:
        nonlocal loaded
        try:
            if loaded is None:
                credentials = google.auth.default()[0] if given is None else given
                loaded = with_scopes_if_required(credentials, _SCOPES)  # type: ignore[no-untyped-call]
            if not loaded.valid:  # also false shortly before the token expires
                loaded.refresh(request)
        except TransportError as error:
            what = "Google's token service cannot be reached"
            raise token_service_error(ConnectionFailedError, what, error, _PROVIDER) from error
        except GoogleAuthError as error:
            loaded = None  # another login writes new default credentials
            what = "there is no access token for Vertex AI"
            raise token_service_error(AuthenticationError, what, error, _PROVIDER) from error
        headers = {"authorization": f"Bearer {loaded.token}"}
        if project := getattr(loaded, "quota_project_id", None):
            headers["x-goog-user-project"] = project
        expiry = loaded.expiry  # in UTC, without a time zone
        seconds = None if expiry is None else expiry.replace(tzinfo=UTC).timestamp()
        return SecretHeaders(headers), seconds

    return fetch

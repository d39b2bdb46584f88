"""Error classes and retry decisions from status, headers and body."""

import email.utils
import json
import time
from typing import Any

import pytest

from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
    ContentFilterError,
    ContextLengthExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RequestTimeoutError,
)
from chatclient.providers import (
    CohereRerankModel,
    OpenAIChatModel,
    OpenAIEmbeddingModel,
)
from chatclient.providers.http.auth import token_service_error
from chatclient.providers.http.errors import (
    error_from_body,
    error_from_data,
    parse_duration,
    request_id,
    retry_after,
)
from chatclient.providers.openai.chat_decoding import decode_response
from chatclient.providers.openai.dialect import COMPATIBLE
from tests.support.replay import Exchange, exchanges, needs_recordings


def failure(status: int, body: Any = None, **headers: str) -> ProviderError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_from_body("acme", status, named, json.dumps(body).encode())


def error_body(message: Any, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


# --- by status ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (301, InvalidRequestError, False),
        (400, InvalidRequestError, False),
        (401, AuthenticationError, False),
        (402, InvalidRequestError, False),
        (403, AuthenticationError, False),
        (404, NotFoundError, False),
        (405, InvalidRequestError, False),
        (408, RequestTimeoutError, True),
        (409, InvalidRequestError, True),
        (413, ContextLengthExceededError, False),
        (415, InvalidRequestError, False),
        (422, InvalidRequestError, False),
        (425, InvalidRequestError, True),
        (429, RateLimitedError, True),
        (500, OverloadedError, True),
        (501, OverloadedError, False),
        (502, OverloadedError, True),
        (503, OverloadedError, True),
        (504, OverloadedError, True),
        (520, OverloadedError, True),
        (529, OverloadedError, True),
    ],
)
def test_error_class_by_status(status: int, kind: type[ProviderError], *, retryable: bool) -> None:
    """Each status gives its error class."""
    error = failure(status, error_body("no luck", code="whatever"))

    assert type(error) is kind
    assert (error.status, error.retryable) == (status, retryable)
    assert str(error).startswith(f"acme answered {status}: no luck")


# --- by message -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        error_body(
            "This model's maximum context length is 8192 tokens.", code="context_length_exceeded"
        ),
        error_body("Your input exceeds the context window of this model. Please adjust it."),
        {"type": "error", **error_body("prompt is too long: 210000 tokens > 200000 maximum")},
        error_body("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
        error_body("The input token count (1200000) exceeds the maximum number of tokens allowed"),
        error_body("This endpoint's maximum context length is 16385 tokens", code=400),
        {"message": "Prompt has 40000 tokens, too large for 32768 maximum context length"},
        {"object": "error", "message": "Prompt is too large for its 32768 maximum context length"},
        {
            "code": "x",
            "error": "This model's maximum prompt length is 131072 but got 537812 tokens",
        },
        error_body("Please reduce the length of the messages or completion."),
        error_body("`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 6000"),
        error_body(
            "the request exceeds the available context size", type="exceed_context_size_error"
        ),
        {"error": "Trying to keep the first 9000 tokens when context the overflows."},
        {"error": "input length exceeds the context length"},
        {"error": "The number of tokens to keep is greater than the context length (n_keep: 9)."},
        {"error": "prompt too long; exceeded max context length by 1200 tokens"},
        error_body("The decoder prompt (length 9) is longer than the maximum model length of 8."),
        error_body("Prompt exceeds max length", code="1261"),
        error_body("Range of input length should be [1, 98304]"),
        error_body("Input validation error: `inputs` must have less than 1024 tokens. Given: 4000"),
        error_body("The total length of all messages is too long.", type="too_many_prompt_tokens"),
        error_body("Invalid request: Your request exceeded model token limit: 8192"),
        {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"},
        {"message": "Input is too long for requested model."},
        error_body("Provider returned error", metadata={"raw": '{"message":"prompt is too long"}'}),
    ],
    ids=lambda body: json.dumps(body)[:60],
)
@pytest.mark.parametrize("status", [0, 400, 422, 500])
def test_context_window_errors(status: int, body: Any) -> None:
    """A prompt beyond the context window is recognised in every provider's wording."""
    error = failure(status, body)

    assert type(error) is ContextLengthExceededError
    assert not error.retryable


@pytest.mark.parametrize(
    "message",
    [
        "failed to decode, try again, increasing context size or reducing parallel",
        "max_tokens is too large: 99999. This model supports at most 16384 completion tokens.",
        "max_completion_tokens is too large: 99999.This model supports at most 8192 tokens.",
        "the maximum value for `max_tokens` is less than the `context_window` for this model",
        "the maximum value for max_tokens is less than the context window for this model",
        "max_tokens (128000) exceeds model's maximum output tokens (65536) for model kimi",
        "max_output_tokens exceeds the model's maximum context length",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
        "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 128000",
        "It has a maxOutputTokens value of 99999 but the supported range is from 1 to 65537",
        "Too many tokens, please wait before trying again.",
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
        "metadata.user_id: String should have at most 256 characters",
        "Invalid 'messages[2].content': string too long. Expected a string with maximum length 10",
    ],
)
def test_other_size_errors(message: str) -> None:
    """Other size limits are ordinary invalid requests."""
    assert type(failure(400, error_body(message))) is InvalidRequestError


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            400,
            error_body(
                "The response was filtered due to the prompt triggering Azure OpenAI's content "
                "management policy.",
                code="content_filter",
                innererror={"code": "ResponsibleAIPolicyViolation"},
            ),
        ),
        (400, error_body("refused", code="content_policy_violation")),
        (400, error_body("Your request was rejected as a result of our safety system.")),
        (400, error_body("Output blocked by content filtering policy")),
        (400, error_body("Content Exists Risk")),
        (400, error_body("Invalid prompt: it was flagged as violating our usage policy.")),
        (403, error_body("Your chosen model requires moderation and your input was flagged")),
        (0, error_body("no", code="content_filter")),
    ],
)
def test_content_policy_errors(status: int, body: Any) -> None:
    """A content policy violation has its own error class."""
    assert type(failure(status, body)) is ContentFilterError


@pytest.mark.parametrize(
    "body",
    [
        {"code": "invalid-argument", "error": "Incorrect API key provided. You can obtain one."},
        error_body(
            "API key not valid. Please pass a valid API key.",
            code=400,
            status="INVALID_ARGUMENT",
            details=[{"reason": "API_KEY_INVALID"}],
        ),
        error_body("no", type="authentication_error"),
        error_body("Missing API key"),
    ],
)
@pytest.mark.parametrize("status", [0, 400])
def test_wrong_key_with_status_400(status: int, body: Any) -> None:
    """A wrong key reported with status 400 is an authentication error."""
    error = failure(status, body)

    assert type(error) is AuthenticationError
    assert str(error).endswith("; check the API key")


@pytest.mark.parametrize(
    "body",
    [
        error_body("no", code="model_not_found"),
        error_body("Model Not Exist", code="invalid_request_error"),
        error_body("acme/big is not a valid model ID", code=400),
        error_body("The model `big` is no longer supported.", code="model_decommissioned"),
        {"object": "error", "message": "Invalid model: big", "type": "invalid_model"},
    ],
)
def test_unknown_model_with_status_400(body: Any) -> None:
    """An unknown model reported with status 400 is a not-found error."""
    assert type(failure(400, body)) is NotFoundError


@pytest.mark.parametrize(
    ("error", "kind", "status", "retryable"),
    [
        ({"message": "slow down", "type": "rate_limit_error"}, RateLimitedError, None, True),
        ({"message": "x", "code": "rate_limit_exceeded"}, RateLimitedError, None, True),
        ({"message": "x", "status": "RESOURCE_EXHAUSTED"}, RateLimitedError, None, True),
        ({"message": "x", "code": "insufficient_quota"}, RateLimitedError, None, False),
        ({"message": "x", "type": "overloaded_error"}, OverloadedError, None, True),
        ({"message": "x", "type": "api_error"}, OverloadedError, None, True),
        ({"message": "x", "code": "server_error"}, OverloadedError, None, True),
        ({"message": "x", "type": "invalid_request_error"}, InvalidRequestError, None, False),
        ({"message": "x", "type": "not_found_error"}, NotFoundError, None, False),
        ({"message": "x", "type": "permission_error"}, AuthenticationError, None, False),
        ({"message": "x", "code": 429}, RateLimitedError, 429, True),
        ({"message": "x", "code": "502"}, OverloadedError, 502, True),
        ({"message": "x", "status_code": 400, "code": "tool_use"}, InvalidRequestError, 400, False),
        ({"message": "an error occurred"}, OverloadedError, None, True),
        ("it broke", OverloadedError, None, True),
    ],
)
def test_error_class_with_status_200(
    error: Any, kind: type[ProviderError], status: int | None, *, retryable: bool
) -> None:
    """With status 200 the code in the body gives the error class."""
    found = error_from_data("acme", 0, {"error": error})

    assert (type(found), found.status, found.retryable) == (kind, status, retryable)
    assert str(found).startswith("acme reported an error: ")


# --- retryable ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        error_body("You exceeded your current quota", code="insufficient_quota"),
        error_body("Billing hard limit has been reached", code="billing_hard_limit_reached"),
        error_body(
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000"
        ),
        error_body("Rate limit exceeded: free-models-per-day", code=429),
        error_body(
            "You exceeded your current quota",
            details=[{"violations": [{"quotaId": "GenerateRequestsPerDayPerProject-FreeTier"}]}],
        ),
    ],
)
def test_permanent_limits_are_not_retryable(body: Any) -> None:
    """Exhausted credit, daily quotas and too large requests are not retryable."""
    error = failure(429, body)

    assert type(error) is RateLimitedError
    assert not error.retryable


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        (400, {"message": "x"}, {"x_amzn_errortype": "ThrottlingException:"}, RateLimitedError),
        (400, {"__type": "com.amazon#ThrottlingException", "Message": "x"}, {}, RateLimitedError),
        (400, {"Error": {"Code": "Throttling", "Message": "x"}}, {}, RateLimitedError),
        (400, {"code": "TooManyRequestsException", "message": "x"}, {}, RateLimitedError),
        (424, {"message": "x", "originalStatusCode": 429}, {}, RateLimitedError),
        (424, {"message": "x", "originalStatusCode": 500}, {}, OverloadedError),
        (424, {"message": "x", "originalStatusCode": 400}, {}, InvalidRequestError),
        (424, {"message": "x"}, {}, InvalidRequestError),
        (400, {"message": "do not call the throttled valve"}, {}, InvalidRequestError),
    ],
)
def test_errors_of_aws(
    status: int, body: Any, headers: dict[str, str], kind: type[ProviderError]
) -> None:
    """The type follows the kind of the error, or the status of the model behind the service."""
    error = failure(status, body, **headers)

    assert type(error) is kind
    assert (error.status, error.retryable) == (status, kind is not InvalidRequestError)


def test_quota_per_minute_is_retryable() -> None:
    """Google's quota per minute is retryable."""
    violations = [{"quotaId": "GenerateRequestsPerMinutePerProject"}]

    assert failure(
        429, error_body("quota exceeded", details=[{"violations": violations}])
    ).retryable


@pytest.mark.parametrize(
    ("status", "advice", "retryable"),
    [(400, "true", True), (500, "false", False), (429, "false", False), (429, "true", True)],
)
def test_should_retry_header(status: int, advice: str, *, retryable: bool) -> None:
    """The header `x-should-retry` takes precedence over the status."""
    assert failure(status, x_should_retry=advice).retryable is retryable


# --- retry delay ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"retry-after": "7"}, None, 7.0),
        ({"retry-after": "0"}, None, 0.0),
        ({"retry-after": "1.5"}, None, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, None, 0.25),
        ({"retry-after-ms": "0", "retry-after": "1"}, None, 1.0),
        ({"retry-after-ms": "soon", "retry-after": "2"}, None, 2.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None, 0.0),
        ({"retry-after": "Fri, 31 Dec 99999 23:59:59 GMT"}, None, None),
        ({}, error_body("x", details=[{"retryDelay": f"{'9' * 400}s"}]), None),
        ({}, error_body([{"msg": "try again in 2s", "loc": 3}]), 2.0),
        ({"retry-after": "-5"}, None, None),
        ({"retry-after": "nan"}, None, None),
        ({"retry-after": "inf"}, None, None),
        ({"retry-after": "soon"}, None, None),
        ({"retry-after": ""}, None, None),
        ({}, None, None),
        ({}, error_body("x", details=[{"@type": "RetryInfo", "retryDelay": "34.4s"}]), 34.4),
        ({}, [error_body("x", details=[{}, {"retryDelay": "8s"}])], 8.0),
        ({}, error_body("x", details=[{"retryDelay": "later"}]), None),
        ({}, error_body("x", details="none"), None),
        ({}, error_body("Limit 3, used 3. Please try again in 20s. Visit our site."), 20.0),
        ({}, error_body("Please try again in 1m30.5s."), 90.5),
        ({}, error_body("Please retry after 450ms."), 0.45),
        ({}, error_body("Please try again in a moment."), None),
        ({"retry-after": "3"}, error_body("Please try again in 20s."), 3.0),
    ],
)
def test_retry_delay_sources(headers: dict[str, str], body: Any, expected: float | None) -> None:
    """The delay is read from seconds, milliseconds, a date, RetryInfo or the message."""
    assert retry_after(headers, body) == (expected and pytest.approx(expected))


def test_retry_delay_from_a_date() -> None:
    """A future date gives the delay until then."""
    date = email.utils.formatdate(time.time() + 30, usegmt=True)

    assert retry_after({"retry-after": date}) == pytest.approx(30, abs=2)


def test_retry_header_with_status_200_is_ignored() -> None:
    """With status 200 the retry header does not apply to an error in the body."""
    assert error_from_data("acme", 0, error_body("x"), {"retry-after": "61"}).retry_after is None


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        *(("6ms", 0.006), ("0s", 0.0), ("17.4s", 17.4), ("1m30s", 90.0), ("1h2m3.5s", 3723.5)),
        *(("2d", 172800.0), ("500", None), ("", None), ("s", None), ("1 s", None), ("1sx", None)),
        pytest.param("1" * 60_000, None, id="a number of many digits"),
    ],
)
def test_duration_parsing(duration: str, seconds: float | None) -> None:
    """Go durations are parsed; a number without a unit is not a duration."""
    assert parse_duration(duration) == (seconds and pytest.approx(seconds))


# --- message and request id -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (error_body("a sentence"), "a sentence"),
        ({"error": "a sentence"}, "a sentence"),
        ({"message": "a sentence"}, "a sentence"),
        ({"detail": "a sentence"}, "a sentence"),
        ({"detail": [{"loc": ["body", "n"], "msg": "too many"}]}, "body.n: too many"),
        ({"detail": [{"msg": "too many"}, "odd"]}, "too many; odd"),
        ({"message": {"detail": [{"loc": ["body"], "msg": "no"}]}}, "body: no"),
        ({"detail": [{"loc": 3, "msg": "no"}]}, "{'detail': [{'loc': 3, 'msg': 'no'}]}"),
        (error_body("it failed", details=[{"violations": [1]}]), "it failed"),
        (error_body("it failed", details={"violations": 5}, code="9" * 5000), "it failed"),
        ({"errors": [{"code": 7003, "message": "no route"}]}, "no route"),
        ([{"error": {"message": "a sentence"}}], "a sentence"),
        (error_body("it failed", metadata={"raw": "no room"}), "it failed (no room)"),
        ({"error": {"code": "odd"}}, "odd"),
        ({"Message": "a sentence"}, "a sentence"),
        ({"__type": "x#OddException", "Message": "a sentence"}, "a sentence"),
        ({"Error": {"Code": "odd", "Message": "a sentence"}}, "a sentence"),
        ({"title": "Bad Request", "detail": "a sentence", "status": 400}, "a sentence"),
        ({"title": "a sentence", "type": "about:blank"}, "a sentence"),
        ({"message": "it failed", "originalMessage": "no room"}, "it failed (no room)"),
        ("a sentence", "a sentence"),
        ([], "[]"),
        ({}, "no reason given"),
        (None, "None"),
    ],
)
def test_error_message_forms(body: Any, message: str) -> None:
    """The message is found in every form of error body."""
    assert str(failure(400, body)) == f"acme answered 400: {message}"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "To use function tools, use /v1/responses or set reasoning_effort to 'none'."),
        (400, "Function tools are not supported for gpt-5.4. Please use /v1/responses instead."),
        (404, "This model is only supported in v1/responses and not in v1/chat/completions."),
    ],
)
def test_hint_at_another_api_names_the_class(status: int, message: str) -> None:
    """A hint at another API names the model class instead of a path."""
    assert str(failure(status, error_body(message))).endswith("name the model openai-responses:...")


@pytest.mark.parametrize(
    ("url", "unusual"),
    [
        ("http://h/chat/completions", " (it has no version: most servers have a base URL that"),
        ("http://h/v1/chat/completions/chat/completions", " (/chat/completions is there twice"),
        ("http://h/v1/v1/messages", " (/v1 is there twice: leave it out of the base URL)"),
        ("http://h//v1/chat/completions", " (there are two slashes"),
        ("http://h/v1/chat/completions", ":"),
        ("https://h/openai/deployments/a/chat/completions", ":"),
        ("http://h/api/chat", ":"),
        ("https://api.openai.com/chat/completions", " (it has no version"),
        ("https://api.perplexity.ai/chat/completions", ":"),
        ("https://x.services.ai.azure.com/models/chat/completions", ":"),
    ],
)
def test_url_that_is_not_found(url: str, unusual: str) -> None:
    """The error names the URL and what is unusual about it."""
    text = str(error_from_body("acme", 404, {}, b"404 page not found", url))

    assert text.startswith(f"acme answered 404 at {url}{unusual}")
    assert text.endswith(": 404 page not found")


@pytest.mark.parametrize(
    "body", [error_body("Unknown model: x"), error_body("no x", code="model_not_found")]
)
def test_url_of_an_unknown_model(body: Any) -> None:
    """A server that looked for the model has the right address; a key in it is masked."""
    urls = ("http://h/chat/completions", "http://h/sk-ant-0123456789abcdef/v1/chat/completions")
    without, with_key = [
        str(error_from_body("acme", 404, {}, json.dumps(body).encode(), url)) for url in urls
    ]

    assert without.startswith(f"acme answered 404 at {urls[0]}: ")
    assert with_key.startswith("acme answered 404 at http://h/***/v1/chat/completions: ")


def test_echoed_request_is_not_a_reason() -> None:
    """Text of the request that a validator echoes does not affect the error class."""
    quoted = json.dumps([{"role": "user", "content": "What is a content policy? " * 200}])
    error = failure(400, {"detail": f"240 validation errors: no string: {'x' * 4000} {quoted}"})

    assert type(error) is InvalidRequestError


def test_html_error_is_truncated() -> None:
    """A long body that is not JSON is truncated in the message."""
    error = error_from_body("acme", 502, {}, b"<html>" + b"x" * 10_000)

    assert isinstance(error, OverloadedError)
    assert len(str(error)) < 600
    assert error.body.startswith("<html>xxx")


def test_undecodable_error_body() -> None:
    """A body of unknown encoding gives an error with its status."""
    assert error_from_body("acme", 500, {}, b"\xff\xfe\x00").status == 500


def test_secrets_of_token_services() -> None:
    """Keys are masked also at the end of a message that is cut, and in errors in arguments."""
    key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    inner = ValueError(f"inner {key}")
    inner.args += (inner,)
    cause = RuntimeError(f"{'a' * 470} {key} and more text {'b' * 100}", inner)
    error = token_service_error(AuthenticationError, "no token", cause, "acme")

    assert "wJalr" not in f"{error}{cause.args}{inner.args[0]}"
    assert inner.args[0] == "inner ***"


@pytest.mark.parametrize(
    "key", ["sk-proj-abcdef123456", "gsk_abcdef123456", "AIzaSyA1234567890abcdef", "xai-0123456789"]
)
def test_keys_are_masked_in_messages(key: str) -> None:
    """API keys echoed by the provider are masked in messages."""
    error = failure(401, error_body(f"Incorrect API key provided: {key}"))

    assert str(error) == "acme answered 401: Incorrect API key provided: ***; check the API key"
    assert key not in repr(error)


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:9/{}/v1", "http://127.0.0.1:9/v1?key={}"])
def test_keys_are_masked_in_addresses(base_url: str) -> None:
    """A key in the base URL is not shown by models, and not by errors of connections."""
    key = "sk-proj-abcdef123456"
    url = base_url.format(key)
    chat, rerank = (
        kind(api_key="k", base_url=url) for kind in (OpenAIChatModel, CohereRerankModel)
    )
    with OpenAIEmbeddingModel(api_key="k", base_url=url, max_retries=0) as model:
        with pytest.raises(ConnectionFailedError) as raised:
            model.embed(["a"])
        shown = f"{chat!r} {rerank!r} {model!r} {model.address} {raised.value}"

    assert key not in shown
    assert shown.count("http://127.0.0.1:9/") == 5


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"x-request-id": "a", "apim-request-id": "b"}, None, "a"),
        ({"request-id": "a"}, None, "a"),
        ({"apim-request-id": "b"}, None, "b"),
        ({"mistral-correlation-id": "c"}, None, "c"),
        ({}, {"request_id": "d"}, "d"),
        ({}, {"request_id": 5}, None),
        ({}, [], None),
    ],
)
def test_request_id(headers: dict[str, str], body: Any, expected: str | None) -> None:
    """The request id is found in a header or in the body."""
    assert request_id(headers, body) == expected


# --- recorded -------------------------------------------------------------------------------

# Where the body is more specific than the status.
BY_BODY = {
    "API key not valid": AuthenticationError,
    "Incorrect API key": AuthenticationError,
    "prompt is too long": ContextLengthExceededError,
    "too long": ContextLengthExceededError,
    "context length": ContextLengthExceededError,
    "does not exist": NotFoundError,
}
BY_STATUS = {401: AuthenticationError, 403: AuthenticationError, 404: NotFoundError}


def expected_kind(exchange: Exchange) -> type[ProviderError]:
    text = exchange.body.decode()
    by_body = (kind for words, kind in BY_BODY.items() if words in text)
    if exchange.status == 429:
        return RateLimitedError
    return BY_STATUS.get(exchange.status) or next(by_body, InvalidRequestError)


@needs_recordings
def test_recorded_errors() -> None:
    """Every recorded error response gives the expected error class."""
    refused = [exchange for exchange in exchanges() if exchange.status >= 400]
    assert refused

    for exchange in refused:
        error = error_from_body(exchange.provider, exchange.status, exchange.headers, exchange.body)

        assert type(error) is expected_kind(exchange), exchange
        assert error.status == exchange.status, exchange
        by_chance = b"tool_use_failed" in exchange.body  # the model may do better next time
        assert error.retryable == (exchange.status == 429 or by_chance), exchange
        assert "no reason given" not in str(error), exchange


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (402, {"error": {"message": "Insufficient Balance"}}),
        (429, {"error": {"message": "No credit", "type": "exceeded_current_quota_error"}}),
        (429, {"error": {"code": "1113", "message": "余额不足或无可用资源包,请充值。"}}),
        (429, {"error": {"message": "Your account balance is insufficient"}}),
        (500, {"error": {"message": "insufficient_user_quota"}}),
        (0, {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
    ],
)
def test_missing_balance_is_not_retried(status: int, body: Any) -> None:
    assert not error_from_data("p", status, body).retryable


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
        "'max_tokens' is too large: 5000. This model's context length is 4096 tokens (input)",
        "max_output_tokens is too high for the model's context window",
    ],
)
def test_requested_answer_is_too_long(message: str) -> None:
    """This is no error about the length of the prompt, which could be shortened."""
    error = error_from_data("p", 400, {"error": {"message": message}})

    assert type(error) is InvalidRequestError


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (1002, RateLimitedError, True),
        (1004, AuthenticationError, False),
        (1013, OverloadedError, True),
        (2013, InvalidRequestError, False),
        (9999, OverloadedError, True),
    ],
)
def test_error_of_minimax(code: int, kind: type[ProviderError], retryable: bool) -> None:
    """Errors are in `base_resp`, with codes of their own."""
    data = {"base_resp": {"status_code": code, "status_msg": "reason"}, "choices": None}
    with pytest.raises(ProviderError, match="reason") as caught:
        decode_response(data, COMPATIBLE)

    assert (type(caught.value), caught.value.retryable) == (kind, retryable)


def test_successful_base_response() -> None:
    choice = {"message": {"content": "hi"}, "finish_reason": "stop"}
    data = {"base_resp": {"status_code": 0, "status_msg": ""}, "choices": [choice]}

    assert decode_response(data, COMPATIBLE).text == "hi"


def test_unsuccessful_response() -> None:
    """Cloudflare reports some errors with status 200."""
    data = {"success": False, "errors": [{"code": 7009, "message": "no such model"}]}
    with pytest.raises(NotFoundError, match="no such model"):
        decode_response(data, COMPATIBLE)

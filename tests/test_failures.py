"""What went wrong, told from status, headers and body; and whether asking again can help."""

import email.utils
import json
import time
from typing import Any

import pytest
from replay import Exchange, exchanges, needs_recordings

from chatclient.errors import (
    AuthenticationError,
    ContentFilterError,
    ContextLengthExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RequestTimeoutError,
)
from chatclient.providers.error_bodies import request_id
from chatclient.providers.failures import error_from, error_of
from chatclient.providers.retry_hints import retry_after, seconds_of


def failure(status: int, body: Any = None, **headers: str) -> ProviderError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_of("acme", status, named, json.dumps(body).encode())


def saying(message: Any, **more: Any) -> dict[str, Any]:
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
def test_the_status_tells_the_error(
    status: int, kind: type[ProviderError], *, retryable: bool
) -> None:
    """Each status becomes the error by which a caller knows what to do."""
    error = failure(status, saying("no luck", code="whatever"))

    assert type(error) is kind
    assert (error.status, error.retryable) == (status, retryable)
    assert str(error).startswith(f"acme answered {status}: no luck")


# --- by words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        saying(
            "This model's maximum context length is 8192 tokens.", code="context_length_exceeded"
        ),
        saying("Your input exceeds the context window of this model. Please adjust it."),
        {"type": "error", **saying("prompt is too long: 210000 tokens > 200000 maximum")},
        saying("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
        saying("The input token count (1200000) exceeds the maximum number of tokens allowed"),
        saying("This endpoint's maximum context length is 16385 tokens", code=400),
        {"message": "Prompt has 40000 tokens, too large for 32768 maximum context length"},
        {"object": "error", "message": "Prompt is too large for its 32768 maximum context length"},
        {
            "code": "x",
            "error": "This model's maximum prompt length is 131072 but got 537812 tokens",
        },
        saying("Please reduce the length of the messages or completion."),
        saying("`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 6000"),
        saying("the request exceeds the available context size", type="exceed_context_size_error"),
        {"error": "Trying to keep the first 9000 tokens when context the overflows."},
        {"error": "input length exceeds the context length"},
        {"error": "The number of tokens to keep is greater than the context length (n_keep: 9)."},
        {"error": "prompt too long; exceeded max context length by 1200 tokens"},
        saying("The decoder prompt (length 9) is longer than the maximum model length of 8."),
        saying("Prompt exceeds max length", code="1261"),
        saying("Range of input length should be [1, 98304]"),
        saying("Input validation error: `inputs` must have less than 1024 tokens. Given: 4000"),
        saying("The total length of all messages is too long.", type="too_many_prompt_tokens"),
        saying("Invalid request: Your request exceeded model token limit: 8192"),
        {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"},
        {"message": "Input is too long for requested model."},
        saying("Provider returned error", metadata={"raw": '{"message":"prompt is too long"}'}),
    ],
    ids=lambda body: json.dumps(body)[:60],
)
@pytest.mark.parametrize("status", [0, 400, 422, 500])
def test_a_prompt_that_is_too_long_is_told_in_many_words(status: int, body: Any) -> None:
    """Whatever the provider calls it, a prompt beyond the context window is told apart."""
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
def test_other_sizes_are_not_the_context(message: str) -> None:
    """What else can be too long or too large is an ordinary invalid request."""
    assert type(failure(400, saying(message))) is InvalidRequestError


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            400,
            saying(
                "The response was filtered due to the prompt triggering Azure OpenAI's content "
                "management policy.",
                code="content_filter",
                innererror={"code": "ResponsibleAIPolicyViolation"},
            ),
        ),
        (400, saying("refused", code="content_policy_violation")),
        (400, saying("Your request was rejected as a result of our safety system.")),
        (400, saying("Output blocked by content filtering policy")),
        (400, saying("Content Exists Risk")),
        (400, saying("Invalid prompt: it was flagged as violating our usage policy.")),
        (403, saying("Your chosen model requires moderation and your input was flagged")),
        (0, saying("no", code="content_filter")),
    ],
)
def test_a_refusal_by_policy_is_told_apart(status: int, body: Any) -> None:
    """A prompt that a content policy refuses is neither malformed nor forbidden to the key."""
    assert type(failure(status, body)) is ContentFilterError


@pytest.mark.parametrize(
    "body",
    [
        {"code": "invalid-argument", "error": "Incorrect API key provided. You can obtain one."},
        saying(
            "API key not valid. Please pass a valid API key.",
            code=400,
            status="INVALID_ARGUMENT",
            details=[{"reason": "API_KEY_INVALID"}],
        ),
        saying("no", type="authentication_error"),
        saying("Missing API key"),
    ],
)
@pytest.mark.parametrize("status", [0, 400])
def test_a_bad_key_may_come_as_an_invalid_request(status: int, body: Any) -> None:
    """Some services answer 400 to a wrong key; what to do is the same as with 401."""
    error = failure(status, body)

    assert type(error) is AuthenticationError
    assert str(error).endswith("; check the API key")


@pytest.mark.parametrize(
    "body",
    [
        saying("no", code="model_not_found"),
        saying("Model Not Exist", code="invalid_request_error"),
        saying("acme/big is not a valid model ID", code=400),
        saying("The model `big` is no longer supported.", code="model_decommissioned"),
        {"object": "error", "message": "Invalid model: big", "type": "invalid_model"},
    ],
)
def test_a_model_that_does_not_exist_may_come_as_an_invalid_request(body: Any) -> None:
    """What says that a model is missing says more than the 400 it comes with."""
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
def test_an_error_inside_an_answer_is_told_by_its_code(
    error: Any, kind: type[ProviderError], status: int | None, *, retryable: bool
) -> None:
    """Where the HTTP status was 200, the body says what would have been the status."""
    found = error_from("acme", 0, {"error": error})

    assert (type(found), found.status, found.retryable) == (kind, status, retryable)
    assert str(found).startswith("acme reported an error: ")


# --- worth asking again ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        saying("You exceeded your current quota", code="insufficient_quota"),
        saying("Billing hard limit has been reached", code="billing_hard_limit_reached"),
        saying(
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000"
        ),
        saying("Rate limit exceeded: free-models-per-day", code=429),
        saying(
            "You exceeded your current quota",
            details=[{"violations": [{"quotaId": "GenerateRequestsPerDayPerProject-FreeTier"}]}],
        ),
    ],
)
def test_a_limit_that_waiting_does_not_lift_is_not_tried_again(body: Any) -> None:
    """No money, a day's share, a request too large by itself: asking again cannot help."""
    error = failure(429, body)

    assert type(error) is RateLimitedError
    assert not error.retryable


def test_a_quota_by_the_minute_is_tried_again() -> None:
    """Google says "quota" of limits that are lifted within a minute, too."""
    violations = [{"quotaId": "GenerateRequestsPerMinutePerProject"}]

    assert failure(429, saying("quota exceeded", details=[{"violations": violations}])).retryable


@pytest.mark.parametrize(
    ("status", "advice", "retryable"),
    [(400, "true", True), (500, "false", False), (429, "false", False), (429, "true", True)],
)
def test_the_provider_knows_best_whether_to_ask_again(
    status: int, advice: str, *, retryable: bool
) -> None:
    """The header `x-should-retry` goes before what we make of the status."""
    assert failure(status, x_should_retry=advice).retryable is retryable


# --- when -----------------------------------------------------------------------------------


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
        ({}, saying("x", details=[{"retryDelay": f"{'9' * 400}s"}]), None),
        ({}, saying([{"msg": "try again in 2s", "loc": 3}]), 2.0),
        ({"retry-after": "-5"}, None, None),
        ({"retry-after": "nan"}, None, None),
        ({"retry-after": "inf"}, None, None),
        ({"retry-after": "soon"}, None, None),
        ({"retry-after": ""}, None, None),
        ({}, None, None),
        ({}, saying("x", details=[{"@type": "RetryInfo", "retryDelay": "34.4s"}]), 34.4),
        ({}, [saying("x", details=[{}, {"retryDelay": "8s"}])], 8.0),
        ({}, saying("x", details=[{"retryDelay": "later"}]), None),
        ({}, saying("x", details="none"), None),
        ({}, saying("Limit 3, used 3. Please try again in 20s. Visit our site."), 20.0),
        ({}, saying("Please try again in 1m30.5s."), 90.5),
        ({}, saying("Please retry after 450ms."), 0.45),
        ({}, saying("Please try again in a moment."), None),
        ({"retry-after": "3"}, saying("Please try again in 20s."), 3.0),
    ],
)
def test_the_wait_is_read_from_wherever_it_is_asked_for(
    headers: dict[str, str], body: Any, expected: float | None
) -> None:
    """Seconds, milliseconds, a date, Google's RetryInfo, or a sentence."""
    assert retry_after(headers, body) == (expected and pytest.approx(expected))


def test_a_date_says_how_long_to_wait() -> None:
    """A date in the future is as far away as it is."""
    date = email.utils.formatdate(time.time() + 30, usegmt=True)

    assert retry_after({"retry-after": date}) == pytest.approx(30, abs=2)


def test_an_answer_that_succeeded_asks_for_no_wait() -> None:
    """Some services send the header with every answer; an error inside one is another matter."""
    assert error_from("acme", 0, saying("x"), {"retry-after": "61"}).retry_after is None


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        *(("6ms", 0.006), ("0s", 0.0), ("17.4s", 17.4), ("1m30s", 90.0), ("1h2m3.5s", 3723.5)),
        *(("2d", 172800.0), ("500", None), ("", None), ("s", None), ("1 s", None), ("1sx", None)),
        pytest.param("1" * 60_000, None, id="a long number, which took minutes"),
    ],
)
def test_durations_are_read(duration: str, seconds: float | None) -> None:
    """Durations as Go writes them; a number without a unit is none."""
    assert seconds_of(duration) == (seconds and pytest.approx(seconds))


# --- what else an error tells ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (saying("a sentence"), "a sentence"),
        ({"error": "a sentence"}, "a sentence"),
        ({"message": "a sentence"}, "a sentence"),
        ({"detail": "a sentence"}, "a sentence"),
        ({"detail": [{"loc": ["body", "n"], "msg": "too many"}]}, "body.n: too many"),
        ({"detail": [{"msg": "too many"}, "odd"]}, "too many; odd"),
        ({"message": {"detail": [{"loc": ["body"], "msg": "no"}]}}, "body: no"),
        ({"detail": [{"loc": 3, "msg": "no"}]}, "{'detail': [{'loc': 3, 'msg': 'no'}]}"),
        (saying("it failed", details=[{"violations": [1]}]), "it failed"),
        (saying("it failed", details={"violations": 5}, code="9" * 5000), "it failed"),
        ({"errors": [{"code": 7003, "message": "no route"}]}, "no route"),
        ([{"error": {"message": "a sentence"}}], "a sentence"),
        (saying("it failed", metadata={"raw": "no room"}), "it failed (no room)"),
        ({"error": {"code": "odd"}}, "odd"),
        ("a sentence", "a sentence"),
        ([], "[]"),
        ({}, "no reason given"),
        (None, "None"),
    ],
)
def test_the_message_is_found_in_every_form(body: Any, said: str) -> None:
    """Whatever form the answer has, the error says what it says."""
    assert str(failure(400, body)) == f"acme answered 400: {said}"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "To use function tools, use /v1/responses or set reasoning_effort to 'none'."),
        (400, "Function tools are not supported for gpt-5.4. Please use /v1/responses instead."),
        (404, "This model is only supported in v1/responses and not in v1/chat/completions."),
    ],
)
def test_what_only_another_api_can_do_is_told_in_our_words(status: int, message: str) -> None:
    """Who reads the error knows the name of a model class rather than a path."""
    assert str(failure(status, saying(message))).endswith("name the model openai-responses:...")


def test_what_a_validator_quotes_of_the_request_is_no_reason() -> None:
    """Some servers quote all of it, once for each form that it might have had."""
    quoted = json.dumps([{"role": "user", "content": "What is a content policy? " * 200}])
    error = failure(400, {"detail": f"240 validation errors: no string: {'x' * 4000} {quoted}"})

    assert type(error) is InvalidRequestError


def test_an_answer_that_is_no_json_is_quoted_in_part() -> None:
    """A proxy's page of HTML does not become a message of a thousand lines."""
    error = error_of("acme", 502, {}, b"<html>" + b"x" * 10_000)

    assert isinstance(error, OverloadedError)
    assert len(str(error)) < 600
    assert error.body.startswith("<html>xxx")


def test_bytes_that_are_no_text_are_no_problem() -> None:
    """A body in no known encoding is still an error with a status."""
    assert error_of("acme", 500, {}, b"\xff\xfe\x00").status == 500


@pytest.mark.parametrize(
    "key", ["sk-proj-abcdef123456", "gsk_abcdef123456", "AIzaSyA1234567890abcdef", "xai-0123456789"]
)
def test_a_key_that_the_provider_quotes_is_not_repeated(key: str) -> None:
    """Keys do not get into messages, and so not into logs."""
    error = failure(401, saying(f"Incorrect API key provided: {key}"))

    assert str(error) == "acme answered 401: Incorrect API key provided: ***; check the API key"
    assert key not in repr(error)


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
def test_the_request_id_is_found(headers: dict[str, str], body: Any, expected: str | None) -> None:
    """The id to quote in a support ticket comes from a header or from the body."""
    assert request_id(headers, body) == expected


# --- recorded -------------------------------------------------------------------------------

# Where the body says more than the status.
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
def test_recorded_refusals_are_told_apart() -> None:
    """Every refusal that was recorded, of every service, becomes the error it should."""
    refused = [exchange for exchange in exchanges() if exchange.status >= 400]
    assert refused

    for exchange in refused:
        error = error_of(exchange.provider, exchange.status, exchange.headers, exchange.body)

        assert type(error) is expected_kind(exchange), exchange
        assert error.status == exchange.status, exchange
        by_chance = b"tool_use_failed" in exchange.body  # the model may do better
        assert error.retryable == (exchange.status == 429 or by_chance), exchange
        assert "no reason given" not in str(error), exchange

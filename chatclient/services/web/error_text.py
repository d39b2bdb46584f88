"""`public_error_text`: what users are told of an error, without internals."""

from chatclient.errors import (
    BudgetExceededError,
    ConnectionFailedError,
    ContentFilterError,
    ContextLengthExceededError,
    DeadlineExceededError,
    GuardrailError,
    OverloadedError,
    RateLimitedError,
    RateLimitExceededError,
    RequestTimeoutError,
    ToolLoopError,
    TurnCancelledError,
)
from chatclient.services.web.incoming import InvalidInputError

_TEXTS: dict[type[Exception] | tuple[type[Exception], ...], str] = {
    (DeadlineExceededError, RequestTimeoutError): "The answer took too long. Please try again.",
    (OverloadedError, RateLimitedError, ConnectionFailedError): (
        "The model is not available at the moment. Please try again later."
    ),
    (RateLimitExceededError, BudgetExceededError): (
        "A limit of this service is reached. Please try again later."
    ),
    ContextLengthExceededError: "The conversation is too long. Please start a new one.",
    (ContentFilterError, GuardrailError): "This request cannot be answered.",
    ToolLoopError: "The answer needed too many steps.",
    TurnCancelledError: "The answer was stopped.",
}

_OTHER = "Something went wrong. Please try again."


def public_error_text(error: Exception) -> str:
    """Return a text about *error* for the user of a frontend.

    It depends on the kind of the error only: messages of errors are for operators, and may name
    hosts, models and files.
    """
    if isinstance(error, InvalidInputError):
        return str(error)
    return next((text for kinds, text in _TEXTS.items() if isinstance(error, kinds)), _OTHER)

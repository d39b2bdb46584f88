"""Logs what goes to the model and what comes back."""

from collections.abc import Callable
from typing import Literal

from chatclient.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_word
from chatclient.logs import get_logger
from chatclient.response import ChatResponse

log = get_logger("chatclient.advisors.simple_logger")


def _request_text(request: ChatClientRequest) -> str:
    return request.prompt.contents


def _response_text(response: ChatResponse) -> str:
    return repr(response.output)


class SimpleLoggerAdvisor:
    """Logs each request and response, through structlog and standard logging.

    With the default order it stands inside the tool loop and logs every round.

    Args:
        order: Where it stands in the chain.
        level: At which level.
        request_to_text: Says what of a request is logged; default: the text of its messages. None
            for no line.
        response_to_text: Says what of a response is logged; default: the message. None for no
            line.

    Raises:
        UsageError: *level* is not a known value.
    """

    def __init__(
        self,
        *,
        order: int = 0,
        level: Literal["debug", "info"] = "debug",
        request_to_text: Callable[[ChatClientRequest], str] | None = _request_text,
        response_to_text: Callable[[ChatResponse], str] | None = _response_text,
    ) -> None:
        check_word("level", level, "debug", "info")
        self.order = order
        info = level == "info"
        self._log = log.info if info else log.debug
        # A text is made only for somebody to read it: of a long conversation, in every round.
        self._is_read = log.is_enabled_for_info if info else log.is_enabled_for_debug
        self._request_to_text = request_to_text
        self._response_to_text = response_to_text

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response of the rest of the chain, unchanged."""
        if self._request_to_text is not None and self._is_read():
            self._log("request", text=self._request_to_text(request))
        response = await call_next(request)
        if self._response_to_text is not None and self._is_read():
            self._log("response", text=self._response_to_text(response.chat_response))
        return response

"""`SimpleLoggerAdvisor`: logs requests and responses."""

from collections.abc import Callable
from typing import Literal

from chatclient._internal.checks import check_choice
from chatclient._internal.logging import get_logger
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.chain.params import ANY
from chatclient.chat.response import ChatResponse

log = get_logger("chatclient.advisors.simple_logger")


def _request_text(request: ChatClientRequest) -> str:
    return request.prompt.contents


def _response_text(response: ChatResponse) -> str:
    return repr(response.output)


class SimpleLoggerAdvisor:
    """Logs each request and response, through structlog and standard logging.

    With the default order it is inside the tool loop and logs every round.

    Args:
        order: The position in the chain.
        level: The log level.
        request_to_text: Returns the text to log for a request; default: that of its messages. None
            logs no requests.
        response_to_text: Returns the text to log for a response; default: the message. None logs
            no responses.

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
        check_choice("level", level, "debug", "info")
        self.order = order
        info = level == "info"
        self._log = log.info if info else log.debug
        # Rendering a long conversation in every round is expensive; skipped if the level is off.
        self._is_enabled = log.is_enabled_for_info if info else log.is_enabled_for_debug
        self._request_to_text = request_to_text
        self._response_to_text = response_to_text
        self.params = () if request_to_text in (None, _request_text) else (ANY,)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response of the rest of the chain, unchanged."""
        if self._request_to_text is not None and self._is_enabled():
            self._log("request", text=self._request_to_text(request))
        response = await call_next(request)
        if self._response_to_text is not None and self._is_enabled():
            self._log("response", text=self._response_to_text(response.chat_response))
        return response

"""The default `prompt_cache_key` of requests to OpenAI, which distinguishes conversations."""

from collections.abc import Mapping
from hashlib import blake2b

from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient.chat.options import ChatOptions
from chatclient.chat.turn import present_turn
from chatclient.providers.http.auth import KeySource

_FIELD = "prompt_cache_key"


class CacheKeys:
    """Makes keys of conversations.

    OpenAI sends requests with the same key and the same beginning to the same machine, which has
    cached them. A key is a hash of the conversation's id, keyed with the API key, so that it does
    not reveal the id, and is the same in all processes of an application.

    Args:
        api_key: The key of the API. With a function that returns one there are no keys of
            conversations, because it may return another one each time.
    """

    __slots__ = ("_secret",)

    def __init__(self, api_key: KeySource | None) -> None:
        known = isinstance(api_key, str) and bool(api_key)
        self._secret = blake2b(str(api_key).encode(), digest_size=32).digest() if known else None

    def fields(self, options: ChatOptions) -> Mapping[str, bytes]:
        """Return the field, as JSON, for a request with *options* in the present turn.

        It is empty outside of a conversation, and if the options have a key.
        """
        turn = present_turn()
        if self._secret is None or turn is None or turn.conversation_id is None:
            return EMPTY
        if getattr(options, _FIELD, None) is not None or _FIELD in options.extra:
            return EMPTY
        conversation = str(turn.conversation_id).encode("utf-8", "surrogatepass")
        return {_FIELD: dumps(blake2b(conversation, key=self._secret, digest_size=16).hexdigest())}

"""Options that drop inherited values."""

import pytest

from chatclient.chat.options import NO_OPTIONS, ChatOptions
from chatclient.errors import UsageError


def test_unset_options_are_merged() -> None:
    """The options nearest to the request decide."""
    dropping = ChatOptions(unset=["temperature", "seed"], top_p=0.5)

    merged = ChatOptions(temperature=1.0, seed=1, top_k=3).merge(dropping)
    assert (merged.temperature, merged.seed, merged.top_p, merged.top_k) == (None, None, 0.5, 3)
    assert merged.unset == {"temperature", "seed"}

    again = merged.merge(ChatOptions(seed=2))
    assert (again.seed, again.unset) == (2, {"temperature"})
    assert "unset=['temperature']" in repr(again)
    assert ChatOptions(seed=1).merge(again).merge(NO_OPTIONS).seed == 2


def test_unset_names_an_option() -> None:
    with pytest.raises(UsageError, match="did you mean 'temperature'"):
        ChatOptions(unset="temprature")

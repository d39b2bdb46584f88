"""The sizes of the context windows of models: known, from price data, or learned from an error."""

import re

from chatclient.chain.prices import listed_context_window, models_in
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.errors import ContextLengthExceededError
from chatclient.runtime.runtime import Runtime

_STATE = "context_windows"  # the key of the sizes that a turn has learned
_NUMBER = r"\(?(\d[\d,]{2,})"
_LIMITS = re.compile(
    rf"(?:context.(?:length|size|window)|maximum|max|limit|allowed)\D{{0,60}}?{_NUMBER}"
    rf"|> {_NUMBER}|{_NUMBER} (?:tokens? )?(?:maximum|max|limit)",
    re.IGNORECASE,
)

_LEARNED = "_learned_context_windows"  # the attribute of a model with the sizes by model name


def window_size(model: ChatModel, options: ChatOptions, runtime: Runtime) -> int | None:
    """Return the size of the context window of *model* in tokens, or None if it is not known.

    Of several models between which *model* chooses, it is the smallest known one.
    """
    name = options.model or model.name
    kept = (runtime.state or {}).get(_STATE, {})
    learned = kept.get(name) or vars(model).get(_LEARNED, {}).get(name)
    if learned is not None:
        return int(learned)
    sizes = []
    for each in models_in(model):
        own = options if each is model else each.options
        size = each.context_window(own)
        if size is None:
            size = listed_context_window(each, own)
        if size is not None:
            sizes.append(size)
    # The estimates of tokens are for English; code and other languages have more.
    return min(sizes) * 3 // 4 if sizes else None


def learn_window_size(
    model: ChatModel,
    options: ChatOptions,
    runtime: Runtime,
    error: ContextLengthExceededError,
    tokens: int,
) -> int:
    """Return the size of the context window of *model* after a prompt did not fit, and keep it.

    It is the number in the error, or else three quarters of the prompt that was sent. The turn
    keeps it as well, so that it is shown the same after it was suspended or restarted.

    Args:
        model: The model.
        options: Those of the prompt.
        runtime: How the request runs.
        error: The error of the provider.
        tokens: The estimated size of the prompt and the answer.
    """
    numbers = [
        int(number.replace(",", ""))
        for match in _LIMITS.finditer(str(error))
        if (number := next(filter(None, match.groups()), None))
    ]
    # The largest: others are limits of the answer or of images, and the size is kept.
    size = max([number for number in numbers if number < tokens], default=tokens * 3 // 4)
    name = options.model or model.name
    vars(model).setdefault(_LEARNED, {})[name] = size
    if runtime.state is not None:
        runtime.state[_STATE] = {**runtime.state.get(_STATE, {}), name: size}
    return size

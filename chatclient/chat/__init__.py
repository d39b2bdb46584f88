"""Messages, prompts, options, responses and events: what models and clients exchange."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.chat.aggregator import (
        MessageAggregator as MessageAggregator,
    )
    from chatclient.chat.events import (
        HandedOver as HandedOver,
        ReasoningSigned as ReasoningSigned,
        TextReplaced as TextReplaced,
        ToolCallDelta as ToolCallDelta,
        ToolCallUndone as ToolCallUndone,
        ToolRunStarted as ToolRunStarted,
    )
    from chatclient.chat.messages import (
        ENDS_TURN as ENDS_TURN,
    )
    from chatclient.chat.model import (
        OutputMode as OutputMode,
        PromptLike as PromptLike,
    )
    from chatclient.chat.options import (
        OptionValues as OptionValues,
        ReasoningEffort as ReasoningEffort,
    )
    from chatclient.chat.origins import (
        Origin as Origin,
        PromptPart as PromptPart,
    )
    from chatclient.chat.parts import (
        Part as Part,
        ProviderPart as ProviderPart,
        Reasoning as Reasoning,
        ToolCallChunk as ToolCallChunk,
    )
    from chatclient.chat.response import (
        ChatResponseMetadata as ChatResponseMetadata,
        Cost as Cost,
        RateLimit as RateLimit,
    )
    from chatclient.chat.serialization import (
        message_from_dict as message_from_dict,
        message_to_dict as message_to_dict,
        response_from_dict as response_from_dict,
        response_to_dict as response_to_dict,
        usage_from_dict as usage_from_dict,
        usage_to_dict as usage_to_dict,
    )
    from chatclient.chat.stored_values import (
        register_stored_type as register_stored_type,
    )
    from chatclient.chat.template import (
        PlaceholderRenderer as PlaceholderRenderer,
        TemplateRenderer as TemplateRenderer,
        no_rendering as no_rendering,
    )
    from chatclient.chat.tool import (
        ToolProgress as ToolProgress,
    )
    from chatclient.chat.turn import (
        TURN_KEY as TURN_KEY,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)

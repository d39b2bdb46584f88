"""The settings with which a client continues the conversation of another one."""

from dataclasses import replace

from chatclient._internal.frozen import merged
from chatclient.chain.chain import ChatClientRequest
from chatclient.chat.messages import Message, SystemMessage
from chatclient.chat.prompt import count_default_messages
from chatclient.chat.tool import CONVERSATION_ID, USER_ID
from chatclient.chat.turn import TURN, TURN_KEY
from chatclient.client.request_settings import RequestSettings, TextSettings
from chatclient.memory.summary import SUMMARY
from chatclient.structured.output import NATIVE_STRUCTURED_OUTPUT
from chatclient.tools.handoff import HANDOFFS
from chatclient.tools.pending_turn import RESUMED_TURN
from chatclient.tools.tool_execution import TOOL_EXECUTIONS

# What belongs to the turn; other values in the context are those of the advisors of one client.
_PASSED_ON = (
    *(TURN, TURN_KEY, CONVERSATION_ID, USER_ID, NATIVE_STRUCTURED_OUTPUT),
    *(HANDOFFS, TOOL_EXECUTIONS, RESUMED_TURN),
)


def handed_over_settings(defaults: RequestSettings, request: ChatClientRequest) -> RequestSettings:
    """Return the settings with which a client continues the conversation of *request*.

    Args:
        defaults: The defaults of the client.
        request: The request of the client that hands over.
    """
    context, tools = request.context, request.prompt.options.tool_context
    own = {key: context[key] for key in _PASSED_ON if context.get(key) is not None}
    settings = replace(
        defaults,
        user=TextSettings(),
        advisor_params=merged(defaults.advisor_params, own),
        tool_context=merged(defaults.tool_context, tools),
    )
    if RESUMED_TURN in own:  # the messages contain the client's system text and default messages
        settings = settings.with_turn(own[RESUMED_TURN].pending)
        return replace(settings, messages=request.prompt.messages)
    return settings.with_messages(_passed_on(request))


def _passed_on(request: ChatClientRequest) -> tuple[Message, ...]:
    """Return the conversation without system texts and default messages; summaries are kept."""
    messages = request.prompt.messages
    systems = [m for m in messages if isinstance(m, SystemMessage)]
    spoken = tuple(m for m in messages if not isinstance(m, SystemMessage))
    summaries = (m for m in systems if SUMMARY in m.metadata)
    return (*summaries, *spoken[count_default_messages(spoken, request.context) :])

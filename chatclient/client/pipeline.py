"""`Pipeline`: builds the advisor chain of a request, runs it, and observes it.

`run` begins the turn, prepares the prompt, and calls the chain: advisors outside the tool loop, the
loop, advisors inside it, and the model call. When the chain has returned, memories store the turn
(`Turn.commit`); if anything fails before, the calls of tools are undone instead.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NoReturn

from chatclient._internal.frozen import merged
from chatclient._internal.logging import described, get_logger
from chatclient.advisors.context_window import ContextWindowAdvisor
from chatclient.advisors.structured_output import (
    StructuredOutputAdvisor,
    StructuredOutputValidationAdvisor,
)
from chatclient.advisors.tool_loop.advisor import ToolCallingAdvisor
from chatclient.chain.chain import (
    MEMORY_ORDER,
    Advisor,
    AdvisorChain,
    ChatClientRequest,
    ChatClientResponse,
    is_memory,
    is_tool_calling,
    name_of,
    order_of,
    part_around_loop,
    part_inside_loop,
    storage_of,
)
from chatclient.chain.model_call import prompt_digest
from chatclient.chain.params import NATIVE_STRUCTURED_OUTPUT
from chatclient.chat.events import ShownAnswer
from chatclient.chat.message_merging import with_answered_calls
from chatclient.chat.messages import system_messages, without_system
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.chat.pending_notes import begin_turn
from chatclient.chat.pending_turn import PendingTurn, Resumption
from chatclient.chat.prompt import Prompt
from chatclient.chat.tool import CONVERSATION_ID, USER_ID
from chatclient.chat.turn import Turn, TurnEnd, TurnSettings, count_default_messages
from chatclient.client.options import (
    RequestOptions,
    runs_tools,
    static_options,
    with_system_message,
)
from chatclient.client.request_settings import RequestSettings, TextSettings
from chatclient.client.shared_parts import SharedParts
from chatclient.errors import ChatClientError, UsageError
from chatclient.observability.observers import all_observers
from chatclient.observability.operations import EMPTY_PROMPT, ClientCall
from chatclient.observability.trail import Trail
from chatclient.runtime.cancellation import UndoLog
from chatclient.runtime.runtime import CallerDeadline, Runtime, within_callers_deadline
from chatclient.structured.output import StructuredOutput
from chatclient.tools.handoff import handoff_before

log = get_logger(__name__)


class Pipeline:
    """Runs the requests of one client.

    The constructor computes what depends on the defaults only: the chain and the options.

    Attributes:
        shared: The parts that all requests share.
        defaults: The default settings of requests.
        chain: The advisor chain of requests that add no advisors.
    """

    def __init__(self, shared: SharedParts, defaults: RequestSettings) -> None:
        self.shared = shared
        self.defaults = defaults
        self.chain = build_chain(shared, defaults)
        self._options = static_options(shared, defaults)
        self._default_messages = with_answered_calls(defaults.messages)
        self._entity_chains: dict[bool, AdvisorChain] = {}

    @property
    def runs_tools(self) -> bool:
        """Whether requests run tools by default."""
        return runs_tools(self.shared, self.defaults)

    def with_model(self, model: ChatModel) -> "Pipeline":
        """Return a pipeline with another model and otherwise the same settings."""
        return Pipeline(replace(self.shared, model=model), self.defaults.without_model_name())

    async def run(
        self,
        settings: RequestSettings,
        runtime: Runtime,
        output: StructuredOutput[Any] | None = None,
    ) -> ChatClientResponse:
        """Return the response to a request, with its trail.

        Observers also see a request whose preparation fails.

        Args:
            settings: The settings of the request, with the defaults of the client.
            runtime: The runtime of the request.
            output: The requested type of the answer, or None for text.
        """
        params, name = settings.advisor_params, self.shared.name
        conversation_id = params.get(CONVERSATION_ID)
        observers = all_observers(self.shared.observers, conversation_id, name)
        continued = settings.turn.continued
        turn = continued or begin_turn(settings.turn, params, self._default_messages)
        trail = Trail(runtime.steps)
        call = ClientCall(EMPTY_PROMPT, (), runtime.streaming, conversation_id, params, turn, name)
        # Of the request that this one is part of, such as that of an agent's caller.
        outer, undo_log = runtime.undo_log, UndoLog()
        if runtime.streaming and outer is None and any(map(is_memory, settings.advisors)):
            turn.shown = ShownAnswer(
                runtime.emitter, lambda: len(turn.rounds), turn.part.resumption
            )
            runtime = runtime.with_emitter(turn.shown.emit)
        runtime = within_callers_deadline(runtime)
        if settings.deadline is not None:
            runtime = runtime.with_deadline(settings.deadline)
        runtime = runtime.for_request(
            trail.steps, observers, conversation_id, undo_log, turn.model_state
        )
        limit = CallerDeadline(runtime.deadline) if runtime.deadline is not None else nullcontext()
        within = turn if continued is None else nullcontext()
        try:
            # The step first: it is linked to the step of the caller. `TurnEnd` is inside all of
            # them, because memories store the turn there, which is a part of the trail.
            with limit, runtime.observe(call) as step, within:
                if continued is None:
                    step.link_to_parent(trail.steps)
                async with TurnEnd(turn, undo_log, runtime, is_part=continued is not None):
                    try:
                        chain, request = await self._prepare(settings, output, call, runtime)
                    except BaseException as error:
                        if continued is None and turn.request_messages and turn.keeps(error):
                            await runtime.shielded(_begin_memories(settings, turn, runtime))
                        raise
                    if runtime.observers:
                        step.found = call.advisors_and_tools()
                    response = await runtime.until_deadline(chain(request))
                # From here on, only a failure of the request that this one is part of undoes the
                # calls.
                undo_log.hand_over(outer)
                step.result = response.chat_response
        except ChatClientError as error:
            error.trail = trail  # the trail of a failed agent call is part of this one
            raise
        finally:
            if continued is None:
                turn.close()
        if conversation_id is not None:
            self.shared.last_prompts.record(str(conversation_id), trail.steps)
        return ChatClientResponse(response.chat_response, response.context, trail, turn)

    def take_over(self, request: ChatClientRequest) -> Awaitable[ChatClientResponse]:
        """Continue the conversation and the turn of another client; see `Handoff`."""
        defaults, context, turn = self.defaults, request.context, request.turn
        # Other values in the context are those of the advisors of the other client.
        owners = (CONVERSATION_ID, USER_ID)
        params = {key: context[key] for key in owners if context.get(key) is not None}
        settings = replace(
            defaults,
            user=TextSettings(),
            advisor_params=merged(defaults.advisor_params, params),
            tool_context=merged(defaults.tool_context, request.prompt.options.tool_context),
            turn=TurnSettings(continued=turn),
        )
        messages = request.prompt.messages
        if turn.part.resumption is None:
            settings = settings.with_messages(messages)
        else:  # they contain the client's system text and default messages
            settings = settings.with_turn(settings.turn, messages)
        return self.run(settings, request.runtime, turn.part.output)

    async def check_decisions(
        self,
        resumption: Resumption,
        context: Mapping[str, Any],
        runtime: Runtime,
        settings: RequestSettings | None = None,
    ) -> None:
        """Check that decisions can be applied to a turn that waits, without running anything.

        Args:
            resumption: The turn and the decisions.
            context: More values of the tool context.
            runtime: How the check runs.
            settings: The settings of the request; default: those of the client.

        Raises:
            ToolUsageError: A tool is missing, or cannot be run with the arguments of a decision.
        """
        settings = self.defaults if settings is None else settings
        settings = settings.with_tool_context(context)
        pending, manager = resumption.pending, self.shared.manager
        options = await RequestOptions(self.shared, settings).complete(pending.messages, runtime)
        handoff = handoff_before(pending, lambda: options.tool_callbacks or ())
        if handoff is None:
            await manager.check_decisions(pending, resumption.decisions, options, runtime)
            return
        inside = resumption.inside_handoff()
        await handoff.check_decisions(inside, options.tool_context, runtime)

    async def _prepare(
        self,
        settings: RequestSettings,
        output: StructuredOutput[Any] | None,
        call: ClientCall,
        runtime: Runtime,
    ) -> tuple[AdvisorChain, ChatClientRequest]:
        """Return the chain and the request to pass to it, and describe both in *call*.

        The messages of the turn are set first, so that observers see them if a later step fails.
        """
        turn = call.turn
        turn.part.default_messages = self._default_messages
        resumption, is_continued = turn.part.resumption, settings.turn.continued is not None
        if resumption is not None:
            if not runs_tools(self.shared, settings):
                msg = (
                    "a turn is resumed in the tool loop, and this request has none: leave out"
                    " .tool_calling(False), or use manager.resume_tool_calls(...) in a loop of your"
                    " own"
                )
                raise UsageError(msg)
            if not is_continued:
                _check_resumed(settings, resumption.pending)
        chain = self._chain_of(settings, output)
        chain.check_params(settings.advisor_params)
        if settings.user.is_template and settings.renderer_may_block:
            rendering = runtime.invoke(settings.messages_without_system)
            messages = await runtime.until_deadline(rendering, "the template renderer")
        else:
            messages = settings.messages_without_system()
        messages = with_answered_calls(messages)
        if not turn.resumed and not is_continued:
            spoken = without_system(messages)
            turn.request_messages = spoken[count_default_messages(spoken, turn) :]
        work = with_system_message(settings, messages, runtime)
        messages = await runtime.until_deadline(work, "the system text function")
        turn.part.system = system_messages(messages)
        if self._options is not None and settings.has_same_options(self.defaults):
            options = self._options
        else:
            own = RequestOptions(self.shared, settings)
            listing = own.begin(messages, runtime)
            options = await runtime.until_deadline(listing, "the listing of tools")
            turn.part.refresh_tools = own.refresh if own.is_dynamic else None
        if output is not None:
            native = settings.advisor_params.get(NATIVE_STRUCTURED_OUTPUT)
            turn.part.output, options = output.for_request(self.shared.model, options, native)
        prompt = Prompt.of(messages, options)
        if (outer := turn.outer_recorder) is not None and turn.recorder is None:
            name = self.shared.name or self.shared.model.name
            turn.record_inside(outer.inside(f"client {name} {prompt_digest(prompt)}"))
        call.prompt, call.advisors = prompt, chain.names
        return chain, ChatClientRequest(prompt, settings.advisor_params, runtime, turn)

    def check_params(self, settings: RequestSettings) -> None:
        """Check that each advisor param of a request is read.

        Raises:
            UsageError: One of them is not read.
        """
        self._chain_of(settings, None).check_params(settings.advisor_params)

    def _chain_of(
        self, settings: RequestSettings, output: StructuredOutput[Any] | None
    ) -> AdvisorChain:
        defaults = self.defaults
        if settings.advisors is defaults.advisors and (
            settings.tool_calling == defaults.tool_calling
        ):
            return self.chain if output is None else self._entity_chain(validate=output.validate)
        if output is not None:
            settings = with_output_advisors(settings, validate=output.validate)
        return build_chain(self.shared, settings)

    def _entity_chain(self, *, validate: bool) -> AdvisorChain:
        chain = self._entity_chains.get(validate)
        if chain is None:
            settings = with_output_advisors(self.defaults, validate=validate)
            chain = self._entity_chains[validate] = build_chain(self.shared, settings)
        return chain


async def _begin_memories(settings: RequestSettings, turn: Turn, runtime: Runtime) -> None:
    """Let memories begin a turn that has ended before its chain began, so that they store it."""
    prompt = Prompt.of(turn.request_messages, ChatOptions())
    request = ChatClientRequest(prompt, settings.advisor_params, runtime, turn)

    async def end(_: ChatClientRequest) -> NoReturn:
        raise asyncio.CancelledError

    for memory in filter(is_memory, settings.advisors):
        try:
            await memory(request, end)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - the turn has another error already
            log.warning("turn that ended early was not stored", error=described(error))


def _check_resumed(settings: RequestSettings, pending: PendingTurn) -> None:
    """Check that a request that resumes a turn adds no messages and keeps the conversation.

    Raises:
        UsageError: It has additional messages, or another conversation id.
    """
    if settings.has_text or len(settings.messages) > len(pending.messages):
        msg = (
            "a resumed turn has its own messages and would ignore those of .system(), .user() and"
            " .messages(); give a decision a message, or the request a Steering"
        )
        raise UsageError(msg)
    given = settings.advisor_params.get(CONVERSATION_ID)
    if pending.conversation_id is not None and given != str(pending.conversation_id):
        msg = (
            f"the turn belongs to conversation {pending.conversation_id!r} and would be remembered"
            f" in {given!r}; leave out .conversation(...), or resume a turn of that conversation"
        )
        raise UsageError(msg)


def build_chain(shared: SharedParts, settings: RequestSettings) -> AdvisorChain:
    """Return the advisor chain for *settings*.

    A `ToolCallingAdvisor` is added unless an advisor runs the tool loop. With `tool_calling`
    off, other tool loops are removed; ours reads from the options that it should not run tools.
    Without a `ContextWindowAdvisor`, the chain shortens requests that exceed the window itself.

    Raises:
        UsageError: Two advisors run the tool loop, or use the same memory.
    """
    advisors = list(settings.advisors)
    loops = [advisor for advisor in advisors if is_tool_calling(advisor)]
    if len(loops) > 1:
        names = ", ".join(f"{name_of(loop)} (order {order_of(loop)})" for loop in loops)
        msg = f"only one advisor can run the tool loop, but there are {len(loops)}: {names}"
        raise UsageError(msg)
    _check_distinct_memories([advisor for advisor in advisors if is_memory(advisor)])
    if not settings.tool_calling:
        advisors = [a for a in advisors if not is_tool_calling(a) or _is_ours(a)]
        loops = [loop for loop in loops if _is_ours(loop)]
    elif not loops:
        loops = [ToolCallingAdvisor(shared.manager)]
        advisors.append(loops[0])
    if loops:
        advisors = _around_loop(shared, loops[0], sorted(advisors, key=order_of))
    shorten = None
    windows = [each for each in advisors if isinstance(each, ContextWindowAdvisor)]
    if loops and not windows:
        shorten = ContextWindowAdvisor.lenient(shared.model)
    return AdvisorChain(advisors, shared.model, shorten)


def _is_ours(loop: Advisor) -> bool:
    return isinstance(loop, ToolCallingAdvisor)


def _check_distinct_memories(advisors: Sequence[Advisor]) -> None:
    """Check that no two memory advisors store turns in the same place.

    Raises:
        UsageError: Two do; each turn would be stored and sent twice.
    """
    owners: dict[int, Advisor] = {}
    for advisor in advisors:
        key = id(storage_of(advisor))
        if key in owners:
            msg = (
                f"{name_of(owners[key])} and {name_of(advisor)} share one memory: each turn would"
                " be kept and sent twice; leave one of them out"
            )
            raise UsageError(msg)
        owners[key] = advisor


def _around_loop(shared: SharedParts, loop: Advisor, advisors: list[Advisor]) -> list[Advisor]:
    """Return the sorted *advisors* with *loop* as it is used in this chain, and with second parts.

    A memory inside the loop has a second part around the loop. An advisor outside the loop may
    have a second part inside, which sees each round.
    """
    at = advisors.index(loop)
    outside, inside = advisors[:at], advisors[at + 1 :]
    memories = [advisor for advisor in inside if is_memory(advisor)]
    if isinstance(loop, ToolCallingAdvisor):
        _check_history(loop, [each for each in outside if is_memory(each)], memories)
        loop = loop.in_chain(shared.manager, memory_inside=bool(memories))
    # The default place of a memory: it stores messages as they were before other advisors.
    order = min(MEMORY_ORDER, order_of(loop))
    outer = [part for each in memories if (part := part_around_loop(each, order))]
    inner = [part for each in outside if (part := part_inside_loop(each, order_of(loop)))]
    return sorted([*outside, *outer, loop, *inner, *inside], key=order_of)


def _check_history(
    loop: ToolCallingAdvisor, outside: Sequence[Advisor], inside: Sequence[Advisor]
) -> None:
    """Check that something sends the earlier messages of a turn to the model.

    Raises:
        UsageError: The loop does not, and the memory is outside and cannot: the model would get the
            results of tools without their calls.
    """
    if loop.conversation_history is False and outside and not inside:
        msg = (
            f"{name_of(loop)} with conversation_history=False needs a memory inside the loop, but "
            f"{name_of(outside[0])} is outside, so that nobody sends the tool calls: leave "
            f"conversation_history out, or give the memory an order above {order_of(loop)}"
        )
        raise UsageError(msg)


# Stateless, so all clients share them.
_FORMAT = StructuredOutputAdvisor()
_VALIDATION = StructuredOutputValidationAdvisor()


def with_output_advisors(settings: RequestSettings, *, validate: bool) -> RequestSettings:
    """Return *settings* with the advisor that requests the format, and one for validation."""
    added: list[Advisor] = [_FORMAT]
    kind = StructuredOutputValidationAdvisor
    if validate and not any(isinstance(advisor, kind) for advisor in settings.advisors):
        added.append(_VALIDATION)
    return replace(settings, advisors=(*settings.advisors, *added))

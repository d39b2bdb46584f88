"""`Pipeline`: builds the advisor chain of a request, runs it, and observes it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from chatclient._internal.frozen import merged, without
from chatclient.advisors.structured_output import (
    StructuredOutputAdvisor,
    StructuredOutputValidationAdvisor,
)
from chatclient.advisors.tool_loop.advisor import ToolCallingAdvisor
from chatclient.advisors.tool_loop.pending_notes import load_turn
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
from chatclient.chat.message_merging import with_answered_calls
from chatclient.chat.messages import Message, without_system
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import DEFAULT_MESSAGES, Prompt, count_default_messages
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.chat.turn import AROUND_STORE, TURN, TURN_ID, Turn
from chatclient.client.handed_over import handed_over_settings
from chatclient.client.options import complete_request, runs_tools, static_options
from chatclient.client.request_settings import RequestSettings
from chatclient.client.shared_parts import SharedParts
from chatclient.errors import ChatClientError, UsageError
from chatclient.observability.observers import all_observers
from chatclient.observability.operations import EMPTY_PROMPT, ClientCall
from chatclient.observability.trail import Trail
from chatclient.runtime.cancellation import UndoLog
from chatclient.runtime.deadlines import CallerDeadline, within_callers_deadline
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import is_of_library
from chatclient.structured.output import (
    NATIVE_STRUCTURED_OUTPUT,
    STRUCTURED_OUTPUT,
    StructuredOutput,
)
from chatclient.tools.pending_turn import RESUMED_TURN


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
        """Return the response to a request.

        Args:
            settings: The settings of the request, with the defaults of the client.
            runtime: The runtime of the request.
            output: The requested type of the answer, or None for text.
        """
        runtime = within_callers_deadline(runtime)
        if settings.deadline is not None:
            runtime = runtime.with_deadline(settings.deadline)
        if self.defaults.messages:
            default_messages = {DEFAULT_MESSAGES: self._default_messages}
            params = merged(settings.advisor_params, default_messages)
            settings = replace(settings, advisor_params=params)
        with CallerDeadline(runtime.deadline):
            return await self._run_observed(settings, output, runtime)

    def take_over(self, request: ChatClientRequest) -> Awaitable[ChatClientResponse]:
        """Continue the conversation and the turn of another client; see `Handoff`."""
        output: StructuredOutput[Any] | None = request.context.get(STRUCTURED_OUTPUT)
        return self.run(handed_over_settings(self.defaults, request), request.runtime, output)

    async def _run_observed(
        self, settings: RequestSettings, output: StructuredOutput[Any] | None, runtime: Runtime
    ) -> ChatClientResponse:
        """Prepare the request, run its chain, and return the response with its trail.

        Observers also see a request whose preparation fails.
        """
        trail = Trail(runtime.steps)
        conversation_id = settings.advisor_params.get(CONVERSATION_ID)
        observers = all_observers(self.shared.observers, conversation_id, self.shared.name)
        outer, undo_log = runtime.undo_log, UndoLog()
        runtime = runtime.for_request(trail.steps, observers, conversation_id, undo_log)
        turn = _turn_for(settings.advisor_params)
        handed_over = TURN in settings.advisor_params
        call = ClientCall(
            EMPTY_PROMPT,
            (),
            runtime.streaming,
            conversation_id,
            settings.advisor_params,
            turn,
            self.shared.name,
        )
        try:
            with runtime.observe(call) as step:
                if not handed_over:
                    step.link_to_parent(trail.steps)
                chain, request = await self._prepare(settings, output, call, runtime)
                if runtime.observers:
                    step.found = call.advisors_and_tools()
                try:
                    response = await runtime.until_deadline(chain(request))
                    runtime.check_cancelled()
                    if not handed_over:
                        await runtime.until_deadline(turn.commit(runtime), "memory")
                except BaseException:
                    await runtime.shielded(undo_log.undo())
                    raise
                undo_log.hand_over(outer)
                step.result = response.chat_response
        except ChatClientError as error:
            error.trail = trail  # the trail of a failed agent call is part of this one
            raise
        finally:
            added = {} if handed_over else turn.close()
        context = merged(without(response.context, TURN, TURN_ID), added)
        return ChatClientResponse(response.chat_response, context, trail)

    async def _prepare(
        self,
        settings: RequestSettings,
        output: StructuredOutput[Any] | None,
        call: ClientCall,
        runtime: Runtime,
    ) -> tuple[AdvisorChain, ChatClientRequest]:
        """Return the chain and the request to pass to it, and describe both in *call*.

        The messages are set in *call* first, so that observers see them if a later step fails.
        """
        handed_over = TURN in settings.advisor_params
        if RESUMED_TURN in settings.advisor_params and not handed_over:
            _check_resumed(settings)
        in_worker = _has_renderer(settings)
        messages = await _rendered(settings.messages_without_system, runtime, in_worker=in_worker)
        messages = with_answered_calls(messages)
        if not call.turn.resumed and not handed_over:
            spoken = without_system(messages)
            first = count_default_messages(spoken, settings.advisor_params)
            call.turn.request_messages = spoken[first:]
        if settings.system_function is not None:
            from chatclient.client.system_function import (  # noqa: PLC0415 - only if it is used
                with_system_text,
            )

            work = with_system_text(settings, messages, runtime)
            settings = await runtime.until_deadline(work, "the system text function")
        with_system = partial(settings.prepend_system_message, messages)
        messages = await _rendered(with_system, runtime, in_worker=in_worker)
        options, context = await self._options_and_context(settings, messages, runtime)
        context = merged(context, {TURN: call.turn})
        prompt = Prompt.of(messages, options)
        if output is not None:
            prompt, context = prompt_for_entity(output, prompt, context, self.shared.model)
        chain = self._chain_of(settings, output)
        call.prompt, call.context, call.advisors = prompt, context, chain.names
        return chain, ChatClientRequest(prompt, context, runtime)

    async def _options_and_context(
        self, settings: RequestSettings, messages: tuple[Message, ...], runtime: Runtime
    ) -> tuple[ChatOptions, Mapping[str, Any]]:
        if self._options is not None and settings.has_same_options(self.defaults):
            options, context = self._options, settings.advisor_params
        else:
            work = complete_request(self.shared, settings, messages, runtime)
            options, context = await runtime.until_deadline(work, "the listing of tools")
        if RESUMED_TURN in context:
            _check_runs_tools(options)
        return options, context

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


def _turn_for(context: Mapping[str, Any]) -> Turn:
    """Return the turn that a request with *context* begins, resumes, or has been handed."""
    if TURN in context:
        return cast("Turn", context[TURN])
    if RESUMED_TURN in context:
        turn = load_turn(context[RESUMED_TURN].pending, context)
    else:
        turn = Turn.of(context)
    turn.around_store = context.get(AROUND_STORE)
    return turn


def _check_resumed(settings: RequestSettings) -> None:
    """Check that a request that resumes a turn adds no messages and keeps the conversation.

    Raises:
        UsageError: It has messages of its own, or another conversation id.
    """
    turn = settings.advisor_params[RESUMED_TURN].pending
    if settings.has_text or len(settings.messages) > len(turn.messages):
        msg = (
            "a resumed turn has its own messages and would ignore those of .system(), .user() and"
            " .messages(); give a decision a message, or the request a Steering"
        )
        raise UsageError(msg)
    given = settings.advisor_params.get(CONVERSATION_ID)
    if turn.conversation_id is not None and given != str(turn.conversation_id):
        msg = (
            f"the turn belongs to conversation {turn.conversation_id!r} and would be remembered in"
            f" {given!r}; leave out .conversation(...), or resume a turn of that conversation"
        )
        raise UsageError(msg)


def _check_runs_tools(options: ChatOptions) -> None:
    """Check that a request that resumes a turn has a tool loop, which runs the approved calls.

    Raises:
        UsageError: It does not run tools.
    """
    if options.internal_tool_execution_enabled is False:
        msg = (
            "a turn is resumed in the tool loop, and this request has none: leave out"
            " .tool_calling(False), or use manager.resume_tool_calls(...) in a loop of your own"
        )
        raise UsageError(msg)


def build_chain(shared: SharedParts, settings: RequestSettings) -> AdvisorChain:
    """Return the advisor chain for *settings*.

    A `ToolCallingAdvisor` is added unless an advisor runs the tool loop. With `tool_calling`
    off, other tool loops are removed; ours reads from the options that it should not run tools.

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
    for loop in loops:
        advisors = _with_outer_and_inner_parts(shared, loop, sorted(advisors, key=order_of))
    return AdvisorChain(advisors, shared.model)


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


def _with_outer_and_inner_parts(
    shared: SharedParts, loop: Advisor, advisors: list[Advisor]
) -> list[Advisor]:
    """Return the sorted *advisors* with the second parts of advisors that have two.

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


def _has_renderer(settings: RequestSettings) -> bool:
    """Return whether a text is rendered by a function of the application, which may block."""
    is_template = settings.system.is_template or settings.user.is_template
    return is_template and not is_of_library(settings.renderer)


async def _rendered(
    render: Callable[[], tuple[Message, ...]], runtime: Runtime, *, in_worker: bool
) -> tuple[Message, ...]:
    if not in_worker:
        return render()
    return await runtime.until_deadline(runtime.invoke(render), "the template renderer")


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


def prompt_for_entity(
    output: StructuredOutput[Any], prompt: Prompt, context: Mapping[str, Any], model: ChatModel
) -> tuple[Prompt, Mapping[str, Any]]:
    """Return *prompt* and *context* with the options and the context entry for *output*."""
    native = context.get(NATIVE_STRUCTURED_OUTPUT)
    output, options = output.for_request(model, prompt.messages, prompt.options, native)
    return prompt.with_options(options), merged(context, {STRUCTURED_OUTPUT: output})

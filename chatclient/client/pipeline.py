"""`Pipeline`: prepares a request, runs its advisor chain, and observes it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chatclient._internal.frozen import merged, without
from chatclient.advisors.tool_loop.context_keys import RESUMED_TURN
from chatclient.advisors.tool_loop.pending_notes import load_turn
from chatclient.chain.chain import AdvisorChain, ChatClientRequest, ChatClientResponse
from chatclient.chat.messages import Message, without_system
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import DEFAULT_MESSAGES, Prompt, count_default_messages
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.chat.turn import TURN, TURN_ID, Turn
from chatclient.client.chain import build_chain
from chatclient.client.entity import prompt_for_entity, with_output_advisors
from chatclient.client.options import complete_request, runs_tools, static_options
from chatclient.client.request_settings import RequestSettings, with_system_text
from chatclient.client.shared_parts import SharedParts
from chatclient.errors import ChatClientError, UsageError
from chatclient.observability.observers import all_observers
from chatclient.observability.operations import EMPTY_PROMPT, ClientCall
from chatclient.observability.trail import Trail
from chatclient.runtime.deadlines import caller_deadline, within_callers_deadline
from chatclient.runtime.runtime import Runtime
from chatclient.structured.output import StructuredOutput


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
            params = merged(settings.advisor_params, {DEFAULT_MESSAGES: self.defaults.messages})
            settings = replace(settings, advisor_params=params)
        with caller_deadline(runtime.deadline):
            return await self._run_observed(settings, output, runtime)

    async def _run_observed(
        self, settings: RequestSettings, output: StructuredOutput[Any] | None, runtime: Runtime
    ) -> ChatClientResponse:
        """Prepare the request, run its chain, and return the response with its trail.

        Observers also see a request whose preparation fails.
        """
        trail = Trail(runtime.steps)
        conversation_id = settings.advisor_params.get(CONVERSATION_ID)
        observers = all_observers(self.shared.observers, conversation_id, self.shared.name)
        outer, runtime = runtime, runtime.for_request(trail.steps, observers, conversation_id)
        turn = _turn_for(settings.advisor_params)
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
                step.link_to_parent(trail.steps)
                chain, request = await self._prepare(settings, output, call, runtime)
                if runtime.observers:
                    step.found = call.advisors_and_tools()
                try:
                    response = await runtime.until_deadline(chain(request))
                    runtime.check_cancelled()
                    await runtime.until_deadline(turn.commit(runtime), "memory")
                except BaseException:
                    await runtime.undo()
                    raise
                runtime.hand_over_effects(outer)
                step.result = response.chat_response
        except ChatClientError as error:
            error.trail = trail  # the trail of a failed agent call is part of this one
            raise
        finally:
            added = turn.close()
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
        if RESUMED_TURN in settings.advisor_params:
            _check_resumed(settings)
        messages = settings.messages_without_system()
        if not call.turn.resumed:
            spoken = without_system(messages)
            first = count_default_messages(spoken, settings.advisor_params)
            call.turn.request_messages = spoken[first:]
        if settings.system_function is not None:
            work = with_system_text(settings, messages, runtime)
            settings = await runtime.until_deadline(work, "the system text function")
        messages = settings.with_system_message(messages)
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
    """Return the turn that a request with *context* begins or resumes."""
    if RESUMED_TURN in context:
        return load_turn(context[RESUMED_TURN].pending, context)
    return Turn.of(context)


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

"""What the requests of a client go through: its chain, with their prompt and options made ready."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from chatclient.advisors.tool_calling import RESUME
from chatclient.callers import caller_deadline, within_callers_deadline
from chatclient.chain import AdvisorChain, ChatClientResponse
from chatclient.chain_building import build_chain
from chatclient.engine import Engine
from chatclient.entities import prompt_for_entity, with_output_advisors
from chatclient.errors import UsageError
from chatclient.exchange import noted, said_before
from chatclient.operations import ClientCall
from chatclient.options import ChatOptions
from chatclient.prompt import DEFAULT_MESSAGES, Prompt
from chatclient.request_options import complete_request, runs_tools, static_options
from chatclient.runtime import Runtime
from chatclient.spec import RequestSpec, with_system_text
from chatclient.structured import StructuredOutput
from chatclient.tool import CONVERSATION_ID
from chatclient.values import merged
from chatclient.watching import run_observed


class Pipeline:
    """Runs the requests of one client.

    What a request has in common with the client's defaults was computed with the client.

    Attributes:
        chain: What a request passes that adds no advisors of its own.
    """

    def __init__(self, engine: Engine, defaults: RequestSpec) -> None:
        self._engine = engine
        self._defaults = defaults
        self.chain = build_chain(engine, defaults)
        self._options = static_options(engine, defaults)
        self._entity_chains: dict[bool, AdvisorChain] = {}

    @property
    def runs_tools(self) -> bool:
        """Whether requests run tools, unless they say otherwise."""
        return runs_tools(self._engine, self._defaults)

    async def run(
        self, spec: RequestSpec, runtime: Runtime, output: StructuredOutput[Any] | None = None
    ) -> ChatClientResponse:
        """Return the response to the request that *spec* describes.

        Args:
            spec: What the request is to have, that of the client among it.
            runtime: How the request runs.
            output: What it is to be answered with, if not with a text.
        """
        runtime = within_callers_deadline(runtime)
        if spec.deadline is not None:
            runtime = runtime.with_deadline(spec.deadline)
        if self._defaults.messages:
            params = merged(spec.advisor_params, {DEFAULT_MESSAGES: self._defaults.messages})
            spec = replace(spec, advisor_params=params)
        prepare, observers = partial(self._prepare, spec, output), self._engine.observers
        with caller_deadline(runtime.deadline):
            return noted(await run_observed(prepare, spec.advisor_params, runtime, observers))

    async def _prepare(
        self,
        spec: RequestSpec,
        output: StructuredOutput[Any] | None,
        call: ClientCall,
        runtime: Runtime,
    ) -> tuple[AdvisorChain, Prompt, Mapping[str, Any]]:
        """Return what a request goes through, and what it begins with; see `run_observed`."""
        if RESUME in spec.advisor_params:
            _refuse_words(spec)
            _refuse_another_conversation(spec)
        said = spec.messages_beside_system()
        call.asked = said_before(spec.advisor_params) or said
        if spec.written_system is not None:
            written = with_system_text(spec, said, runtime)
            spec = await runtime.until_deadline(written, "what writes its system text")
        messages = spec.build_messages(said)
        options, context = self._options, spec.advisor_params
        if options is None or not spec.has_same_options(self._defaults):
            completion = complete_request(self._engine, spec, messages, runtime)
            completed = await runtime.until_deadline(completion, "what offers its tools")
            options, context = completed
        if RESUME in context:
            _refuse_no_loop(options)
        prompt = Prompt.of(messages, options)
        if output is not None:
            prompt, context = prompt_for_entity(output, prompt, context, self._engine.model)
        return self._chain_of(spec, output), prompt, context

    def _chain_of(self, spec: RequestSpec, output: StructuredOutput[Any] | None) -> AdvisorChain:
        defaults = self._defaults
        if spec.advisors is defaults.advisors and spec.tool_calling == defaults.tool_calling:
            return self.chain if output is None else self._entity_chain(validate=output.validate)
        if output is not None:
            spec = with_output_advisors(spec, validate=output.validate)
        return build_chain(self._engine, spec)

    def _entity_chain(self, *, validate: bool) -> AdvisorChain:
        chain = self._entity_chains.get(validate)
        if chain is None:
            spec = with_output_advisors(self._defaults, validate=validate)
            chain = self._entity_chains[validate] = build_chain(self._engine, spec)
        return chain


def _refuse_words(spec: RequestSpec) -> None:
    """Refuse words that a resumed turn would ignore.

    Raises:
        UsageError: The request says more.
    """
    turn = spec.advisor_params[RESUME].pending
    said = spec.system.text or spec.written_system or spec.user.text or spec.user.media
    if said or len(spec.messages) > len(turn.messages):
        msg = (
            "a resumed turn has its own messages and would ignore those of .system(), .user() and"
            " .messages(); give a decision a message, or the request a Steering"
        )
        raise UsageError(msg)


def _refuse_another_conversation(spec: RequestSpec) -> None:
    """Refuse to resume a turn in another conversation than that which waits for it.

    Raises:
        UsageError: The request names another one.
    """
    own = spec.advisor_params[RESUME].pending.conversation_id
    named = spec.advisor_params.get(CONVERSATION_ID)
    if own is not None and named != str(own):
        msg = (
            f"the turn belongs to conversation {own!r} and would be remembered in {named!r}; leave"
            " out .conversation(...), or resume a turn of that conversation"
        )
        raise UsageError(msg)


def _refuse_no_loop(options: ChatOptions) -> None:
    """Refuse to resume a turn without a tool loop: its calls would be lost in silence.

    Raises:
        UsageError: The request runs no tools.
    """
    if options.internal_tool_execution_enabled is False:
        msg = (
            "a turn is resumed in the tool loop, and this request has none: leave out"
            " .tool_calling(False), or use manager.resume_tool_calls(...) in a loop of your own"
        )
        raise UsageError(msg)

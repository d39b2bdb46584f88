"""Keys of the request and response contexts that the tool loop shares with other advisors."""

PENDING_TURN = "pending_turn"
"""The key in a response's context of a turn that is suspended for approval, a `PendingTurn`."""

RESUMED_TURN = "resumed_turn"
"""The key in a request's context of a suspended turn and its decisions, a `ResumedTurn`."""

REFRESH_TOOLS = "refresh_tools"
"""The key in a request's context of a `RefreshTools`, if the request has tool providers that are
asked again in every round."""

TOOL_EXECUTIONS = "tool_executions"
"""The key in a response's context of everything the loop executed, a tuple of `ToolExecution`. An
advisor that calls the loop again, and shows it the rounds so far, passes it on in its request."""

USER_INPUT = "user_input"
"""The key in a request's context of a function that returns, and removes from its queue, the user
messages that arrived since its last call. The loop calls it after each round of tools; see
`Steering`."""

EARLIER_MESSAGES = "earlier_messages"
"""The key in a request's context of the messages of the turn that precede those of the prompt, a
tuple without system messages, inside a loop that sends no history. A memory inside sends them."""

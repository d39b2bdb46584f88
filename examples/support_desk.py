"""A support desk: customers ask, and refunds wait until somebody on the staff has approved them.

    python examples/support_desk.py ask ada "My kettle, order 1002, arrived broken. Refund it!"
    python examples/support_desk.py pending
    python examples/support_desk.py approve 1                   # or: deny 1 "Send a photo first."
    python examples/support_desk.py audit

Each command is a process of its own. Orders, conversations, waiting turns and the audit log are in
the SQLite file of SUPPORT_DB (default: support.db). CHATCLIENT_MODEL names another model.
"""

import getpass
import os
import sqlite3
import sys
from contextlib import closing

from chatclient import CallResponse, ChatClient, ChatModel, ToolContext, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.tools import (
    Decision,
    NextTool,
    ToolApproval,
    ToolCallingManager,
    ToolInvocation,
    ToolResult,
)

SYSTEM = """You are the support desk of a shop. Look up an order before you answer, and refund it on
request."""

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer, item, status, refund);
INSERT OR IGNORE INTO orders VALUES
    (1001, 'ada', 'a teapot for 24.90 EUR', 'on its way', NULL),
    (1002, 'ada', 'a kettle for 39.00 EUR', 'delivered', NULL),
    (1003, 'bob', 'a coffee mill for 59.50 EUR', 'delivered', NULL);
CREATE TABLE IF NOT EXISTS waiting (id INTEGER PRIMARY KEY AUTOINCREMENT, customer, calls, turn);
CREATE TABLE IF NOT EXISTS audit (at, customer, who, what);
"""


class SupportDesk:
    """The support desk, with its data in an SQLite file."""

    def __init__(self, path: str, model: ChatModel | str) -> None:
        # Each statement is a transaction, and tools may run in other threads.
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.executescript(TABLES)
        self.repository = SqlChatMemoryRepository(f"sqlite:///{path}")
        # `recorded` comes after the approval, so it sees only calls that really run.
        manager = ToolCallingManager(interceptors=[ToolApproval(), self.recorded])
        self.client = (
            ChatClient.builder(model)
            .default_system(SYSTEM)
            .default_tools(self.look_up_order, self.refund_order)
            .default_advisors(MessageChatMemoryAdvisor(MessageWindowChatMemory(self.repository)))
            .default_options(temperature=0.0)
            .tool_calling_manager(manager)
            .build()
        )

    def close(self) -> None:
        """Close the model and the database."""
        self.client.close()
        self.repository.close()
        self.db.close()

    @tool(effect="read")
    def look_up_order(self, number: int, context: ToolContext) -> str:
        """Look up an order of the customer: item, price and status."""
        query = "SELECT item, status FROM orders WHERE id = ? AND customer = ?"
        row = self.db.execute(query, (number, context.require("customer", str))).fetchone()
        return f"{row[0]}, {row[1]}" if row else "The customer has no such order."

    @tool
    def refund_order(self, number: int, context: ToolContext) -> str:
        """Refund an order of the customer."""
        update = """UPDATE orders SET status = 'refunded', refund = ? WHERE id = ? AND customer = ?
            AND (status = 'delivered' OR refund = ?)"""
        key = context.idempotency_key  # the same if the turn has to be resumed once more
        customer = context.require("customer", str)
        refunded = self.db.execute(update, (key, number, customer, key))
        return f"Order {number} is refunded." if refunded.rowcount else "It cannot be refunded."

    async def recorded(self, invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        """Run a tool, and record its result."""
        result = await call_next(invocation)
        call = f"{invocation.tool_call.name}({invocation.tool_call.arguments})"
        self.record(invocation.context.require("customer", str), "model", f"{call}: {result.text}")
        return result

    def record(self, customer: str, who: str, what: str) -> None:
        """Add a line to the audit log."""
        self.db.execute("INSERT INTO audit VALUES (datetime(), ?, ?, ?)", (customer, who, what))

    def ask(self, customer: str, text: str) -> str:
        """Return the answer to a customer, who is known from the login."""
        request = self.client.prompt(text).conversation(customer).tool_context(customer=customer)
        return self.answer_of(customer, request.call())

    def answer_of(self, customer: str, response: CallResponse) -> str:
        """Return the text of a response; if its turn waits for approval, store the turn."""
        turn = response.pending_turn()
        if turn is None:
            return response.content()
        calls = ", ".join(f"{call.name}({call.arguments})" for call in turn.to_decide().values())
        insert = "INSERT INTO waiting (customer, calls, turn) VALUES (?, ?, ?)"
        number = self.db.execute(insert, (customer, calls, turn.to_json())).lastrowid
        return f"A colleague has to approve this first (number {number})."

    def decide(self, number: str, decision: Decision) -> str:
        """Resume a turn that waits, which only one process can do, and return its answer."""
        delete = "DELETE FROM waiting WHERE id = ? RETURNING id, customer, calls, turn"
        if not (rows := self.db.execute(delete, (number,)).fetchall()):
            return f"Nothing waits under number {number}."
        _, customer, calls, stored = rows[0]
        verdict = "approves" if decision.approved else "denies"
        try:
            who = getpass.getuser()
            self.record(customer, who, f"{verdict} {calls} {decision.message}".rstrip())
            request = self.client.resume(stored, decision).tool_context(customer=customer)
            return self.answer_of(customer, request.call())
        except BaseException:  # if the model is down, for instance, the turn waits again
            self.db.execute("INSERT INTO waiting VALUES (?, ?, ?, ?)", rows[0])
            raise


def main(arguments: list[str], model: ChatModel | None = None) -> None:
    """Run one command."""
    path = os.environ.get("SUPPORT_DB", "support.db")
    with closing(SupportDesk(path, model or os.environ.get("CHATCLIENT_MODEL", "local"))) as desk:
        match arguments:
            case ["ask", customer, text]:
                print(desk.ask(customer, text))
            case ["approve" | "deny" as verdict, number, *message]:
                print(desk.decide(number, Decision(verdict == "approve", " ".join(message))))
            case ["pending"]:
                print(*desk.db.execute("SELECT id, customer, calls FROM waiting"), sep="\n")
            case ["audit"]:
                print(*desk.db.execute("SELECT * FROM audit"), sep="\n")
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

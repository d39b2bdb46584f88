"""Reads invoices out of mails: many requests at once, which continue where they were interrupted.

    python examples/batch_extraction.py                       # the mails in examples/invoices.jsonl
    python examples/batch_extraction.py mails/ results/       # a folder of text files

Writes records.jsonl, failures.jsonl and journal.jsonl to the second folder (default: extracted).
Interrupt it and start it again: what is in the journal is not asked again, and failures are. Delete
the journal when the texts, the type or the model have changed. CHATCLIENT_MODEL names a model.
"""

import json
import os
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Self

from pydantic import BaseModel, model_validator

from chatclient import ChatClient, ChatModel, Usage


class Item(BaseModel):
    """One line of an invoice."""

    quantity: int
    name: str
    unit_price: Decimal


class Invoice(BaseModel):
    """An invoice."""

    number: str
    supplier: str
    date: date
    items: list[Item]
    total: Decimal

    @model_validator(mode="after")
    def check_total(self) -> Self:
        """Reject an invoice whose items do not add up, whoever made the mistake."""
        computed = sum(item.quantity * item.unit_price for item in self.items)
        if computed != self.total:
            raise ValueError(f"the items add up to {computed}, and the total is {self.total}")
        return self


def read_texts(source: Path) -> dict[str, str]:
    """Return the texts of a folder of text files or a file of JSON lines, by their ids."""
    if source.is_dir():
        return {file.name: file.read_text("utf-8") for file in sorted(source.glob("*.txt"))}
    with source.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return {row["id"]: row["text"] for row in rows}


def cost_of(usage: Usage) -> str:
    """Return the cost as text; a question mark if the price of the model is unknown."""
    return "?" if usage.cost is None else str(usage.cost)


def main(arguments: list[str], model: ChatModel | None = None) -> int:
    """Extract the invoices, and return the number of failures."""
    source = Path(arguments[0]) if arguments else Path(__file__).with_name("invoices.jsonl")
    target = Path(arguments[1] if arguments[1:] else "extracted")
    target.mkdir(parents=True, exist_ok=True)
    client = (
        ChatClient.builder(model or os.environ.get("CHATCLIENT_MODEL", "local"))
        .default_system("Copy the invoice exactly as it is in the mail. Do not correct it.")
        .default_options(temperature=0.0, max_tokens=500)
        .build()
    )
    used = Usage()
    with (
        client,
        (target / "records.jsonl").open("w", encoding="utf-8") as records,
        (target / "failures.jsonl").open("w", encoding="utf-8") as failures,
    ):
        journal = target / "journal.jsonl"
        batch = client.batch(read_texts(source), Invoice, journal=journal, concurrency=4)
        for done, result in enumerate(batch, 1):
            print(f"{done} of {batch.progress.total}: {result.key}")
            usage = result.usage  # also that of answers that are no valid invoices
            used += usage
            row = {"id": result.key, "tokens": usage.total_tokens, "cost": cost_of(usage)}
            if result.value is None:
                print(json.dumps(row | {"error": str(result.error)}), file=failures)
            else:
                row["invoice"] = result.value.model_dump(mode="json")
                print(json.dumps(row), file=records)
    failed = batch.progress.failed
    print(f"{failed} failed. {used.total_tokens} tokens, cost: {cost_of(used)}")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))

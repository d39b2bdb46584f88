"""The command of workers: runs durable turns until it is stopped.

python -m chatclient worker app:clients --database postgresql://localhost/turns
"""

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chatclient._internal.text import printable
from chatclient.durable.client import DurableClient
from chatclient.durable.queues import APPLICATION, TurnQueue
from chatclient.errors import ChatClientError, UsageError

_SIGNAL_SECONDS = 1.0
_DATABASE = "CHATCLIENT_DURABLE_DATABASE"


def main(argv: Sequence[str]) -> int:
    """Run turns until SIGTERM or SIGINT, and return the exit status: 0, or 2 for wrong usage."""
    arguments = _parser().parse_args(argv)
    try:
        from chatclient.durable.launching import launch  # noqa: PLC0415 - an extra

        clients, queues = load(arguments.clients)
        if arguments.database is None:
            msg = f"give the database: --database URL, or the environment variable {_DATABASE}"
            raise UsageError(msg)
        engine = launch(
            arguments.database,
            queues=queues,
            listen=arguments.queue,
            application=arguments.application,
            version=arguments.version,
            takeover_seconds=arguments.takeover_seconds,
            reject_older=arguments.reject_older,
        )
    except (ChatClientError, ImportError, AttributeError) as error:
        print(printable(f"chatclient worker: {error}"), file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    names = ", ".join(sorted(client.name for client in clients))
    print(f"running turns of {names}; Ctrl-C stops", flush=True)
    while not stop.wait(_SIGNAL_SECONDS):  # on Windows, no signal ends a wait without a limit
        pass
    engine.close(arguments.drain_seconds)
    return 0


def load(name: str) -> tuple[list[DurableClient], list[TurnQueue]]:
    """Return the durable clients and queues that the object *name*, `module:object`, consists of.

    Raises:
        UsageError: There is no durable client in it.
    """
    module, _, path = name.partition(":")
    if not path:
        msg = f"give a durable client, or a collection of them, as MODULE:OBJECT, not {name!r}"
        raise UsageError(msg)
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules in the current directory, as with `python -m`
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    several = _members(found)
    clients = [each for each in several if isinstance(each, DurableClient)]
    queues = [each for each in several if isinstance(each, TurnQueue)]
    if not clients or len(clients) + len(queues) < len(several):
        msg = f"{name} must be a DurableClient, or a collection of them and of TurnQueues"
        raise UsageError(msg)
    return clients, queues


def _members(found: Any) -> list[Any]:
    if isinstance(found, Mapping):
        return [*found.values()]
    return [*found] if isinstance(found, Iterable) else [found]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("chatclient worker", description="Run durable turns.")
    parser.add_argument("clients", metavar="MODULE:OBJECT", help="the durable clients and queues")
    parser.add_argument(
        "--database",
        metavar="URL",
        default=os.environ.get(_DATABASE),
        help=f"PostgreSQL, or SQLite on one machine (default: ${_DATABASE})",
    )
    parser.add_argument(
        "--queue", action="append", help="take turns from this queue only; repeatable"
    )
    parser.add_argument(
        "--application",
        default=APPLICATION,
        help="the name of the application, if several share the database (default: %(default)s)",
    )
    parser.add_argument("--version", help="the version of the application")
    parser.add_argument(
        "--takeover-seconds",
        type=float,
        default=30.0,
        help="continue turns of workers that are silent for so long (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=30.0,
        help="wait for running turns at the end (default: %(default)s)",
    )
    parser.add_argument(
        "--reject-older",
        action="store_true",
        help="end turns of versions without workers with an error, instead of letting them wait",
    )
    return parser

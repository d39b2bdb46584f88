"""The commands of durable turns: a worker runs them, and an operator lists, continues or ends them.

python -m chatclient worker app:clients --database postgresql://localhost/turns
python -m chatclient turns --database postgresql://localhost/turns
"""

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chatclient._internal.text import printable, printable_line
from chatclient.durable.client import DurableClient
from chatclient.durable.health import age
from chatclient.durable.queues import APPLICATION, TurnQueue
from chatclient.errors import ChatClientError, UsageError

if TYPE_CHECKING:
    from chatclient.durable.engine import Engine

_SIGNAL_SECONDS = 1.0
_DATABASE = "CHATCLIENT_DURABLE_DATABASE"


def main(argv: Sequence[str]) -> int:
    """Run turns until SIGTERM or SIGINT, and return the exit status: 0, or 2 for wrong usage."""
    arguments = _parser().parse_args(argv)
    try:
        from chatclient.durable.launching import launch  # noqa: PLC0415 - an extra

        clients, queues = load(arguments.clients)
        engine = launch(
            checked_database(arguments.database),
            queues=queues,
            listen=arguments.queue,
            application=arguments.application,
            version=arguments.version,
            takeover_seconds=arguments.takeover_seconds,
            reject_older=arguments.reject_older,
            keep=None if arguments.keep is None else timedelta(days=arguments.keep),
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


def checked_database(url: str | None) -> str:
    """Return *url*.

    Raises:
        UsageError: None is given.
    """
    if url is None:
        msg = f"give the database: --database URL, or the environment variable {_DATABASE}"
        raise UsageError(msg)
    return url


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
    _add_database(parser)
    parser.add_argument(
        "--queue", action="append", help="take turns from this queue only; repeatable"
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
    parser.add_argument(
        "--keep", type=float, metavar="DAYS", help="delete turns so many days after their end"
    )
    return parser


def _add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database",
        metavar="URL",
        default=os.environ.get(_DATABASE),
        help=f"PostgreSQL, or SQLite on one machine (default: ${_DATABASE})",
    )
    parser.add_argument(
        "--application",
        default=APPLICATION,
        help="the name of the application, if several share the database (default: %(default)s)",
    )


def operate(argv: Sequence[str]) -> int:
    """List, continue or end turns, and return the exit status.

    It is 0, 1 if turns are stuck or one of those that were named cannot be continued, or 2 for
    wrong usage.
    """
    arguments = _turns_parser().parse_args(argv)
    try:
        from chatclient.durable.launching import connect  # noqa: PLC0415 - an extra

        with connect(checked_database(arguments.database), application=arguments.application) as to:
            if arguments.resume:
                return _resume(to, arguments.resume, arguments.version)
            for id in arguments.end or ():
                to.end(id, arguments.reason)
                print(printable(f"{id} ends"))
            return 0 if arguments.end else _list(to, arguments)
    except (ChatClientError, ImportError) as error:
        print(printable(f"chatclient turns: {error}"), file=sys.stderr)
        return 2


def _resume(engine: "Engine", ids: Sequence[str], version: str | None) -> int:
    continued = [engine.resume(id, version=version) for id in ids]
    for id, is_continued in zip(ids, continued, strict=True):
        what = "continues" if is_continued else "runs, waits for decisions, or has ended"
        print(printable(f"{id} {what}"))
    return 0 if all(continued) else 1


def _list(engine: "Engine", arguments: argparse.Namespace) -> int:
    health = engine.health()
    for state, count in health.turns.items():
        oldest = f", the oldest for {age(health.oldest[state])}" if count else ""
        print(f"{state:<12}{count:>8}{oldest}")
    print(f"{'processes':<12}{health.workers:>8}\n")
    least = timedelta(seconds=arguments.older_than)
    for each in engine.turns(*arguments.state or (), older_than=least, limit=arguments.limit):
        places = f"queue {each.queue}" if each.queue else "no queue"
        version = f", version {each.version}" if each.version else ""
        problem = f": {each.problem}" if each.problem else ""
        line = f"{each.state:<12}{age(each.seconds):>8}  {each.id}  ({places}{version}){problem}"
        print(printable_line(line))
    return 1 if health.stuck else 0


def _turns_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "chatclient turns",
        description="List the durable turns that have not ended, the oldest first; or continue or"
        " end some of them. The exit status is 1 if turns are stuck.",
    )
    _add_database(parser)
    parser.add_argument("--state", action="append", help="list turns in this state; repeatable")
    parser.add_argument(
        "--older-than",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="list turns that are in their state for so long",
    )
    parser.add_argument("--limit", type=int, default=100, help="list so many (default: 100)")
    parser.add_argument(
        "--continue",
        dest="resume",
        nargs="+",
        metavar="ID",
        help="let stuck or delayed turns continue now, and those that failed because processes"
        " ended",
    )
    parser.add_argument("--version", help="with --continue: the version that continues them")
    parser.add_argument(
        "--end", nargs="+", metavar="ID", help="cancel turns; stuck ones end without being undone"
    )
    parser.add_argument(
        "--reason", default="by an operator", help="with --end: for the error of stuck turns"
    )
    return parser

"""llama.cpp as a server on loopback, shared by all who ask for the same model.

It runs in a process of its own. Inside this one, loading a model would hold the interpreter's lock
(and so every event loop) for seconds, and a child made by `fork` could not even exit cleanly.
"""

import atexit
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Self

from chatclient.errors import ProviderError

_PROGRAM = Path(__file__).with_name("_llama_process.py")
_TEMPLATE = Path(__file__).with_name("qwen_tools.jinja")
_SHOWN = 1000  # characters of the engine's own words that an error repeats


class LlamaServerError(ProviderError):
    """The local model cannot be started."""


@dataclass(frozen=True, slots=True)
class _Settings:
    model_path: str
    n_ctx: int
    n_parallel: int
    n_threads: int | None
    chat_template: str = field(repr=False)
    verbose: bool


@dataclass(frozen=True, slots=True, eq=False)
class RunningServer:
    """A server that has loaded its model.

    Attributes:
        base_url: Where its API is, with the version.
        api_key: What it wants as a bearer token, so that only this process can use it.
    """

    base_url: str
    api_key: str = field(repr=False)
    _process: "subprocess.Popen[str]" = field(repr=False)
    _owner: int = field(default_factory=os.getpid, repr=False)

    @property
    def alive(self) -> bool:
        """Whether it still runs, and belongs to this process."""
        return self._owner == os.getpid() and self._process.poll() is None

    def stop(self) -> None:
        """End it, whatever it is doing; it has nothing to save."""
        if self._owner == os.getpid():
            _end(self._process)


class LlamaServer:
    """A llama.cpp server for one model file, started when first needed.

    All servers of one process with equal settings are one, which ends when the last of them is
    closed, and at the latest with this process. A forked child starts its own. Thread-safe.

    Args:
        model_path: The model, a GGUF file.
        n_ctx: How many tokens each conversation may have, prompt and answer together.
        n_parallel: How many requests are answered at once; more of them wait.
        n_threads: Threads to compute with; default: one for each core.
        chat_template: The Jinja template that makes text of messages; default: ChatML with tool
            calls that Qwen models of all sizes manage to write.
        verbose: Whether the engine's log goes to stderr.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 4096,
        n_parallel: int = 2,
        n_threads: int | None = None,
        chat_template: str | None = None,
        verbose: bool = False,
    ) -> None:
        if chat_template is None:
            chat_template = _TEMPLATE.read_text(encoding="utf-8")
        path = os.path.abspath(model_path)  # noqa: PTH100 - Path.resolve() would follow links
        self._settings = _Settings(path, n_ctx, n_parallel, n_threads, chat_template, verbose)
        self._user = object()

    def start(self) -> RunningServer:
        """Return the running server, after loading the model when nobody has yet.

        Blocks for as long as that takes; one that has died is started anew.

        Raises:
            LlamaServerError: The model or the engine is missing or does not work.
        """
        return _pool().start(self._settings, self._user)

    @property
    def base_url(self) -> str:
        """Where the server's API is; asking starts it, as `start` does."""
        return self.start().base_url

    def close(self) -> None:
        """Stop needing the server; it ends when nobody else does."""
        _pool().release(self._settings, self._user)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


# --- sharing --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Shared:
    users: set[object] = field(default_factory=set)
    running: RunningServer | None = None


class _Pool:
    """The servers of one process, and who needs them."""

    def __init__(self) -> None:
        # One lock for all: whoever asks for a model while another one loads waits for that, too.
        self._lock = threading.Lock()
        self._shared: dict[_Settings, _Shared] = {}

    def start(self, settings: _Settings, user: object) -> RunningServer:
        with self._lock:
            shared = self._shared.get(settings) or _Shared()
            if shared.running is not None and not shared.running.alive:
                shared.running.stop()  # it died: what is left are its pipes
                shared.running = None
            if shared.running is None:
                shared.running = _launch(settings)
            shared.users.add(user)
            self._shared[settings] = shared
            return shared.running

    def release(self, settings: _Settings, user: object) -> None:
        with self._lock:
            shared = self._shared.get(settings)
            if shared is None:
                return
            shared.users.discard(user)
            if shared.users:
                return
            del self._shared[settings]
        if shared.running is not None:
            shared.running.stop()

    def stop_all(self) -> None:
        with self._lock:
            everything, self._shared = self._shared, {}
        for shared in everything.values():
            if shared.running is not None:
                shared.running.stop()


# By process id: a forked child finds nothing here, neither its parent's servers nor a lock that
# one of its parent's threads happened to hold.
_pools: dict[int, _Pool] = {}


def _pool() -> _Pool:
    return _pools.get(os.getpid()) or _pools.setdefault(os.getpid(), _Pool())


def _stop_all() -> None:
    _pool().stop_all()


# --- the process ----------------------------------------------------------------------------


def _launch(settings: _Settings) -> RunningServer:
    _require_gguf(settings.model_path)
    if importlib.util.find_spec("xllamacpp") is None:
        msg = "The local model needs xllamacpp. Run: pip install 'chatclient[local]'"
        raise LlamaServerError(msg, provider="local")
    key = secrets.token_urlsafe(32)
    # On stdin, not among the arguments: those are for all users of the machine to see.
    order = json.dumps({**asdict(settings), "api_key": key, "sys_path": sys.path})
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if settings.verbose else log,
            encoding="utf-8",
        )
        try:
            url = _address_from(process, order)
        except BaseException:
            _end(process)
            raise
        if url is None:
            status = process.wait()
            _end(process)
            raise _failure(settings, status, log)
    atexit.register(_stop_all)  # a second registration finds nothing left to do
    return RunningServer(f"{url}/v1", key, process)


def _address_from(process: "subprocess.Popen[str]", order: str) -> str | None:
    """Return where the process serves, or None when it ended before it did."""
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:  # pragma: no cover - both are pipes
        return None
    try:
        stdin.write(order + "\n")
        stdin.flush()
    except BrokenPipeError:
        return None
    line = stdout.readline()
    if not line:
        return None
    url: str = json.loads(line)["url"]
    return url


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def _failure(settings: _Settings, status: int, log: IO[bytes]) -> LlamaServerError:
    log.seek(0)
    words = log.read().decode(errors="replace").strip()[-_SHOWN:]
    msg = (
        f"llama.cpp could not load {settings.model_path} (exit status {status}); "
        f"verbose=True shows its whole log. Its last words:\n{words}"
    )
    return LlamaServerError(msg, provider="local")


def _require_gguf(path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        msg = f"The model {path} cannot be read: {error}"
        raise LlamaServerError(msg, provider="local") from error
    if magic != b"GGUF":
        msg = (
            f"{path} is not a GGUF file: it begins with {magic!r}. llama.cpp reads no other format"
        )
        raise LlamaServerError(msg, provider="local")

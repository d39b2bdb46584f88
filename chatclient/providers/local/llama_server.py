"""Local llama.cpp servers, one per model and settings.

Each server is a separate process. In this process, loading a model would hold the GIL for seconds,
and forked children could not exit cleanly.
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

from chatclient.errors import MissingExtraError, ProviderError

_PROGRAM = Path(__file__).with_name("llama_process.py")
_TEMPLATE = Path(__file__).with_name("qwen_tools.jinja")
_MAX_SHOWN = 1000  # characters of the server's log in an error


class LlamaServerError(ProviderError):
    """The local model cannot be started."""


class LlamaMissingError(LlamaServerError, MissingExtraError):
    """llama.cpp is not installed."""


def llama_installed() -> bool:
    """Return whether llama.cpp is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


def require_llama() -> None:
    """Raise `LlamaMissingError` unless llama.cpp is installed."""
    if not llama_installed():
        msg = "the local model needs xllamacpp; pip install 'chatclient[local]'"
        raise LlamaMissingError(msg, provider="local")


@dataclass(frozen=True, slots=True)
class _Settings:
    model_path: str
    n_ctx: int
    n_parallel: int
    n_threads: int | None
    chat_template: str = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class RunningServer:
    """A server that has loaded its model.

    Attributes:
        base_url: URL of the API, with the version.
        api_key: Random bearer token, so that only this process can use the server.
    """

    base_url: str
    api_key: str = field(repr=False)
    _process: "subprocess.Popen[str]" = field(repr=False)
    _owner: int = field(default_factory=os.getpid, repr=False)

    @property
    def alive(self) -> bool:
        """Whether the server runs, and was started by this process."""
        return self._owner == os.getpid() and self._process.poll() is None

    def stop(self) -> None:
        """Kill the server process."""
        if self._owner == os.getpid():
            _kill(self._process)


class LlamaServer:
    """A llama.cpp server for one model file, started on first use.

    Objects with equal settings share one server process, which ends when the last of them is
    closed, or with this process. Forked children start their own. Thread-safe.

    The default template is ChatML with a format of tool calls that small Qwen models can write. For
    the other arguments, see `LocalChatModel`.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 4096,
        n_parallel: int = 2,
        n_threads: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        if chat_template is None:
            chat_template = _TEMPLATE.read_text(encoding="utf-8")
        path = os.path.abspath(model_path)  # noqa: PTH100 - Path.resolve() would follow links
        self._settings = _Settings(path, n_ctx, n_parallel, n_threads, chat_template)
        self._user = object()

    def start(self) -> RunningServer:
        """Start the server if it is not running, and return it when the model is loaded.

        Raises:
            LlamaServerError: The model or llama.cpp is missing, or does not work.
        """
        return _pool().start(self._settings, self._user)

    def close(self) -> None:
        """Release the server; it ends when it has no other users."""
        _pool().release(self._settings, self._user)


@dataclass(slots=True)
class _Shared:
    users: set[object] = field(default_factory=set)
    running: RunningServer | None = None


class _Pool:
    """The servers of this process and their users."""

    def __init__(self) -> None:
        # A single lock: models are loaded one after another.
        self._lock = threading.Lock()
        self._shared: dict[_Settings, _Shared] = {}

    def start(self, settings: _Settings, user: object) -> RunningServer:
        with self._lock:
            shared = self._shared.get(settings) or _Shared()
            if shared.running is not None and not shared.running.alive:
                shared.running.stop()  # closes the pipes
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
            stopped, self._shared = self._shared, {}
        for shared in stopped.values():
            if shared.running is not None:
                shared.running.stop()


# By process id, so that forked children use neither the parent's servers nor a lock that one of its
# threads may have held.
_pools: dict[int, _Pool] = {}


def _pool() -> _Pool:
    return _pools.get(os.getpid()) or _pools.setdefault(os.getpid(), _Pool())


def _stop_all() -> None:
    _pool().stop_all()


def _launch(settings: _Settings) -> RunningServer:
    try:
        with Path(settings.model_path).open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        msg = f"The model {settings.model_path} cannot be read: {error}"
        raise LlamaServerError(msg, provider="local") from error
    if magic != b"GGUF":
        msg = (
            f"{settings.model_path} is not a GGUF file: it begins with {magic!r}. llama.cpp"
            " reads no other format"
        )
        raise LlamaServerError(msg, provider="local")
    require_llama()
    key = secrets.token_urlsafe(32)
    # Passed on stdin, because other users of the machine can see command-line arguments.
    arguments = json.dumps({**asdict(settings), "api_key": key, "sys_path": sys.path})
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
        )
        try:
            url = _wait_for_url(process, arguments)
        except BaseException:
            _kill(process)
            raise
        if url is None:
            status = process.wait()
            _kill(process)
            log.seek(0)
            output = log.read().decode(errors="replace").strip()[-_MAX_SHOWN:]
            msg = (
                f"llama.cpp could not load {settings.model_path} (exit status {status}). "
                f"The end of its log:\n{output}"
            )
            raise LlamaServerError(msg, provider="local")
    atexit.register(_stop_all)
    return RunningServer(f"{url}/v1", key, process)


def _wait_for_url(process: "subprocess.Popen[str]", arguments: str) -> str | None:
    """Send *arguments*, and return the server's URL, or None if the process exits."""
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:  # pragma: no cover - both are pipes
        return None
    try:
        stdin.write(arguments + "\n")
        stdin.flush()
    except BrokenPipeError:
        return None
    line = stdout.readline()
    if not line:
        return None
    url: str = json.loads(line)["url"]
    return url


def _kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue

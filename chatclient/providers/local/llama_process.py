"""Program that runs a llama.cpp server; started by `llama_server`.

It does not import the library, to start faster. The first line on stdin contains the settings; the
first line on stdout is the server's URL, written when the model is loaded. The program ends when
stdin is closed, which happens whenever the parent process ends.
"""

import importlib
import json
import os
import signal
import sys
from typing import Any


def serve(settings: dict[str, Any]) -> Any:
    """Load the model and return the running server."""
    engine = importlib.import_module("xllamacpp")
    params = engine.CommonParams()
    params.model.path = settings["model_path"]
    params.n_ctx = settings["n_ctx"] * settings["n_parallel"]  # divided between the slots
    params.n_parallel = settings["n_parallel"]
    if settings["n_threads"] is not None:
        params.cpuparams.n_threads = settings["n_threads"]
        params.cpuparams_batch.n_threads = settings["n_threads"]
    params.chat_template = settings["chat_template"]
    params.use_jinja = True
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["api_key"]]
    params.ui = False
    params.endpoint_slots = False
    # Fitting to the devices' memory takes as long as loading the model, and may reduce n_ctx.
    params.fit_params = False
    params.cache_ram_mib = 256  # for prompts evicted from their slot; the default is 8 GB
    params.verbosity = 1
    return engine.Server(params)


def main() -> None:
    """Run the server until the parent process ends."""
    # Ctrl-C is sent to all processes of the foreground group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    sys.path.extend(path for path in settings["sys_path"] if path not in sys.path)
    # Native code may print to stdout; redirect that to stderr.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        server = serve(settings)
    except RuntimeError as error:
        sys.exit(f"xllamacpp: {error}")
    answer.write(json.dumps({"url": server.listening_address}) + "\n")
    answer.close()
    sys.stdin.read()
    os._exit(0)  # does not wait for running requests


if __name__ == "__main__":
    main()

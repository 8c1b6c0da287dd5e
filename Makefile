# `make demo` and `make test` need Python 3.11 with venv, git and gcc; they set .venv up by themselves.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PEERS := .venv-peers/.installed
AUDIT := .venv-audit/.installed
MUTATION := .venv-mutation/.installed
FRAMEWORKS := .venv-frameworks/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test coverage flaky mutation soak bench lint types layers docs docs-check screenshots audit clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## train on four ranks, one of them with a slow loader, and see the report
	$(BIN)/distprof launch --nproc-per-node 4 examples/slow_loader.py

test: lint types layers $(PEERS) ## everything that must hold before a change lands
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m "not soak and not timing"
	$(BIN)/pytest -m "timing and not soak"

# Tests that measure run without: what counts the lines makes them slower. Where a tracer looks on, Hydra takes it for a
# debugger and does not word its errors.
coverage: $(STAMP) $(PEERS) ## which lines of distprof the tests run, in every process; below 90% it fails
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses 2 --dist loadfile -m "not soak and not timing" \
	--deselect tests/unit/test_sweep_hydra.py::test_wrong_command_lines_launch_nothing_and_say_why
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# What depends on time: threads, sockets, signals and children that hang, and whatever measures. Launches are shared by a
# process's tests, so these begin anew in each round. `make flaky-threads FLAKY=tests/...` takes others.
FLAKY ?= $(patsubst %,tests/unit/test_%.py,cli_timeline doctor experiment_core experiment_trial probes recorder submit \
	window workers)
FLAKY_LAUNCHES := scenarios clocks experiments sweep training_cases frameworks launch
ROUNDS ?= 20
.PHONY: flaky-threads $(FLAKY_LAUNCHES:%=flaky-%)
flaky: flaky-threads $(FLAKY_LAUNCHES:%=flaky-%) ## repeat tests that depend on time, 20 times; two hours and a half
flaky-threads: $(STAMP)
	@mkdir -p benchmarks/flaky && echo 'make flaky-threads' > benchmarks/flaky/threads.txt
	$(BIN)/pytest $(FLAKY) -m "not soak" --count $(ROUNDS) --exitfirst --quiet --no-header >> benchmarks/flaky/threads.txt
$(FLAKY_LAUNCHES:%=flaky-%): flaky-%: $(STAMP)
	@mkdir -p benchmarks/flaky && echo 'make flaky-$*' > benchmarks/flaky/$*.txt
	for round in $$(seq $(ROUNDS)); do \
	echo "round $$round" >> benchmarks/flaky/$*.txt; \
	$(BIN)/pytest $(wildcard tests/$* tests/integration/test_$*.py) -m "timing and not soak" --quiet --no-header \
	>> benchmarks/flaky/$*.txt || failed=1; \
	done; exit $${failed:-0}

# docs/testing.md says which mutants survive, and why. There are 4,613 in all; what was done is kept in mutants/.
MUTATE ?=
mutation: $(STAMP) $(MUTATION) ## change the code of intervals, clocks, waits and lateness, and see which changes no test notices
	.venv-mutation/bin/mutmut run --max-children 2 $(if $(MUTATE),'$(MUTATE)')
	.venv-mutation/bin/mutmut results

# It runs the tests with what .venv holds.
$(MUTATION): constraints-mutation.txt $(STAMP)
	@$(PYTHON) -m venv --clear .venv-mutation
	.venv-mutation/bin/python -m pip install --quiet -r constraints-mutation.txt
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	> "$$(.venv-mutation/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/of_the_project.pth"
	@touch $@

# Campaigns, each of which leaves what it found in benchmarks/soak/CAMPAIGN.txt. `make soak CAMPAIGN=clocks` runs one.
CAMPAIGNS := clocks planted pairs healthy busy real experiments sweeps frameworks faults
soak_clocks := tests/scenarios/test_clocks.py
soak_planted := tests/scenarios/test_straggler_truth.py -k "planted or more_work"
soak_pairs := tests/scenarios/test_straggler_truth.py -k two_culprits
soak_healthy := tests/scenarios/test_straggler_truth.py -k healthy_worlds
soak_busy := tests/scenarios/test_straggler_truth.py -k busy_machine
soak_real := tests/scenarios/test_healthy_runs.py
soak_experiments := tests/integration/test_experiments.py
soak_sweeps := tests/integration/test_sweep.py
soak_frameworks := tests/integration/test_frameworks.py
soak_faults := tests/soak
CAMPAIGN ?= $(CAMPAIGNS)
soak: $(CAMPAIGN:%=soak-%) ## hold the results against the truth in many worlds; what it finds stands in benchmarks/soak/

.PHONY: $(CAMPAIGNS:%=soak-%)
$(CAMPAIGNS:%=soak-%): soak-%: $(STAMP)
	@mkdir -p benchmarks/soak && echo 'make soak CAMPAIGN=$*' > benchmarks/soak/$*.txt
	$(BIN)/pytest $(soak_$*) -m soak --quiet --no-header >> benchmarks/soak/$*.txt; \
	status=$$?; cat benchmarks/soak/$*.txt; exit $$status

soak-frameworks: $(FRAMEWORKS)

lint: $(STAMP) ## style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP) ## static types
	$(BIN)/mypy

layers: $(STAMP) ## who may import whom
	$(BIN)/lint-imports --no-logo

docs: $(STAMP) ## write the generated pages in docs/ anew
	$(BIN)/python tools/generate_docs.py

docs-check: $(STAMP) $(PEERS) ## run the commands that the documentation shows
	$(BIN)/python tools/docs_check.py

bench: $(STAMP) $(PEERS) ## the figures that README states; a quiet machine, half an hour
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/imports.py
	$(BIN)/python benchmarks/zones.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/again.py
	$(BIN)/python benchmarks/big.py

screenshots: $(STAMP) ## photograph the report page for docs/; this needs Chromium
	$(BIN)/python -m tools.screenshots

audit: $(AUDIT) ## check the pinned dependencies against vulnerability databases; fails where none can be reached
	.venv-audit/bin/python tools/audit.py .venv-audit/bin/pip-audit

$(AUDIT): constraints-audit.txt
	@$(PYTHON) -m venv --clear .venv-audit
	.venv-audit/bin/python -m pip install --quiet -r constraints-audit.txt
	@touch $@

# Peers that tests and benchmarks compare with bring many packages, so they have an environment of their own.
$(PEERS): constraints-peers.txt
	@$(PYTHON) -m venv --clear .venv-peers
	.venv-peers/bin/python -m pip install --quiet -r constraints-peers.txt
	@touch $@

# Frameworks bring many packages, too; distprof is installed beside them, so what the two need must fit together.
$(FRAMEWORKS): constraints-frameworks.txt pyproject.toml
	@$(PYTHON) -m venv --clear .venv-frameworks
	.venv-frameworks/bin/python -m pip install --quiet -c constraints-frameworks.txt accelerate lightning transformers -e .
	@touch $@

clean: ## remove .venv, caches and builds; recorded runs stay
	rm -rf .venv .venv-peers .venv-audit .venv-mutation mutants .venv-frameworks build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# A folder that cannot run pip is what an interrupted or moved installation leaves: it is made anew.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	|| { echo "distprof is tested with Python 3.11 only, and '$(PYTHON)' is not that: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv \
	|| { echo "'$(PYTHON) -m venv' failed. On Debian: apt-get install python3-venv" >&2; rm -rf .venv; exit 1; }
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# One runner: what people and CI call. `make help` lists it.

VENV   ?= .venv
PYTHON ?= python3
PY     := $(VENV)/bin/python
CARGO  ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# `release` links all crates as one unit; `fast` is a profile that is quick to build, for the demo.
FAST    := $(TARGET)/fast/ramekin
RELEASE := $(TARGET)/release/ramekin
DEMO_DIR  ?= .demo
BENCH_DIR ?= .bench

export RAMEKIN_BIN := $(abspath $(RELEASE))
demo demo-versions: export RAMEKIN_BIN := $(abspath $(FAST))
export BENCH_DIR

.PHONY: help build build-fast demo demo-server demo-vectors demo-versions test check bench bench-small fmt floors lints sim-small clean-demo

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the server as it is released, as target/release/ramekin
	$(CARGO) build --release --locked -p ramekin-server

build-fast: ## the server in a fraction of the time and a little slower, as target/fast/ramekin
	$(CARGO) build --profile fast --locked -p ramekin-server

# The text that is read lies in the cargo registry, so that is filled first; then compiler and reader work side by side.
demo: ## index real text under 128 MiB and ask it; QUERY="..." asks one's own
	@$(CARGO) fetch --locked --quiet --target $$(rustc -vV | sed -n 's/^host: //p') || true
	@$(MAKE) --no-print-directory -j2 demo-server demo-vectors
	@$(PY) demo/run.py --data $(DEMO_DIR) $(if $(QUERY),--query "$(QUERY)")

demo-versions: demo-server $(VENV)/demo.stamp ## 1,000,000 keys in etcd's door under 64 MiB: watched, compacted, killed and found again
	@$(PY) demo/versions.py --data $(DEMO_DIR)/versions

demo-server:
	@$(CARGO) build --profile fast --locked --quiet -p ramekin-server && echo "build: the server is compiled"

demo-vectors: $(VENV)/demo.stamp
	@test -e $(DEMO_DIR)/prepared.json || $(PY) demo/run.py --data $(DEMO_DIR) --prepare

# No test depends on time, so both kinds run side by side once everything is compiled; what the second one says is shown at its end.
define TESTS_SIDE_BY_SIDE
( $(PY) -m pytest -q tests > $(TARGET)/pytest.log 2>&1 & asked=$$!; \
	$(CARGO) test --workspace --locked; ran=$$?; wait $$asked; answered=$$?; cat $(TARGET)/pytest.log; \
	[ $$ran = 0 ] && [ $$answered = 0 ] )
endef

test: build $(VENV)/test.stamp ## Rust tests, and end-to-end tests with qdrant-client
	$(CARGO) test --workspace --locked --no-run
	$(TESTS_SIDE_BY_SIDE)

# A step of the gate and the minutes that it took: $(call step,name,command).
step = @start=$$(date +%s); $(2); status=$$?; \
	echo "make check: $(1) took $$(( ($$(date +%s) - start) / 60 )) min $$(( ($$(date +%s) - start) % 60 )) s"; exit $$status

# What is tested is what is released: the least budget depends on the size of the code. Both binaries are linked as one unit
# each, which keeps one core busy for minutes: the lints have the other one meanwhile.
define BUILD_BESIDE_LINTS
( $(CARGO) build --release --locked -p ramekin-server -p ramekin-sim & built=$$!; \
	$(MAKE) lints; lints=$$?; wait $$built && exit $$lints )
endef

check: ## the whole gate: format, lints, floors, tests, simulator, small benches
	$(call step,format,$(CARGO) fmt --all --check)
	$(call step,lints and the release build,$(BUILD_BESIDE_LINTS))
	$(call step,floors,$(MAKE) floors)
	$(call step,tests,$(MAKE) test)
	$(call step,the simulator,$(MAKE) sim-small)
	$(call step,the small benches,$(MAKE) bench-small)
	@echo "make check: passed"

floors: $(VENV)/test.stamp ## crates use only crates on lower floors
	$(PY) -m pytest -q tests/test_floors.py

lints: ## clippy, every warning an error
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

SIM_SEEDS ?= 300
sim-small: ## the store on a simulated disk, a small number of seeds
	$(CARGO) run --release --locked -p ramekin-sim -- --seeds $(SIM_SEEDS)

bench-small: build $(VENV)/test.stamp ## every row of the bench in small
	$(PY) bench/rows.py --small

bench: build $(VENV)/bench.stamp ## every row in full; the first run builds the data sets
	$(PY) bench/rows.py

fmt: ## format the Rust code
	$(CARGO) fmt --all

clean-demo: ## forget the demo's data
	rm -rf $(DEMO_DIR)

# A virtual environment with pinned packages; each stamp stands for one requirements file installed.
$(VENV)/%.stamp: requirements/%.txt requirements/pins.txt requirements/demo.txt requirements/test.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "Python's venv is missing: on Debian, apt-get install python3-venv"; exit 1; }
	$(PY) -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

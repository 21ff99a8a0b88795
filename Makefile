# Every target does its own set-up: `git clone ... && make demo` is enough.
#   make demo                      CPU or GPU, torch from the configured registry
#   make demo SYSTEM_TORCH=1       use the torch (>= 2.9) that PYTHON already has, install none
#   make demo TORCH=torch==2.11.0  another torch
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
SYSTEM_TORCH ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCKED := install --quiet --require-hashes --no-deps --only-binary=:all:

define FIND_TORCH
import importlib.util, pathlib, sys
found = importlib.util.find_spec("torch")
sys.exit("SYSTEM_TORCH=1, but this Python has no torch: " + sys.executable) if found is None else print(pathlib.Path(found.origin).parents[1])
endef

define CHECK_TORCH
import sys, torch
old = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9)
sys.exit("strobe needs torch 2.9 or newer, found " + torch.__version__) if old else print("strobe is ready in $(VENV) with torch", torch.__version__)
endef

export FIND_TORCH CHECK_TORCH

.PHONY: setup demo serve test test-all hunt layouts faults junk transport mutants fuzz docs-check-full ready layers rooms train-shapes lint type bench docs pictures lock clean test-gpu gpu-row

setup: $(READY)

$(READY): pyproject.toml requirements/dev.lock requirements/torch.lock
	$(PYTHON) -c 'import sys; sys.exit("strobe needs Python 3.11 or newer: make setup PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(LOCKED) -r requirements/torch.lock -r requirements/dev.lock
ifdef SYSTEM_TORCH
	$(PYTHON) -c "$$FIND_TORCH" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/system_torch.pth"
else
	$(PIP) install '$(TORCH)'
endif
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -c "$$CHECK_TORCH"
	@touch $@

demo: setup
	$(BIN)/strobe demo

serve: setup
	$(BIN)/strobe serve

# A CPU build of torch brings no Triton; the kernels' tests run in its interpreter. Tests start hundreds of processes, each of which
# would compile the package again where the environment forbids Python to keep its bytecode. The first of two tiers: see `test-all`.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile
test: setup
	$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) $(LOCKED) -r requirements/triton.lock
	$(PYTEST)

# The first tier and then what it leaves out; `make test test-all` runs each test once. tests/support/tiers.py says which tests
# those are.
test-all: test
	$(PYTEST) --tier rest

# Every test that needs a GPU, on one card in 8 minutes; the last line says what came of it, `make gpu-row` adds it to the table.
# NO_SETUP=1 runs with PYTHON as it is, GPU="--gates all --budget 3000" every case of the gates of attention.
GPU ?=
ROW ?= build/gpu/row.json
NO_SETUP ?=
TESTED_BY := $(if $(NO_SETUP),$(PYTHON),$(BIN)/python)
test-gpu: $(if $(NO_SETUP),,setup)
	$(if $(NO_SETUP),,$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) $(LOCKED) -r requirements/triton.lock)
	PYTHONPATH=tests/support $(TESTED_BY) tools/gpu_suite.py $(GPU)

gpu-row:
	PYTHONPATH=tests/support $(TESTED_BY) tools/gpu_runs.py add $(ROW)

# Property tests on new random examples, 5,000 each, until one fails, and every kernel compiled for every card (an hour).
hunt: setup
	HYPOTHESIS_PROFILE=hunt $(BIN)/python -m pytest --tier all $$(grep -rlE '@given|run_state_machine_as_test' tests) tests/attention/sparse/test_compiled_ahead.py

# Tree attention on 2,000 random layouts and video-sparse attention on 1,000, in processes that send over gloo (half an hour).
layouts: setup
	PYTHONPATH=tests/support $(BIN)/python tools/random_layouts.py
	PYTHONPATH=tests/support $(BIN)/python tools/random_layouts.py --kind sparse --layouts 1000

# kill -9, full disks, damaged and hostile files: tries them all and writes its table of docs/testing.md (about 10 minutes).
# KINDS="'kill -9' 'damaged records'" tries some.
faults: setup
	PYTHONPATH=tests/support $(BIN)/python tools/faults.py $(KINDS)

# A real `strobe serve` among 200 sockets that send 10,000 messages of junk, and over 1,000 sessions: deadlines, memory, file handles.
junk: setup
	PYTHONPATH=tests/support $(BIN)/python tools/measure_junk.py

# How long a picture takes from the encoder to a browser's pixels, on loopback and over a slow line, and ten minutes of the page itself.
transport: setup
	PYTHONPATH=tests/support $(BIN)/python tools/measure_transport.py

# Wrong lines that tests should notice: NUMBER of those that have not run, drawn by SEED; results add up in tests/mutants/results.jsonl.
# TIER=first runs those against the tests of `make test` alone.
TIER ?= all
SEED ?= 0
NUMBER ?= 40
mutants: setup
	$(BIN)/python tools/mutants.py run --tier $(TIER) --seed $(SEED) --number $(NUMBER)

# Readers of foreign files on damaged input for TIME seconds; what fails is kept in fuzz-findings/. One target: FUZZ="--target traces".
TIME ?= 600
FUZZ ?=
fuzz: setup
	PYTHONPATH=tests/support $(BIN)/python tools/run_fuzz.py --seconds $(TIME) $(FUZZ)

# Every command and snippet of the README and docs, those marked slow or gpu too (an hour on two cores); counts in docs/testing.md.
docs-check-full: setup
	PYTHONPATH=tests/support $(BIN)/python tools/check_all.py

# How soon a Wan model is ready to stream from its files, and the main memory that it takes: WEIGHTS names a folder for drawn ones.
WEIGHTS ?= build/weights
ready: setup
	$(BIN)/python tools/measure_ready.py $(WEIGHTS)

# Host time of a layer of diffusers, dense and sparse, compiled and not. KIND=cuda measures it on a GPU.
KIND ?= cpu
layers: setup
	PYTHONPATH=tests/support $(BIN)/python tools/host_of_a_layer.py $(KIND)

# Sizes of the house: lines, nouns, flags, words, tests, the tracked tree; OTHER names a second checkout to stand before it.
OTHER ?=
rooms: setup
	$(BIN)/python tools/rooms.py $(OTHER) $(if $(OTHER),.)

# The bundled model again, from random weights: at most 25 minutes on one H200; a second call goes on. SCALE=0.1 is a trial.
OUT ?= build/shapes-weights
SCALE ?= 1
train-shapes: setup
	PYTHONPATH=tools $(BIN)/python -m train_shapes --out $(OUT) --scale $(SCALE)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

type: setup
	$(BIN)/mypy

bench: setup
	$(BIN)/strobe compare baseline quality balanced turbo

# The generated pages, then the site in site/, strictly: a link that leads nowhere is an error. Open site/index.html.
docs: setup
	$(PIP) $(LOCKED) -r requirements/docs.lock
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The pictures of the README and the tutorials again, from real runs in Chromium (minutes). PICTURES="demo live" makes some.
PICTURES ?=
pictures: setup
	$(BIN)/python docs/pictures.py $(PICTURES)

define WITHOUT_DEV
import pathlib, re, sys
dev, own = (re.split(r"\n(?=\S)", pathlib.Path(path).read_text().rstrip()) for path in ("requirements/dev.lock", sys.argv[1]))
pathlib.Path(sys.argv[1]).write_text("\n".join(entry for entry in own if entry not in dev) + "\n")
endef

export WITHOUT_DEV

# Locks again from pyproject.toml and requirements/torch.in; pins that still fit stay. UPGRADE=--upgrade moves them all. That of
# the docs is installed beside dev.lock and holds what it has not.
UPGRADE ?=
COMPILE = build/lock/bin/uv pip compile --quiet $(UPGRADE) --python-version 3.11 --python-platform linux --generate-hashes \
	--no-header --no-annotate --override requirements/no-torch.override
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip --disable-pip-version-check --quiet install uv
	$(COMPILE) requirements/torch.in -o requirements/torch.lock
	$(COMPILE) requirements/triton.in -o requirements/triton.lock
	$(COMPILE) pyproject.toml -o requirements/runtime.lock
	$(COMPILE) pyproject.toml --extra serve --extra hub -o requirements/serve.lock
	$(COMPILE) pyproject.toml --group dev -o requirements/dev.lock
	$(COMPILE) --group pyproject.toml:docs --constraint requirements/dev.lock -o requirements/docs.lock
	$(PYTHON) -c "$$WITHOUT_DEV" requirements/docs.lock

clean:
	rm -rf $(VENV) build dist demo-out site

# Needs Python 3.11+, make and, but for Python 3.12 on Linux, g++; `make setup` installs everything else into .venv.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: setup demo test test-slow test-fast test-joeynmt test-newest wheels fuzz fuzz-guided lint bench results docs notebook

EXTRAS := fairseq,syntax,syntax-benepar,metrics,bert,chinese,slurm,plots,completion,export,tracking,docs,dev

setup: .venv/.done

# fairseq-fixed needs torch while it is built; in an isolated build it would download a second one. Its only wheel is for
# Python 3.12 on Linux, x86-64.
BUILT := sys.version_info[:2] != (3, 12) or os.uname()[::4] != ("Linux", "x86_64")
NO_COMPILER = no C++ compiler: install g++, which compiles fairseq for this Python, or take Python 3.12 on Linux, for \
which fairseq has a wheel: make setup PYTHON=python3.12
PLATLIB := -c 'import sysconfig; print(sysconfig.get_path("platlib"))'
FOR_NEW_PYTHON = sed -i.old -f scripts/python-3.14.sed "$$($(1) $(PLATLIB))/fairseq/dataclass/utils.py"
.venv/.done: constraints.txt pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	@command -v $${CXX:-g++} >/dev/null || $(PYTHON) -c 'import os, sys; sys.exit("error: $(NO_COMPILER)" if $(BUILT) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "== 1 of 3: torch"
	$(BIN)/python -m pip install -q -c constraints.txt torch numpy cython setuptools wheel
	@echo "== 2 of 3: fairseq, compiled here where it has no wheel"
	env -u CUDA_HOME $(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation fairseq-fixed
	$(call FOR_NEW_PYTHON,$(BIN)/python)
	@echo "== 3 of 3: this package and its extras"
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@
	@echo "ready: source .venv/bin/activate; fairseq-diverse doctor"

# The main job on the embedded corpus; SYSTEMS=baseline,disagreement,... names rows of configs/tables/toy.yaml.
DEMO_FLAGS = $(SYSTEMS:%=--rows %) $(SIZE:%=--size %) $(UPDATES:%=--updates %) $(SENTENCES:%=--sentences %) $(DEMO:%=--out %)
demo: setup
	fairseq-diverse demo $(DEMO_FLAGS)

# Everything but the tests that need a GPU or are marked slow (`make test-slow`).
test: setup
	$(BIN)/python -m pytest -q -m 'not gpu and not slow' -n 2 --dist loadfile --no-loadscope-reorder --durations 10

test-slow: setup
	$(BIN)/python -m pytest -q -m 'slow and not gpu' -n 2

test-fast: setup
	$(BIN)/python -m pytest -q -m 'not slow' tests/unit tests/model -n 2

# The tests with the newest versions of all libraries that pip finds, in an environment of its own.
test-newest: .venv-newest/.done
	PATH="$(CURDIR)/.venv-newest/bin:$$PATH" .venv-newest/bin/python -m pytest -q -m 'not gpu and not slow' -n 2 --dist loadfile --no-loadscope-reorder

.venv-newest/.done: pyproject.toml setup.py
	test -x .venv-newest/bin/python || $(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install -q --upgrade torch numpy cython setuptools wheel
	env -u CUDA_HOME .venv-newest/bin/python -m pip install -q --no-build-isolation fairseq-fixed
	$(call FOR_NEW_PYTHON,.venv-newest/bin/python)
	.venv-newest/bin/python -m pip install -q --upgrade --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

# The mechanisms in JoeyNMT, in an environment of its own: it needs older packages and one that it does not name.
test-joeynmt: .venv-joeynmt/.done
	PYTHONPATH=$(CURDIR) OMP_NUM_THREADS=2 .venv-joeynmt/bin/python -m pytest -q -s -p no:cacheprovider examples/joey_nmt

.venv-joeynmt/.done:
	test -x .venv-joeynmt/bin/python || $(PYTHON) -m venv .venv-joeynmt
	.venv-joeynmt/bin/python -m pip install -q "$$(grep ^torch== constraints.txt)" 'joeynmt==2.3.*' importlib_metadata
	touch $@

# Wheels of fairseq-fixed for the Pythons found, so that users need no compiler (docs/host.md)
WHEELS ?= wheels
wheels:
	scripts/wheels.sh $(WHEELS)

# The fuzz tests of `make test` for TIMES as long (20 minutes), or for SECONDS each with input guided by coverage.
TIMES ?= 40
SECONDS ?= 60
fuzz: setup
	FAIRSEQ_DIVERSE_FUZZ=$(TIMES) $(BIN)/python -m pytest -q tests/fuzz -n 2 -o timeout=0

fuzz-guided: setup
	$(BIN)/python -m pip install -q -c constraints.txt atheris
	$(BIN)/python -m tests.fuzz.guided $(SECONDS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# ARGS='--only disagreement --save NAME' for a part, see benchmarks/README.md
bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

# The tables of README.md, docs/ and results/, from the summaries in results/
results: setup
	$(BIN)/fairseq-diverse report --refresh README.md docs/comparison.md docs/demo.md results/comparison/README.md results/earlier.md results/nlu-small.md results/nlu-small-t5.md results/rationales.md results/cifar10.md

# The docs site in build/site, which needs no server but for its search: `.venv/bin/zensical serve`
docs: setup
	$(BIN)/python scripts/docs_site.py
	$(BIN)/zensical build --strict
	@echo "open build/site/index.html"

# The notebook with what its cells show, after a change
notebook: setup
	$(BIN)/python -m pip install -q -c constraints.txt nbconvert ipykernel
	$(BIN)/jupyter nbconvert --execute --inplace --coalesce-streams --ExecutePreprocessor.record_timing=False docs/tutorial.ipynb

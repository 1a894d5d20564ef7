# Everything that a person calls. The work is done by scripts/ and by `python -m nanovllm_edu`, which also run
# where there is no make.
#
#   make lab      set up, then open JupyterLab on your own copy of lab 00 (in my_labs/)
#   make test     set up, then run all tests          make quick   the tests that take seconds
#   make install  set up only                         make check   style
#   make doctor   what is here and what is missing    make labs    write labs/*.ipynb from labs/src/*.py
#
# PYTHON=python3.12        the Python to set up with        TORCH=torch==2.14.1  another build of PyTorch
# ARGS="…"                 passed on, to JupyterLab or pytest NO_BROWSER=1         open no browser window

# The first of these that is new enough. Where none is, scripts/install.py says so.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1 \
	&& { echo "$$p"; exit; }; done; echo python3)
endif
RUN := .venv/bin/python
export TORCH NO_BROWSER

.PHONY: lab install install-test test quick check labs doctor python

lab: install
	@$(RUN) -m nanovllm_edu start my_labs $(if $(ARGS),-- $(ARGS))

install: python
	@"$(PYTHON)" scripts/install.py

install-test: python
	@"$(PYTHON)" scripts/install.py --test

test: install-test
	@$(RUN) scripts/run_tests.py $(ARGS)

quick: install-test
	@$(RUN) scripts/run_tests.py --quick $(ARGS)

check: install-test
	@$(RUN) -m ruff check .

labs: install-test
	@$(RUN) scripts/build_labs.py

doctor: install
	@$(RUN) -m nanovllm_edu doctor

# Without any Python there is nothing that could say so but this.
python:
	@command -v "$(PYTHON)" >/dev/null || { \
	echo "Python is missing: $(PYTHON) was not found. Install Python 3.11 to 3.14 (Debian and Ubuntu:" \
	"sudo apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3 install" >&2; exit 1; }

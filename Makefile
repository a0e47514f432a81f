# `make demo` and `make test` set themselves up in .venv on first use; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
DEMO := data/demo
DEMO_RUN := checkpoints/demo
DEMO_TRAIN ?= 1500
DEMO_VAL ?= 200
DEMO_FLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup test lint demo clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(VENV)/ready  ## create .venv and install posenet into it

$(VENV)/ready: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@$(RUN) -c 'import cv2' 2>/dev/null || { \
		echo "OpenCV's system libraries (libGL, libglib, libxcb) are missing: installing opencv-python-headless instead"; \
		$(RUN) -m pip uninstall --quiet --yes opencv-python && \
		$(RUN) -m pip install --quiet --constraint constraints.txt --force-reinstall --no-deps opencv-python-headless && \
		$(RUN) -c 'import cv2'; }
	@touch $@

test: $(VENV)/ready  ## run the tests
	$(RUN) -m pytest

lint: $(VENV)/ready  ## check the style
	$(RUN) -m flake8 posenet tools tests

clean:  ## remove what the demo made
	rm -rf $(DEMO) $(DEMO_RUN)

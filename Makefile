# Every target installs what it needs into .venv on first use; `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
RUN := $(VENV)/bin/python

# Tests often wait for other processes: three at a time keep two cores busy.
WORKERS := 3
TESTS := tests

MATRIX := .matrix
PY312 := python3.12
PY313 := python3.13
ONLY := *
TIERS := test test-slow

DEMO := data/demo
DEMO_RUN := checkpoints/demo
DEMO_TRAIN := 2000
DEMO_VAL := 200
DEMO_FLAGS :=
GPU_TABLES := checkpoints/gpu

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup test test-slow matrix torture cluster gpu wheel lint format demo clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(VENV)/ready  ## create .venv and install posenet and the development tools into it

$(VENV)/ready: setup.cfg pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[test,dev]'
	@$(RUN) -c 'import cv2' 2>/dev/null || { \
		echo "OpenCV's system libraries (libGL, libglib, libxcb) are missing: installing opencv-python-headless instead"; \
		$(RUN) -m pip uninstall --quiet --yes opencv-python && \
		$(RUN) -m pip install --quiet --constraint $(CONSTRAINTS) --no-deps opencv-python-headless && \
		$(RUN) -c 'import cv2'; }
	@touch $@

test: $(VENV)/ready  ## run the tests in three processes; with more cores: make test WORKERS=8
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

test-slow: $(VENV)/ready  ## run the tests that start processes or a browser, compile or run the examples of the pages: some minutes
	OMP_NUM_THREADS=1 $(RUN) -m pytest -m slow -n auto --maxprocesses 4 --dist loadfile

matrix:  ## run both tiers as other processors, with other Pythons, the oldest and the newest packages: takes hours
	$(PYTHON) .ci/matrix.py --folder $(MATRIX) --only '$(ONLY)' --tiers '$(TIERS)' \
		--pythons $(PYTHON) $(PY312) $(PY313)

torture: $(VENV)/ready  ## kill processes, fill disks and damage files many times: takes many minutes
	$(RUN) -m pytest -m torture

cluster: $(VENV)/ready  ## train on a SLURM cluster of three hosts on this machine: needs root, slurm-wlm, munge and iproute2
	$(RUN) -m pytest -m cluster -rs tests/cluster

gpu: $(VENV)/ready  ## needs a GPU: run the device suite, then measure everything; 45 minutes; LSP=FOLDER names photographs
	$(RUN) tools/benchmark.py gpu --output $(GPU_TABLES) $(if $(LSP),--lsp $(LSP))

wheel: $(VENV)/ready  ## build a wheel, install it without the checkout, and run posenet from another folder
	.ci/wheel

lint: $(VENV)/ready  ## check style, format, types, and which modules may import which
	$(RUN) -m ruff check
	$(RUN) -m ruff check --preview --select unspecified-encoding,import-private-name posenet
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo

format: $(VENV)/ready  ## format the code and apply safe style fixes
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

demo: $(DEMO)/train.h5 $(DEMO)/val.h5  ## draw people, train on them, predict and evaluate: takes some minutes
	@echo "== Training; Ctrl-C saves a checkpoint, and the next make demo resumes from it"
	$(RUN) tools/train.py --config config/demo.toml --resume --checkpoint-path $(DEMO_RUN) $(DEMO_FLAGS) \
		--set data.train=$(DEMO)/train.h5 data.val=$(DEMO)/val.h5
	@echo "== Drawing the people found in images that were not trained on"
	$(RUN) tools/predict.py --checkpoint $(DEMO_RUN)/last.pth '$(DEMO)/coco/val2017/*[05].jpg' \
		--output $(DEMO_RUN)/drawn --json $(DEMO_RUN)/drawn.json --overwrite
	@echo "== Evaluating on all $(DEMO_VAL) held-out images"
	$(RUN) tools/evaluate.py --checkpoint $(DEMO_RUN)/last.pth --images $(DEMO)/coco/val2017 \
		--annotations $(DEMO)/coco/annotations/person_keypoints_val2017.json \
		--output $(DEMO_RUN)/results.json --report $(DEMO_RUN)/report --overwrite > $(DEMO_RUN)/scores.txt
	@cat $(DEMO_RUN)/scores.txt
	@echo
	@echo "Done: AP $$(awk 'found {print $$1; exit} $$1 == "AP" {found = 1}' $(DEMO_RUN)/scores.txt) on $(DEMO_VAL)" \
		"images that were not trained on. Results:"
	@echo "  $(DEMO_RUN)/drawn/        people found in some of them"
	@echo "  $(DEMO_RUN)/curves.png    the losses and scores of the training; log.txt has them as text"
	@echo "  $(DEMO_RUN)/scores.txt    the scores above"
	@echo "  $(DEMO_RUN)/results.json  all people found, in COCO's results format"
	@echo "  $(DEMO_RUN)/report/       what costs the AP: open report.html in a browser"

$(DEMO)/coco/annotations/person_keypoints_val2017.json: | $(VENV)/ready
	@echo "== Drawing $(DEMO_TRAIN) images to train on and $(DEMO_VAL) to evaluate on"
	rm -rf $(DEMO)/coco
	$(RUN) tools/make_synthetic.py --output $(DEMO)/coco --train $(DEMO_TRAIN) --val $(DEMO_VAL) --seed 1

$(DEMO)/%.h5: $(DEMO)/coco/annotations/person_keypoints_val2017.json
	@echo "== Building the store $@"
	$(RUN) tools/build_hdf5.py --images $(DEMO)/coco/$*2017 \
		--annotations $(DEMO)/coco/annotations/person_keypoints_$*2017.json --output $@ --overwrite

clean:  ## remove the files of the demo
	rm -rf $(DEMO) $(DEMO_RUN)

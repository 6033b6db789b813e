# Each target makes the environment itself when it is missing, and installs what it needs.
#   VENV      where the virtual environment lives; a linked one is used as it is
#   PYTHON    the interpreter it is made from (3.11 or newer)
#   PIP_ARGS  extra arguments for pip, for example PyTorch's CPU wheels:
#             make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#   MMATTN_BUILD_OPS  what to compile of the operators: cpu, cuda, 1 (both if possible), or 0
VENV ?= .venv
PYTHON ?= python3
PIP_ARGS ?=
MMATTN_BUILD_OPS ?= cpu

BIN := $(VENV)/bin
BENCH := docs/benchmarks
PROGRAMS := $(VENV)/.installed-programs
ALL := $(VENV)/.installed-all
LIBRARY := mmattn/ops/_extension.so

.NOTPARALLEL:
.PHONY: help env demo demo-seg demo-masks test test-all docs lint bench bench-cpu \
	bench-avx512 wheel clean
.DELETE_ON_ERROR:

help:
	@echo "make env         make .venv, and compile the CPU operators if there is a C++ compiler"
	@echo "make demo        train, evaluate and draw Mask R-CNN + IViT on HeLa cell nuclei"
	@echo "make demo-seg    the same for UperNet + IViT on scenes of clothes"
	@echo "make demo-masks  search which heads of MaiT to mask, in three trainings"
	@echo "make test        run the fast tests; test-all: the slow ones too"
	@echo "make bench       time the operators and models beside their peers, on the CPU"
	@echo "make docs        build the documentation, build/docs/index.html, and run its tutorials"
	@echo "make wheel       build dist/*.whl: one with the compiled CPU operators, one of Python"
	@echo "make lint        check style, spelling and docstrings"

env: $(ALL) $(LIBRARY)

$(PROGRAMS): EXTRAS := mm
$(ALL): EXTRAS := mm,export,openvino,predict,web,tests,docs

$(PROGRAMS) $(ALL): pyproject.toml setup.py $(wildcard requirements/*.txt)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -L $(VENV) || $(BIN)/python -m pip install $(PIP_ARGS) --editable ".[$(EXTRAS)]"
	test -L $(VENV) || touch $@

# Operators run in plain PyTorch without it, slower. It needs PyTorch, so it comes after the
# environment. No library of older sources stays where the compilation fails.
$(LIBRARY): setup.py $(filter-out %.md,$(wildcard mmattn/ops/csrc/*))
	@if [ $(MMATTN_BUILD_OPS) = 0 ] || ! command -v $${CXX:-c++} > /dev/null; then \
		echo "operators: in PyTorch alone, as nothing is compiled"; \
	else \
		echo "operators: compiling $@, which takes minutes" && mkdir -p build && \
		{ MMATTN_BUILD_OPS=$(MMATTN_BUILD_OPS) $(BIN)/python setup.py build_ext --inplace \
			> build/operators.log 2>&1 && touch $@ || { rm -f $@; \
			echo "operators: in PyTorch alone, as that failed; see build/operators.log"; }; }; \
	fi

PUBLISH := $(BIN)/python tools/converters/publish_model.py --force

demo: $(PROGRAMS) $(LIBRARY)
	$(BIN)/python -m tools.datasets.hela
	$(BIN)/python tools/train.py configs/demo/mask_rcnn_ivit_n_hela.py
	$(BIN)/mmattn report configs/demo/mask_rcnn_ivit_n_hela.py
	$(PUBLISH) work_dirs/mask_rcnn_ivit_n_hela \
		work_dirs/mask_rcnn_ivit_n_hela/hela-ivit-n.safetensors

demo-seg: $(PROGRAMS) $(LIBRARY)
	$(BIN)/python -m tools.datasets.fashion_scenes --baseline
	$(BIN)/python tools/train.py configs/demo/upernet_ivit_n_fashion_scenes.py
	$(BIN)/mmattn report configs/demo/upernet_ivit_n_fashion_scenes.py
	$(PUBLISH) work_dirs/upernet_ivit_n_fashion_scenes \
		work_dirs/upernet_ivit_n_fashion_scenes/fashion-scenes-ivit-n.safetensors

SEARCH := $(BIN)/python tools/analysis/mask_search.py
PATCHES := mait_n_landcover_patches
STEP := work_dirs/mask_search/$(PATCHES)

demo-masks: $(PROGRAMS) $(LIBRARY)
	$(BIN)/python -m tools.datasets.landcover_patches --baseline
	$(SEARCH) initialize configs/demo/$(PATCHES).py --force
	$(BIN)/python tools/train.py $(STEP)_1_initialize.py
	$(SEARCH) assign $(STEP)_1_initialize.py --high 0.233 --low 0.116 --force
	$(BIN)/python tools/train.py $(STEP)_2_assign.py
	$(SEARCH) calibrate $(STEP)_2_assign.py --low 0.116 --force
	$(BIN)/python tools/train.py $(STEP)_3_calibrate.py
	$(SEARCH) report $(STEP)_1_initialize.py $(STEP)_2_assign.py $(STEP)_3_calibrate.py

test: env
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

test-all: env
	$(BIN)/python -m pytest

# NOTEBOOKS=off does not run the tutorials, which takes minutes and downloads 50 MB.
NOTEBOOKS ?= cache

docs: $(ALL)
	rm -rf docs/api/generated  # of names that are gone
	$(BIN)/python -m sphinx -b html -W --keep-going -d build/doctrees \
		-D nb_execution_mode=$(NOTEBOOKS) docs build/docs

lint: $(ALL)
	! git grep -nE '^(<<<<<<<|>>>>>>>) '
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	git ls-files -z '*.cpp' '*.cu' '*.cuh' '*.h' '*.inl' | \
		xargs -0 $(BIN)/clang-format --dry-run --Werror

# The rows of a file are measured in turns, and most of them by the clock of the processor,
# which other programs disturb less. AVX2, as other instructions change which method is
# faster.
bench: bench-cpu

bench-cpu: export OMP_NUM_THREADS := 1
bench-cpu: export ATEN_CPU_CAPABILITY := avx2
bench-cpu: export ONEDNN_MAX_CPU_ISA := AVX2
bench-cpu: export MKL_ENABLE_INSTRUCTIONS := AVX2

TIME_OP := $(BIN)/python -m tools.benchmark.op --clock cpu --rounds 3 --seconds 0.05
EAGER_OP := $(TIME_OP) --no-compiled

bench-cpu: env
	$(EAGER_OP) landmark_attention --sides 14 28 56 --csv $(BENCH)/landmark_attention_cpu.csv
	$(EAGER_OP) structure_aware_attention --sides 14 28 56 \
		--csv $(BENCH)/structure_aware_attention_cpu.csv
	$(EAGER_OP) masked_attention --sides 14 56 200x334 \
		--csv $(BENCH)/masked_attention_cpu.csv
	$(EAGER_OP) neighborhood_attention --sides 14 56 200x334 \
		--csv $(BENCH)/neighborhood_attention_cpu.csv
	$(EAGER_OP) deformable_attention --sides 14 25x42 \
		--csv $(BENCH)/deformable_attention_cpu.csv
	$(TIME_OP) ms_deform_attn --sides 25x42 50x84 --csv $(BENCH)/ms_deform_attn_cpu.csv
	$(EAGER_OP) ms_deform_attn_decoder --sides 25x42 100x167 \
		--csv $(BENCH)/ms_deform_attn_decoder_cpu.csv
	$(BIN)/python -m tools.benchmark.model --preset maps --csv $(BENCH)/maps_cpu.csv
	$(BIN)/python -m tools.benchmark.model --clock cpu --batch 1 --rounds 3 \
		--csv $(BENCH)/models_cpu.csv
	$(BIN)/python -m tools.benchmark.train_step --batch 1 --rounds 3 \
		--csv $(BENCH)/train_step_cpu.csv
	$(BIN)/python -m tools.benchmark.accelerate --rounds 2 --csv $(BENCH)/accelerate_cpu.csv
	$(BIN)/python -m tools.benchmark.plot $(BENCH)/*_attention_cpu.csv \
		$(BENCH)/ms_deform_*_cpu.csv
	$(BIN)/python -m tools.dev.measured

# On a machine with AVX-512 that does nothing else.
bench-avx512: MAPS = $(BIN)/python -m tools.benchmark.model --preset maps --rounds 2
bench-avx512: COMPILED = $(BIN)/python -m tools.benchmark.model --preset compiled
bench-avx512: STEP = $(BIN)/python -m tools.benchmark.train_step --batch 1 --rounds 3
bench-avx512: SPEED_UP = $(BIN)/python -m tools.benchmark.accelerate --rounds 2
bench-avx512: env
	OMP_NUM_THREADS=1 $(MAPS) --csv $(BENCH)/maps_avx512_cpu.csv
	OMP_NUM_THREADS=1 $(MAPS) --amp-dtype bfloat16 --memory-format channels_last \
		--csv $(BENCH)/maps_autocast_cpu.csv
	OMP_NUM_THREADS=2 $(MAPS) --clock wall --passes inference \
		--csv $(BENCH)/maps_avx512_2_threads_cpu.csv
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.benchmark.model --clock cpu --batch 1 \
		--rounds 2 --csv $(BENCH)/models_avx512_cpu.csv
	OMP_NUM_THREADS=1 $(COMPILED) --csv $(BENCH)/compiled_float32_cpu.csv
	OMP_NUM_THREADS=1 $(COMPILED) --passes inference --dtype bfloat16 \
		--csv $(BENCH)/compiled_bfloat16_cpu.csv
	OMP_NUM_THREADS=1 $(COMPILED) --passes 'training step' --amp-dtype bfloat16 \
		--csv $(BENCH)/compiled_autocast_cpu.csv
	OMP_NUM_THREADS=1 $(STEP) --csv $(BENCH)/train_step_avx512_cpu.csv
	OMP_NUM_THREADS=2 $(STEP) --csv $(BENCH)/train_step_avx512_2_threads_cpu.csv
	OMP_NUM_THREADS=2 $(SPEED_UP) --csv $(BENCH)/accelerate_avx512_2_threads_cpu.csv
	OMP_NUM_THREADS=2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
		MKL_ENABLE_INSTRUCTIONS=AVX2 $(SPEED_UP) \
		--csv $(BENCH)/accelerate_2_threads_cpu.csv

WHEEL := $(BIN)/python -m build --wheel --no-isolation --outdir dist

wheel: $(ALL)
	$(WHEEL) .
	MMATTN_BUILD_OPS=cpu $(WHEEL) \
		--config-setting=--build-option=--plat-name=manylinux_2_28_x86_64 .
	rm -rf build/lib* build/bdist*

clean:
	rm -rf $(VENV) build dist *.egg-info mmattn/.mim

# Everything starts here: `make demo` and `make test` set up what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PINS := pins/dev.txt
READY := $(VENV)/.ready
RAY_DEFAULT := $(CURDIR)/.venvs/ray-default

# verl has an environment of its own, made anew when its pins change.
VERL_PINS := pins/verl.txt
VERL := .venvs/verl-$(shell sha256sum < $(VERL_PINS) | cut -c1-12)
VERL_PIP := $(VERL)/bin/python -m pip install --quiet --disable-pip-version-check
VERL_VERSIONS := 0.6.1 0.7.1 0.8.0 0.9.1
VERL_SOURCES := $(VERL_VERSIONS:%=$(VERL)/sources/%)

# So has OpenRLHF. Its pins are all there is to install, see there.
OPENRLHF_PINS := pins/openrlhf.txt
OPENRLHF := .venvs/openrlhf-$(shell sha256sum < $(OPENRLHF_PINS) | cut -c1-12)
OPENRLHF_PIP := $(OPENRLHF)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps
OPENRLHF_VERSIONS := 0.9.1 0.9.6 0.9.9 0.10.1 0.10.2 0.10.4 0.11.2
OPENRLHF_SOURCES := $(OPENRLHF_VERSIONS:%=$(OPENRLHF)/sources/%)

# And TRL.
TRL_PINS := pins/trl.txt
TRL := .venvs/trl-$(shell sha256sum < $(TRL_PINS) | cut -c1-12)
TRL_PIP := $(TRL)/bin/python -m pip install --quiet --disable-pip-version-check
TRL_VERSIONS := 0.28.0 1.0.0 1.6.0 1.9.0 1.16.0
TRL_SOURCES := $(TRL_VERSIONS:%=$(TRL)/sources/%)

# And the parts of other frameworks that run on a CPU.
PARTS_PINS := pins/parts.txt
PARTS := .venvs/parts-$(shell sha256sum < $(PARTS_PINS) | cut -c1-12)
PARTS_PIP := $(PARTS)/bin/python -m pip install --quiet --disable-pip-version-check

# And an S3-compatible server, with a client.
S3_PINS := pins/s3.txt
S3 := .venvs/s3-$(shell sha256sum < $(S3_PINS) | cut -c1-12)

# The system tests stand on the environment of the others, and add to it: see the script.
SYSTEM := .venvs/system-$(shell cat pins/system.* tests/system/install.sh | sha256sum | cut -c1-12)

# And the site of docs/.
DOCS_PINS := pins/docs.txt
DOCS := .venvs/docs-$(shell sha256sum < $(DOCS_PINS) | cut -c1-12)

# Fuzzing stands on the environment of development, too.
FUZZ_PINS := pins/fuzz.txt
FUZZ := .venvs/fuzz-$(shell sha256sum < $(FUZZ_PINS) | cut -c1-12)

.PHONY: demo test test-all snapshots test-fresh-boot test-verl test-openrlhf test-trl test-parts test-s3 test-launchers frameworks frameworks-latest test-system test-packaging fuzz lint docs picture pictures types check bench bench-scale bench-sync prove prove-levers prove-stuck prove-silent gate-study gate-self clean

demo: $(READY)
	$(BIN)/rltrace wrap -- $(BIN)/python examples/train.py
	$(BIN)/rltrace report

# A file's tests stay together: many share a job that takes long to make. Each worker may have a Ray
# cluster of half a dozen processes, so more than four are for machines with much memory. WORKERS=1:
# one after the other. A worker that was lost is not made anew: it would begin with what it was lost by.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
SUITE := RAY_DEFAULT_PACKAGES=$(RAY_DEFAULT) $(BIN)/python -m pytest --dist loadfile \
	--max-worker-restart 0

# All that waits for nothing long, and one real thread of each capability: eight minutes on two cores.
# A worker more than cores: some test always waits, and few of these have a cluster.
test: $(READY) $(RAY_DEFAULT)/.ready
	$(SUITE) -m "not slow" -n $(shell n=$(WORKERS); echo $$((n == 1 || n == 4 ? n : n + 1)))

# The wording of the report's sections, written anew: read the diff.
snapshots: $(READY)
	RLTRACE_WRITE_SNAPSHOTS=1 $(BIN)/python -m pytest tests/report/test_snapshots.py

# The rest: what is marked `slow`.
test-all: $(READY) $(RAY_DEFAULT)/.ready
	$(SUITE) -m slow -n $(WORKERS)

# Both as on a machine that started a minute ago: nothing may count on having been up for longer.
test-fresh-boot: $(READY) $(RAY_DEFAULT)/.ready
	.ci/fresh-boot $(MAKE) test test-all

# Real runs of verl without a GPU, about a quarter of an hour; QUICK=1: one way to run it only.
test-verl: $(VERL)/.ready
	RLTRACE_VERL_SOURCES=$(CURDIR)/$(VERL)/sources $(VERL)/bin/python -m pytest \
		tests/verl tests/adapters/test_verl_tables.py tests/adapters/test_verl_settings.py

# The same of OpenRLHF, with DeepSpeed and vLLM; QUICK=1: its async trainer only.
test-openrlhf: $(OPENRLHF)/.ready
	RLTRACE_OPENRLHF_SOURCES=$(CURDIR)/$(OPENRLHF)/sources \
		TORCH_EXTENSIONS_DIR=$(CURDIR)/$(OPENRLHF)/extensions $(OPENRLHF)/bin/python -m pytest \
		tests/openrlhf $(wildcard tests/adapters/test_openrlhf_*.py)

# And of TRL; QUICK=1: the kinds of jobs that differ most.
test-trl: $(TRL)/.ready
	RLTRACE_TRL_SOURCES=$(CURDIR)/$(TRL)/sources $(TRL)/bin/python -m pytest \
		tests/trl $(wildcard tests/adapters/test_trl_*.py)

# Real parts of AReaL, Agent Lightning, TransferQueue, RLinf and Monarch, about two minutes.
test-parts: $(PARTS)/.ready
	$(PARTS)/bin/python -m pytest tests/parts

# A run that is shipped to an S3-compatible server, over a link that is cut; about two minutes.
test-s3: $(S3)/.ready
	$(S3)/bin/python -m pytest tests/s3

# Ranks of the real srun, mpirun and mpiexec. They are programs of the system, not of pip.
LAUNCHERS := munged slurmctld slurmd srun sbatch mpirun.openmpi mpiexec.hydra
test-launchers: $(READY)
	@missing=; for program in $(LAUNCHERS); do \
		PATH=$$PATH:/usr/sbin command -v $$program >/dev/null || missing="$$missing $$program"; done; \
		test -z "$$missing" || { echo "not installed:$$missing (Debian: slurm-wlm munge openmpi-bin mpich)"; exit 1; }
	$(BIN)/python -m pytest tests/launchers

# The newest release of each framework, in environments of their own: an hour, twenty gigabytes.
# ONLY="verl trl": these. Writes its table into docs/reference/frameworks.md.
frameworks-latest: $(READY)
	$(BIN)/python -m tests.frameworks_latest $(foreach name,$(ONLY),--only $(name))

# The frameworks themselves, which take long to install and need no test to have passed.
frameworks: $(VERL_SOURCES) $(OPENRLHF_SOURCES) $(TRL_SOURCES)

# What people look at, in the real programs: Perfetto's engine and UI, Chromium, Prometheus, tmux.
# TESTS="tests/system/test_x.py -k name": these only.
test-system: $(SYSTEM)/.ready
	$(SYSTEM)/bin/python -m pytest $(or $(TESTS),tests/system)

# The wheel, made of the source distribution, in an empty environment of each Python that is here.
test-packaging: $(READY)
	RLTRACE_PACKAGING=1 $(BIN)/python -m pytest tests/packaging

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/house check
	! git grep -nE '^(<{7}|>{7}) '  # of a merge that nobody finished

# The pages as a site, in build/site: no link leads nowhere, and no page asks another host for anything.
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	! grep -rE '<(script|link|img|iframe)[^>]*https?:' build/site --include='*.html'

# The pictures in docs/pictures, of a demo that runs now. The report's is made here. The two others need
# a browser: `chromium --headless --window-size=1440,900 --screenshot=docs/pictures/report-light.png
# build/demo.html`, and `rltrace timeline --open` of any run in a window of 1400 by 726 points.
pictures: demo
	$(BIN)/rltrace report --svg docs/pictures/report.svg
	mkdir -p build && $(BIN)/rltrace report --html build/demo.html

# The floors of the package, drawn from its imports.
picture: $(READY)
	@$(BIN)/python .ci/house picture

types: $(READY)
	$(BIN)/mypy

check: lint types test test-all

bench: $(READY)
	$(BIN)/python -m benchmarks

# Runs of 1, 10 and 100 million rows by 2,000 processes: half an hour, 6 GB of disk. ROWS="1 10": these.
bench-scale: $(READY)
	$(BIN)/python -m benchmarks.scale $(addprefix --rows ,$(ROWS))

# Weights on their way: against this machine's memory, a paced link and the entropy of the changes.
SYNC_BENCHMARKS := sync_local sync_crowd sync_relay sync_delta sync_kills sync_restarts sync_pulls \
	sync_openrlhf sync_verl_job
bench-sync: $(READY)
	missed=; for name in $(SYNC_BENCHMARKS); do echo; echo $$name; \
		$(BIN)/python -m benchmarks.$$name || missed="$$missed $$name"; done; \
		test -z "$$missed" || { echo "missed:$$missed"; exit 1; }

# Is the verdict right? Each wall is named, probed and its fix tried, on a quiet machine and on one
# that does other work: about an hour each. ONLY="rollout weights": these walls only.
prove: $(READY)
	$(BIN)/python -m benchmarks.prove $(addprefix --only ,$(ONLY)); quiet=$$?; \
	$(BIN)/python -m benchmarks.prove $(addprefix --only ,$(ONLY)) --loaded && exit $$quiet

# Twelve hangs named and let go, 10,000 stacks asked for, four slow jobs that are none: 25 minutes.
prove-stuck: $(READY)
	$(BIN)/python -m benchmarks.stuck
	$(BIN)/python -m benchmarks.stuck.dumps
	$(BIN)/python -m benchmarks.stuck.slow

# Do predicted gains come? Some fifty changes of the built-in trainer's jobs, in turns: an hour and a
# half. Predictions and runs are kept, and those that are there are not made again. ONLY="slots": these.
LEVERS ?= rltrace-runs/prove-levers
prove-levers: $(READY)
	$(BIN)/python -m benchmarks.prove_levers --keep $(LEVERS) $(addprefix --only ,$(ONLY))

# Are weights that did not arrive found? Twelve silent faults, and jobs without one: an hour. The runs
# are kept, and those that are there are not made again. ONLY="sync top-p": jobs with this in their name.
SILENT ?= rltrace-runs/prove-silent
prove-silent: $(READY)
	$(BIN)/python -m benchmarks.prove_silent --keep $(SILENT) $(addprefix --only ,$(ONLY))

# Is the gate right? Gates are drawn from pools of real runs: false alarms, slowdowns found. About 40
# minutes of a quiet machine; the figures of runs are kept, and runs that are missing are made.
# EVALUATE=1: none is.
STUDY ?= rltrace-runs/gate-study
gate-study: $(READY)
	$(BIN)/python -m benchmarks.gate_study --keep $(STUDY) $(if $(EVALUATE),--evaluate)

# The gate on the project itself, on short runs: about two minutes.
gate-self: $(READY)
	.ci/gate-self

# Every parser of what comes from elsewhere, guided by coverage: hours for all that is asked for, in
# pieces that go on where the last one stopped (build/fuzz). SECONDS=600: for so long.
fuzz: $(FUZZ)/.ready
	$(FUZZ)/bin/python -m benchmarks.fuzz $(if $(SECONDS),--seconds $(SECONDS)) \
		$(addprefix --only ,$(ONLY))

# torch first, on its pin: an unpinned torch drags in gigabytes of CUDA.
$(READY): pyproject.toml $(PINS)
	@echo "installing into $(VENV) (a few minutes the first time)"
	test -x $(BIN)/python || $$(command -v $(PYTHON) || command -v python3) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint $(PINS) torch
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --editable '.[trainer,sync,dev]'
	touch $@

$(RAY_DEFAULT)/.ready: pins/ray-default.txt $(PINS) | $(READY)
	@echo "installing what the tests of ray job submit need into .venvs/"
	rm -rf $(RAY_DEFAULT)
	$(BIN)/python -m pip install --quiet --constraint $(PINS) --target $(RAY_DEFAULT) -r $<
	touch $@

$(FUZZ)/.ready: $(READY) $(FUZZ_PINS)
	@echo "installing what fuzzing needs into $(FUZZ)"
	rm -rf $(FUZZ)
	$(BIN)/python -m venv $(FUZZ)
	site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
		echo "import site; site.addsitedir('$$($(BIN)/python -c "$$site")')" \
		> "$$($(FUZZ)/bin/python -c "$$site")/base.pth"
	$(FUZZ)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(FUZZ_PINS)
	touch $@

# torch first here too. Beside it verl's sources, in each version that the adapter knows.
$(VERL)/.verl:
	@echo "installing verl into $(VERL) (some minutes, two gigabytes)"
	rm -rf $(VERL)
	$$(command -v $(PYTHON) || command -v python3) -m venv $(VERL)
	$(VERL_PIP) --constraint $(VERL_PINS) torch
	$(VERL_PIP) --constraint $(VERL_PINS) verl TransferQueue cachetools fastapi uvicorn
	touch $@

$(VERL)/sources/%: | $(VERL)/.verl
	$(VERL_PIP) --no-deps --no-compile --target $@ verl==$*

$(VERL)/.ready: $(VERL)/.verl pyproject.toml | $(VERL_SOURCES)
	$(VERL_PIP) --constraint $(VERL_PINS) --editable '.[sync]' pytest
	touch $@

# DeepSpeed has no wheels. Its C++ is compiled here, so that no job has to wait for it.
$(OPENRLHF)/.openrlhf:
	@echo "installing OpenRLHF into $(OPENRLHF) (some minutes, four gigabytes)"
	rm -rf $(OPENRLHF)
	$$(command -v $(PYTHON) || command -v python3) -m venv $(OPENRLHF)
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(OPENRLHF_PIP) --use-pep517 --requirement $(OPENRLHF_PINS)
	PATH=$(CURDIR)/$(OPENRLHF)/bin:$$PATH DS_ACCELERATOR=cpu \
		TORCH_EXTENSIONS_DIR=$(CURDIR)/$(OPENRLHF)/extensions \
		python -c "from deepspeed.accelerator import get_accelerator as at; \
			[at().create_op_builder(f'{op}Builder').load() for op in ('FusedAdam', 'ShareMemComm')]"
	touch $@

$(OPENRLHF)/sources/%: | $(OPENRLHF)/.openrlhf
	$(OPENRLHF_PIP) --no-compile --target $@ openrlhf==$*

$(OPENRLHF)/.ready: $(OPENRLHF)/.openrlhf pyproject.toml | $(OPENRLHF_SOURCES)
	$(OPENRLHF_PIP) --editable .
	touch $@

# torch first here too.
$(TRL)/.trl:
	@echo "installing TRL into $(TRL) (some minutes, one and a half gigabytes)"
	rm -rf $(TRL)
	$$(command -v $(PYTHON) || command -v python3) -m venv $(TRL)
	$(TRL_PIP) --constraint $(TRL_PINS) torch
	$(TRL_PIP) --constraint $(TRL_PINS) trl peft aiohttp requests tensorboard
	touch $@

$(TRL)/sources/%: | $(TRL)/.trl
	$(TRL_PIP) --no-deps --no-compile --target $@ trl==$*

$(TRL)/.ready: $(TRL)/.trl pyproject.toml | $(TRL_SOURCES)
	$(TRL_PIP) --constraint $(TRL_PINS) --editable . pytest
	touch $@

# AReaL and RLinf without what they ask for: see the pins.
$(PARTS)/.parts:
	@echo "installing parts of frameworks into $(PARTS) (ten minutes, three gigabytes)"
	rm -rf $(PARTS)
	$$(command -v $(PYTHON) || command -v python3) -m venv $(PARTS)
	$(PARTS_PIP) --constraint $(PARTS_PINS) torch
	$(PARTS_PIP) --constraint $(PARTS_PINS) agentlightning TransferQueue torchmonarch \
		accelerate aiofiles colorlog datasets einops icmplib numba nvitop peft Pebble pybase64 \
		ray sortedcontainers swanlab tenacity tensorboardX torchdata trackio transformers \
		uvloop wandb
	$(PARTS_PIP) --no-deps --constraint $(PARTS_PINS) areal rlinf
	touch $@

$(PARTS)/.ready: $(PARTS)/.parts pyproject.toml
	$(PARTS_PIP) --constraint $(PARTS_PINS) --editable . pytest
	touch $@

$(S3)/.ready: $(S3_PINS) pyproject.toml
	@echo "installing an S3 client and server into $(S3) (a minute)"
	test -x $(S3)/bin/python || $$(command -v $(PYTHON) || command -v python3) -m venv $(S3)
	$(S3)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(S3_PINS) \
		--editable '.[ship]' s3fs 'moto[server]' pytest
	touch $@

$(DOCS)/.ready: $(DOCS_PINS)
	@echo "installing what the site is built with into $(DOCS) (half a minute)"
	rm -rf $(DOCS)
	$$(command -v $(PYTHON) || command -v python3) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(DOCS_PINS)
	touch $@

$(SYSTEM)/.system: | $(READY)
	@echo "installing what the system tests need into $(SYSTEM) (some minutes, half a gigabyte)"
	PYTHON=$(BIN)/python sh tests/system/install.sh $(SYSTEM)
	touch $@

$(SYSTEM)/.ready: $(SYSTEM)/.system pyproject.toml
	$(SYSTEM)/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --editable .
	touch $@

clean:
	rm -rf $(VENV) .venvs build dist .mypy_cache .ruff_cache .pytest_cache rltrace-runs

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TELL_S := 15
# Python compiles a module once, also where the shell forbids it to store the result: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
# Run $(1), whose exit code stays, and say every TELL_S seconds what is on disk in $(2), of so much; ends with its shell.
patiently = { s=0; while sleep $(TELL_S) >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do s=$$((s + $(TELL_S))); \
	echo "$$s s so far: $$(du -sh $(2) | cut -f1) of about $(3) in $(2)"; done; } & teller=$$!; $(1); code=$$?; kill $$teller 2>/dev/null; exit $$code

.PHONY: help up demo images test test-fast test-long browser lint bench-page bench-elastic bench-pause bench-preparation bench-data bench-consistency bench-histories bench-noise bench-overhead bench-reaction bench-release bench-scale bench-live bench-elastic-batch bench-dike bench-decide bench-policies bench-dlrover bench-flowcon bench-bus bench-flood fuzz bench-flowcon-live bench-hot-ps chaos soak bench-saves bench-tables bench-lost-ps bench-year zoo test-cluster texts mutations clean

help: ## show what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(READY): constraints.txt pyproject.toml
	@echo "installs what constraints.txt names, TensorFlow among it, into $(VENV): 3 GB on disk, one to five minutes, once"
	$(PYTHON) -m venv $(VENV)
	@$(call patiently,$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints.txt,$(VENV),3 GB)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

up: $(READY) ## the whole system on this machine, until Ctrl-C
	$(BIN)/weir up

demo: $(READY) ## watch a real job grow when somebody else's pods leave (two to five minutes, longer on a busy machine)
	$(BIN)/weir demo

images: ## both images with docker, podman or buildah, named REGISTRY/weir:TAG (TAG: this version; deploy/README.md)
	@deploy/build_images.sh $(or $(TAG),$(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' shared/version.py)) $(REGISTRY)

# Tests wait for half of the time: more of them run than there are cores.
test: $(READY) browser ## the tests but those of test-long, on real parts, five at a time
	$(BIN)/pytest -n 5

test-fast: $(READY) ## the pure tests: no server, no process, no TensorFlow (one to two minutes)
	$(BIN)/pytest -n 2 --maxschedchunk 8 --pure

test-long: $(READY) browser ## long end-to-end tests; the short form of every benchmark, of chaos, soak and fuzz (30 to 45 minutes)
	$(BIN)/pytest -n 3 --maxschedchunk 1 -m long

browser: ## Chromium for the page's tests, where we are root on Debian and none is there
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get install --yes --quiet --no-install-recommends chromium; } \
	    || echo "no Chromium: the page's tests are skipped"

fuzz: $(READY) ## 300,000 decisions in random worlds, every policy (FUZZ_DECISIONS=N)
	FUZZ_DECISIONS=$(or $(FUZZ_DECISIONS),300000) $(BIN)/pytest tests/allocator/fuzz

mutations: $(READY) ## change one line of pure code at a time: do pure tests notice it? (SEED=1 N=30)
	$(BIN)/python -m tests.mutations $(or $(SEED),1) $(or $(N),30)

chaos: $(READY) ## 92 faults of 23 kinds while real jobs train (an hour at most; CHAOS_FAULTS=20: a quarter of it)
	$(BIN)/python -m tests.bench.chaos

soak: $(READY) ## 200 hand-overs of one job, in which nothing may grow (under 90 minutes; SOAK_HANDOVERS=30)
	$(BIN)/python -m tests.bench.soak

zoo: $(READY) ## sixteen programs under Weir: do they reach the result of one process? (an hour; PROGRAM=NAME,NAME)
	$(BIN)/python -m tests.bench.zoo

test-cluster: $(if $(KUBECONFIG),$(READY)) ## deploy on a real Kubernetes, try it, take it away: KUBECONFIG=FILE
	@test -n "$(KUBECONFIG)" || { echo "Which cluster? make test-cluster KUBECONFIG=FILE (and OVERLAY, WEIR_IMAGE, WEIR_TRAINER_IMAGE)"; exit 2; }
	WEIR_TEST_CLUSTER=1 $(BIN)/pytest -x --durations 0 tests/cluster

lint: $(READY) ## ruff and mypy --strict
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

texts: $(READY) ## every text that a user can see, from the source (TEXTS=services/cli: of one folder)
	$(BIN)/python -m tests.architecture.texts $(TEXTS)

bench-elastic: $(READY) ## the same job static and elastic: time, utilisation, accuracy
	$(BIN)/python -m tests.bench.elastic

bench-pause: $(READY) ## the pause of a hand-over, make-before-break against restart
	$(BIN)/python -m tests.bench.pause

bench-preparation: $(READY) ## the parts of a generation's preparation, against TensorFlow by hand (eight minutes)
	$(BIN)/python -m tests.bench.preparation

bench-saves: $(READY) ## a periodic checkpoint written beside training, against training standing still (4 minutes)
	$(BIN)/python -m tests.bench.saves

bench-tables: $(READY) ## embedding tables divided among ps: lookups, and pauses with 10 million to a billion parameters; a dense model (25 minutes)
	$(BIN)/python -m tests.bench.tables

bench-lost-ps: $(READY) ## a ps of a job with embedding tables is killed fifty times: training that is repeated, cost of deltas (35 minutes)
	$(BIN)/python -m tests.bench.lost_ps

bench-data: $(READY) ## examples/s from files, ranges and arrays, against TensorFlow's own loop (half an hour)
	$(BIN)/python -m tests.bench.data

bench-consistency: $(READY) ## accuracy and speed with 2 and 4 workers, and resized, in each mode (an hour; PROGRAM=NAME)
	$(BIN)/python -m tests.bench.consistency

bench-histories: $(READY) ## bits of exact jobs, and the loss of a global batch, under random resizes and crashes (35 minutes)
	$(BIN)/python -m tests.bench.histories

bench-noise: $(READY) ## gradient noise: accuracy of the measurement, and examples/s with and without it (fifteen minutes)
	$(BIN)/python -m tests.bench.noise

bench-overhead: $(READY) ## what Weir costs while nothing changes, against a plain loop
	$(BIN)/python -m tests.bench.overhead

bench-reaction: $(READY) ## from a pod's deletion to the decision, on 500 nodes with 5,000 pods
	$(BIN)/python -m tests.bench.reaction

bench-release: $(READY) ## two jobs of which one ends: is the other decided once, to its final size (BENCH_TENSORFLOW=5: real ones)
	$(BIN)/python -m tests.bench.release

bench-scale: $(READY) ## monitor and launcher on 5,000 nodes with 150,000 pods: picture, memory, changes, requests
	$(BIN)/python -m tests.bench.scale

bench-year: $(READY) ## 5,000 finished jobs with 20,000 hand-overs on small streams, then restarts: what is lost, how long it takes
	$(BIN)/python -m tests.bench.year

bench-live: $(READY) ## policies on real training, batch and learning rate included: sizes, pauses, accuracy
	$(BIN)/python -m tests.bench.live

bench-elastic-batch: $(READY) ## IBM's scaler: exact, fast, and what a variable batch gains (SURFACES=FILE: measured speeds)
	$(BIN)/python -m tests.bench.elastic_batch

bench-dike: $(READY) ## probes against the best size and static rules, on measured speeds (SURFACES=FILE.csv: others)
	$(BIN)/python -m tests.bench.dike $(SURFACES)

bench-policies: $(READY) ## every policy on the same simulated work (SURFACES=FILE,FILE: measured speeds)
	$(BIN)/python -m tests.bench.policies $(SURFACES)

bench-dlrover: $(READY) ## DLRover-RM against requests made by hand, in a simulated cloud with failures
	$(BIN)/python -m tests.bench.dlrover

bench-flowcon: $(READY) ## FlowCon on one simulated machine: a late job's completion and the makespan, every arm
	$(BIN)/python -m tests.bench.flowcon

bench-flowcon-live: $(READY) ## FlowCon on three real jobs against equal shares: a late job's completion, the makespan
	$(BIN)/python -m tests.bench.flowcon_live

bench-decide: $(READY) ## one decision of `weir` on 64 to 4,096 nodes with 40 to 2,560 jobs (OLD=COMMIT: against that one)
	$(BIN)/python -m tests.bench.decide

bench-hot-ps: $(READY) ## a ps with a quarter of its CPU: nothing, stop-and-restart, Weir
	$(BIN)/python -m tests.bench.hot_ps

bench-bus: $(READY) ## the bus under pressure: facts a second, latency, a frozen hearer, a server that is killed
	$(BIN)/python -m tests.bench.bus

bench-flood: $(READY) ## a submitter, then a job, floods the bus for a minute: what another namespace notices of it
	$(BIN)/python -m tests.bench.flood

bench-page: $(READY) browser ## the page in Chromium: 60 facts/s of 200 jobs on 1,000 nodes; frames, and how far it is behind
	$(BIN)/python -m tests.bench.page

clean: ## remove the environment and what `weir up` left
	rm -rf $(VENV) .weir

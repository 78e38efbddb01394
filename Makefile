# Targets with `##` are for people; `make help` lists them. The others are stages of .ci/run, or parts of a target.
# Everything else is a task: `python3 -m tools` lists them.
.PHONY: help run run-kubernetes dev test test-kubernetes test-all test-deps lint lock polite wheel image site clean env types \
  test-together test-stack test-more test-services test-stacks test-embedded test-newest test-ui kube-binaries \
  test-kubelet test-kwok toxiproxy faults-short

PY := .venv/bin/python
RUNS := .venv/.made-to-run
TESTED := .venv/.made-to-test
COMPILED := .venv/.tests-compiled
# Many containers set this variable, and then each of hundreds of test processes compiles every module again.
unexport PYTHONDONTWRITEBYTECODE
# One more test process than there are processors: each imports all tests first, which takes as long as two hundred of them.
JOBS ?= $(shell expr $$(nproc) + 1)
# Runs a command, and prints its output when it has finished: outputs of parallel targets do not mix.
held = told=$$($(1) 2>&1); code=$$?; printf '\n%s\n' "$$told"; exit $$code

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-17s%s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "python3 -m tools      lists everything else: soaks, faults, benchmarks, generated files, more tests"

run: $(RUNS) ## crawl on this machine, break things on purpose, and check every recorded status
	@$(PY) -m examples.story

run-kubernetes: env ## the same in pods, on a Kubernetes that is started on this machine (root, Go)
	@$(MAKE) --no-print-directory test-deps kube-binaries
	@$(PY) -m examples.story_kubernetes

dev: $(RUNS) ## start all services and a website to crawl; Ctrl-C stops them
	@.venv/bin/crawlctl dev

test: lint ## lint, types, the tests on SQLite and fakes, and one whole stack
	@$(MAKE) --no-print-directory -j3 test-together types site test-stack

test-kubernetes: env ## the tests on a Kubernetes that is started on this machine (Go; root for a real node)
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory test-deps; fi
	@$(MAKE) --no-print-directory kube-binaries
	@$(MAKE) --no-print-directory -j2 test-kubelet test-kwok

test-all: export HYPOTHESIS_PROFILE = thorough
test-all: lint types ## every test, with the large matrices; takes hours
	@$(PY) -m pytest -q -m "not soak" --durations 100 $(TOGETHER)
	@$(PY) -m pytest -q -m "not soak" --durations 100 tests/e2e tests/dev
	@$(PY) -m tests.ui.providers
	@$(PY) -m pytest -q -m "not soak" --durations 100 tests/ui
	@$(MAKE) --no-print-directory test-kubernetes MARKS="not soak" PYTEST_ADDOPTS="$$PYTEST_ADDOPTS --durations=100"

# Maven fetches MySQL, which needs libaio and libnuma.
DEPS := mariadb-server curl jq unzip runc containernetworking-plugins busybox-static iproute2 maven libaio1 libnuma1 graphviz chromium chromium-headless-shell gcc libc6-dev
test-deps: ## install what some tests need: MariaDB, MySQL, Chromium, runc and more (Debian, root)
	@for tool in mariadbd curl jq unzip runc busybox ip mvn dot chromium chromium-headless-shell cc; do PATH=$$PATH:/usr/sbin command -v $$tool >/dev/null || missing=1; done; \
	  [ -x /usr/lib/cni/bridge ] || missing=1; \
	  ldconfig -p | grep -q libaio.so.1 && ldconfig -p | grep -q libnuma.so.1 || missing=1; \
	  [ -z "$$missing" ] || (apt-get update -q && apt-get install -y -q --no-install-recommends $(DEPS))
	@python3 tools/mysql.py
	@python3 tools/promtool.py

lint: env ## ruff, hadolint, and the limits of tools/house.toml
	@.venv/bin/hadolint Dockerfile images/crawler/Dockerfile images/user-code/Dockerfile
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) tools/house.py
	@$(PY) tools/style.py

# Hashes without addresses, so that the locks work with any mirror. Every lock is a part of locks/all.lock.
COMPILE := uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url
lock: ## renew the lock files (uv)
	@$(COMPILE) --extra dev --extra pusher --extra otel --extra parquet --extra mcp --group test --group lint --group build --group docs \
	  pyproject.toml -o locks/all.lock
	@$(COMPILE) --extra dev --group build -c locks/all.lock pyproject.toml -o locks/run.lock
	@$(COMPILE) --extra pusher --extra otel -c locks/all.lock pyproject.toml -o locks/image.lock
	@$(COMPILE) -c locks/all.lock images/crawler/requirements.in -o images/crawler/requirements.lock
	@$(COMPILE) examples/foreign/requirements.in -o examples/foreign/requirements.lock
	@$(COMPILE) --python-version 3.11 images/sbom/requirements.in -o images/sbom/requirements.lock

# Forty crawls of one site, by this service, by scrapyd and as processes, judged by the site: a quarter of an hour.
# BENCHMARK_PARTS, BENCHMARK_S and BENCHMARK_RUNS select parts and sizes (benchmarks/README.md).
polite: env
	@$(PY) -m benchmarks polite

wheel: $(RUNS) ## build the package into dist; the same sources give the same bytes
	@rm -f dist/*.whl && $(PY) -m hatchling build -t wheel -d dist

# FRESH=1 takes Debian's updates, ONLY=NAME builds one image; docs/images.md has the other variables.
export BUILDER BUILD_ID PYTHON_IMAGE RUNTIME_IMAGE MIRROR
image: wheel ## build both container images into dist/images, with buildah, podman or docker
	@$(PY) -m tools.images build $(if $(FRESH),--fresh) $(if $(ONLY),--only $(ONLY))

site: env ## build docs/ into dist/site, and check every link
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs --quiet build
	@echo "open dist/site/index.html in a browser"

clean: ## remove the environment, and everything that was built
	@rm -rf dist .venv .crawl .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The environment of the tests contains the smaller one of `make run` and `make dev`, and stays when that is renewed.
env: $(TESTED)

$(RUNS): locks/run.lock pyproject.toml tools/environment.py
	@python3 tools/environment.py locks/$(if $(wildcard $(TESTED)),all,run).lock
	@touch $(RUNS)

$(TESTED): locks/all.lock locks/run.lock pyproject.toml tools/environment.py
	@python3 tools/environment.py locks/all.lock
	@touch $(RUNS) $(TESTED)

# Imports all tests once, so that parallel processes of pytest need not compile them. Exit code 5: no test was collected.
$(COMPILED): $(TESTED)
	@told=$$($(PY) -m pytest -qq --collect-only -o python_functions=none -o python_classes=None 2>&1); case $$? in 0|5) ;; *) false;; esac || { printf '%s\n' "$$told"; exit 1; }
	@touch $(COMPILED)

types: env
	@$(PY) -m mypy

# tests/e2e and tests/dev start and kill whole stacks, so each of them runs one test at a time.
TOGETHER := -n $(JOBS) --dist worksteal --ignore tests/e2e --ignore tests/dev
test-together: env $(COMPILED)
	@$(PY) -m pytest -q $(TOGETHER)

# The commands of the README.
STACK := tests/e2e/test_readme.py
test-stack: env
	@$(call held,$(PY) -m pytest -q $(STACK))

# Only the folders and files that have such tests: reading all of them takes each process ten seconds. tests/conftest.py
# refuses one elsewhere.
MORE := tests/activities tests/adapters/archive/test_s3_errors.py tests/cli/doctor/test_doctor.py tests/clusters/kubernetes/observer/test_faults.py tests/contracts/store tests/gateway/api/test_fuzz.py tests/packaging/test_alarms.py tests/store tests/temporal tests/workflows
test-more: env
	@$(PY) -m pytest -q -m "(troubles or servers) and not slow and not soak" $(TOGETHER) -n 2 $(MORE)

# By file, because several files share one stack among their tests.
test-services: env
	@$(PY) -m pytest -q -m "processes and not servers and not slow and not soak" $(TOGETHER) --dist loadfile $$(grep -rl --include=test_*.py mark.processes tests) tests/contracts/cluster tests/contracts/observer

test-stacks: env
	@$(PY) -m pytest -q -m "not slow and not soak" tests/e2e --ignore $(STACK)

test-embedded: env
	@$(call held,$(PY) -m pytest -q -m "not slow and not soak" tests/dev)

# The newest Python that the package allows, for what depends on Python's own modules.
test-newest: env
	@python3 -m tools.newest_python

test-ui: env
	@$(PY) -m pytest -q -m "not slow and not soak" tests/ui

# Builds the programs of the test cluster into the user's cache folder, unless they are there.
kube-binaries: env
	@$(PY) -m tests.kubernetes.cluster binaries

MARKS ?= not slow and not soak
test-kubelet: env
	@$(PY) -m pytest -q -m "$(MARKS) and kubelet" tests/kubernetes

test-kwok: env
	@$(call held,$(PY) -m pytest -q -m "$(MARKS) and not kubelet and not kueue" tests/kubernetes)

toxiproxy: env
	@$(PY) -m tools.faults.build short

# The seeds come from the commit, so that each commit tries others.
SHORT = $(shell printf '%d' 0x$$(git rev-parse --short=6 HEAD))0
faults-short: toxiproxy
	@echo "on the dev server of Temporal's SDK; repeat it with: make faults-short SHORT=$(SHORT)"
	@$(PY) -m tools.faults --dev --seeds 3 --minutes 1.2 --seed $(SHORT)

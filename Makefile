# Two commands matter: `make run` (see it work) and `make test`. Both make the environment when it is missing.
.PHONY: help env run run-kubernetes dev test test-together test-stack test-deps test-chart test-more test-e2e test-newest test-services test-stacks test-embedded test-foreign test-upgrade test-page test-oidc test-all kube-binaries test-kubernetes test-kubelet test-kwok test-kueue test-kubernetes-37 soak soak-manager soak-graphs soak-pools soak-growth fuzz lint fmt types image-lint lock lock-check wheel image crawler-image openapi picture page-pictures faults faults-short faults-scrapyd faults-jobs faults-table fault-programs toxiproxy bench bench-smoke capacity clean site test-locks image-again image-list image-deps test-image test-upstream

PY := .venv/bin/python
RUNS := .venv/.made-to-run
TESTED := .venv/.made-to-test
COMPILED := .venv/.tests-compiled
# A machine may forbid it, as containers do. Then each of hundreds of processes compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE
# Test processes at once; they wait more than they compute.
JOBS ?= $(shell expr $$(nproc) + 2)

help:
	@echo "make run        crawl for real, with the whole stack on this machine, and prove what happened"
	@echo "make run-kubernetes  the same with real pods on a real Kubernetes that it starts on this machine (root)"
	@echo "make dev        keep the same stack up (Ctrl-C ends it)"
	@echo "make test       ruff, mypy, pytest on SQLite and fakes, and one whole stack; says in words what it had to skip"
	@echo "make test-more  runs in the laboratory under faults, floods, limits and audits; all that needs a MariaDB or MySQL"
	@echo "make test-e2e   services, crawls and whole stacks as real processes: what the README promises"
	@echo "make test-newest  what depends on Python's own modules, on the newest Python (Go; fetched once)"
	@echo "make test-foreign  docs/foreign-crawlers.md: Crawlee, Playwright and browsertrix are installed, crawl, are stopped, killed and go on"
	@echo "make test-upgrade  an installation of the last landed build (tests/dev/landed.txt) is upgraded, rolled back and upgraded again under load"
	@echo "make test-chart    the Helm chart of the last landed build on a real node, upgraded, rolled back and removed while crawls go on, with times (root)"
	@echo "make test-page  the page in a real Chromium, on a whole stack: what a person does there"
	@echo "make test-oidc  people log in by a real OpenID Connect provider, Dex, which it builds first (Go; once)"
	@echo "make test-deps  install what some tests need (root): MariaDB, MySQL, promtool, curl, jq, unzip, runc, CNI plugins, Graphviz, Chromium"
	@echo "make test-all   everything, whole matrices and the Kubernetes included; tells where the time went"
	@echo "make test-kubernetes-37  what we ask of the Kubernetes API, on the client's next major release; it may lag"
	@echo "make test-kubernetes  what docs/kubernetes.md promises, on a real Kubernetes; make kube-binaries builds it first (Go; minutes, once)"
	@echo "make test-kueue  what docs/kubernetes.md promises of queues, beside a real Kueue (Go; three minutes more, once)"
	@echo "make soak       a random plan against the whole stack (MINUTES=10 SEED=1): is anything untrue on record then?"
	@echo "make soak-manager  a manager of 1,000 jobs while everything around it dies at random (SEED=1; MariaDB): is each job run once?"
	@echo "make soak-graphs   200 random graphs while everything around them dies at random (GRAPHS=200 SEED=1; MariaDB): is each step run once?"
	@echo "make soak-pools    pools while everything around them dies at random (MINUTES=5 SEED=1 CLUSTER=local or kwok): do caps, order and shares hold?"
	@echo "make soak-growth   short days with pruning at their ends (DAYS=9 SEED=1; MariaDB): do as many rows leave as come?"
	@echo "make faults     the whole service on real servers behind toxiproxy, faults at random (SEED=1 MINUTES=3; root): docs/faults.md"
	@echo "make faults-short  three seeds of the newest commit of it in two minutes; make faults AWAY=10  Temporal is away for minutes at a time"
	@echo "make faults-scrapyd  scrapyd beside ours, in the same play; make faults-jobs  Job.status and ours on a real API server (SEED=1)"
	@echo "make faults-table  both of these with three seeds, as the tables of docs/faults.md (SEEDS=3 SEED=1 MINUTES=3)"
	@echo "make fuzz       new random examples for every property (SEED=1 for the same again); what it finds becomes a fixed one"
	@echo "make bench      the figures, each beside its baseline; make bench-smoke  every benchmark at its smallest size"
	@echo "make capacity   what a task costs each part on MariaDB and a real API server, and what 1,000 to 100,000 a day need: docs/capacity.md"
	@echo "make picture    docs/watch.svg, the picture in the README, taken during a real run"
	@echo "make page-pictures  docs/pictures, the pictures of the page in docs/page.md"
	@echo "make site       docs/ as a site with search, in dist/site; refuses a broken link or anchor"
	@echo "make wheel      dist/*.whl; make image builds both container images of it (buildah, podman or docker)"
	@echo "make image-again  the same once more: the same digests?  make test-image  both images as they ship, in pods of a real node"
	@echo "make test-locks  whether the locks can be installed on amd64 and arm64 (asks the package index)"
	@echo "make test-upstream  whether newer chancy, oban and shub-workflow have other names (asks the package index)"
	@echo "make lock       renew the lock files; make lock-check tells whether they fit pyproject.toml"

# Two levels: what `make run` and `make dev` execute, and all of it with what tests need, which is installed at once.
env: $(TESTED)

$(RUNS): locks/run.lock pyproject.toml tools/environment.py
	@python3 tools/environment.py locks/run.lock
	@touch $(RUNS)

$(TESTED): locks/all.lock locks/run.lock pyproject.toml tools/environment.py
	@python3 tools/environment.py locks/all.lock
	@touch $(RUNS) $(TESTED)

run: $(RUNS)
	@$(PY) -m examples.story

# The same story with real pods, on a Kubernetes that is built for the tests (root).
run-kubernetes: env
	@$(MAKE) --no-print-directory test-deps kube-binaries
	@$(PY) -m examples.story_kubernetes

dev: $(RUNS)
	@.venv/bin/crawlctl dev

# The stacks of tests/e2e and tests/dev are killed and have many processes: in each folder one at a time.
TOGETHER := -n $(JOBS) --dist worksteal --ignore tests/e2e --ignore tests/dev
# The one that `make test` plays: every command that the README tells a newcomer to type.
STACK := tests/e2e/test_readme.py

# What plays beside something else tells its output when it is over.
held = told=$$($(1) 2>&1); code=$$?; printf '\n%s\n' "$$told"; exit $$code

# What waits or has one processor's work to do runs beside what has more: types, the site and a stack beside the tests.
test: lint
	@$(MAKE) --no-print-directory -j3 test-together types site test-stack

test-together: env $(COMPILED)
	@$(PY) -m pytest -q $(TOGETHER)

test-stack: env
	@$(call held,$(PY) -m pytest -q $(STACK))

# pytest compiles each module of the tests anew on a fresh machine, and its processes begin at once: each would do it.
# This reads them and makes next to no tests of them; pytest tells with exit code 5 that there is none.
$(COMPILED): $(TESTED)
	@told=$$($(PY) -m pytest -qq --collect-only -o python_functions=none -o python_classes=None 2>&1); case $$? in 0|5) ;; *) false;; esac || { printf '%s\n' "$$told"; exit 1; }
	@touch $(COMPILED)

# Reading all tests takes each process of pytest ten seconds, so these two read only where their tests are. `make test`
# refuses one that is elsewhere (tests/conftest.py).
MORE := tests/activities tests/adapters/archive tests/cli/doctor tests/clusters/kubernetes/observer tests/contracts/store tests/gateway/api tests/packaging tests/store tests/temporal tests/workflows
test-more: env
	@$(PY) -m pytest -q -m "(troubles or servers) and not slow and not soak" $(TOGETHER) $(MORE)

# Two stacks at once, as each of them waits for half of its time.
test-e2e: test-services
	@$(MAKE) --no-print-directory -j2 test-stacks test-embedded

# By file: several of these bring a stack up for all tests of their module.
test-services: env
	@$(PY) -m pytest -q -m "processes and not servers and not slow and not soak" $(TOGETHER) --dist loadfile $$(grep -rl --include=test_*.py mark.processes tests) tests/contracts/cluster tests/contracts/observer

test-stacks: env
	@$(PY) -m pytest -q -m "not slow and not soak" tests/e2e --ignore $(STACK)

test-embedded: env
	@$(call held,$(PY) -m pytest -q -m "not slow and not soak" tests/dev)

# The machine's Python is the oldest that is allowed. On a fresh machine each process compiles all that it imports anew,
# so there are two.
test-newest: env
	@python3 -m tools.newest_python -n2

# What npm and pip fetch is 240 MB, so it is fetched for this alone.
test-foreign: test-deps env
	@$(PY) -m pytest -q -m "not soak" tests/dev/test_foreign_crawlers.py

# 50 open runs, 5 managers, 5 graphs, 20 schedules; `make test-embedded` plays a tenth of it.
test-upgrade: env
	@$(PY) -m pytest -q -m slow tests/dev/test_upgrade.py

# Twelve pods of ours, four times anew, while crawls go on; it prints the seconds of each step.
test-chart: test-deps kube-binaries
	@$(PY) -m pytest -q -s -m slow tests/kubernetes/real/test_chart_story.py

# One browser and one stack, which some of the tests kill: one at a time.
test-page: env
	@$(PY) -m pytest -q -m "not slow and not soak" tests/page

# Dex takes its time to build, so it is built for this alone; the same test plays behind a small provider in `make test-page`.
test-oidc: env
	@$(PY) -m tests.page.providers
	@$(PY) -m pytest -q -m "slow or not slow" tests/page/test_sign_in.py

lint: env image-lint
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) tools/house.py
	@$(PY) tools/style.py

image-lint: env
	@.venv/bin/hadolint Dockerfile images/crawler/Dockerfile images/plans/Dockerfile

types: env
	@$(PY) -m mypy

fmt: env
	@$(PY) -m ruff check --fix . ; $(PY) -m ruff format .

# Maven fetches MySQL, which needs the two libraries.
DEPS := mariadb-server curl jq unzip runc containernetworking-plugins busybox-static iproute2 maven libaio1 libnuma1 graphviz chromium chromium-headless-shell gcc libc6-dev
test-deps:
	@for tool in mariadbd curl jq unzip runc busybox ip mvn dot chromium chromium-headless-shell cc; do PATH=$$PATH:/usr/sbin command -v $$tool >/dev/null || missing=1; done; \
	  [ -x /usr/lib/cni/bridge ] || missing=1; \
	  ldconfig -p | grep -q libaio.so.1 && ldconfig -p | grep -q libnuma.so.1 || missing=1; \
	  [ -z "$$missing" ] || (apt-get update -q && apt-get install -y -q --no-install-recommends $(DEPS))
	@python3 tools/mysql.py
	@python3 tools/promtool.py

test-all: export HYPOTHESIS_PROFILE = thorough
test-all: lint types
	@$(PY) -m pytest -q -m "not soak" --durations 100 $(TOGETHER)
	@$(PY) -m pytest -q -m "not soak" --durations 100 tests/e2e tests/dev
	@$(PY) -m tests.page.providers
	@$(PY) -m pytest -q -m "not soak" --durations 100 tests/page
	@$(MAKE) --no-print-directory test-kubernetes MARKS="not soak" PYTEST_ADDOPTS="$$PYTEST_ADDOPTS --durations=100"

# The programs of the test cluster, into a cache folder outside of the tree; nothing to do when the pins are the same.
kube-binaries: env
	@$(PY) -m tests.kubernetes.cluster binaries

# A real node waits for its containers, so what needs none is played beside it, on a cluster of its own.
MARKS ?= not slow and not soak
test-kubernetes: env
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory test-deps; fi
	@$(MAKE) --no-print-directory kube-binaries
	@$(MAKE) --no-print-directory -j2 test-kubelet test-kwok

test-kubelet: env
	@$(PY) -m pytest -q -m "$(MARKS) and kubelet" tests/kubernetes

test-kwok: env
	@$(call held,$(PY) -m pytest -q -m "$(MARKS) and not kubelet and not kueue" tests/kubernetes)

# Kueue takes three minutes to build, so it is built for this alone.
test-kueue: kube-binaries
	@$(PY) -m tests.kubernetes.cluster kueue
	@$(PY) -m pytest -q -m kueue tests/kubernetes/test_kueue.py

# Has it ever lied to us? The same seed is the same plan; MOST limits how many runs it starts.
MINUTES ?= 10
SEED ?= 1
MOST ?= 500
soak: env
	@$(PY) -m tools.soak --minutes $(MINUTES) --seed $(SEED) --runs $(MOST)

soak-manager: env
	@$(PY) -m tools.soak.managers --mariadb --seed $(SEED)

GRAPHS ?= 200
soak-graphs: env
	@$(PY) -m tools.soak.graphs --mariadb --graphs $(GRAPHS) --seed $(SEED)

# On kwok the API server is real and pods only pretend; its programs are those of `make kube-binaries`.
CLUSTER ?= local
soak-pools: MINUTES = 5
soak-pools: env
	@$(PY) -m tools.soak.pools --cluster $(CLUSTER) --minutes $(MINUTES) --seed $(SEED)

soak-growth: DAYS = 9
soak-growth: env
	@$(PY) -m tools.soak.growth --days $(DAYS) --seed $(SEED)

# The bench: faults between real components, and an oracle without our code (docs/faults.md). Root, MariaDB, PostgreSQL 15.
# AWAY=10: Temporal is away for so many minutes at a time, and records may not be late because of it.
PLAYED = --seed $(SEED) $(if $(filter command line environment,$(origin MINUTES)),--minutes $(MINUTES))
faults: fault-programs
	@$(PY) -m tools.faults $(PLAYED) $(if $(ONLY),--only "$(ONLY)") $(if $(LANDED),--landed $(LANDED)) $(if $(RESTORE),--restore $(RESTORE)) $(if $(AWAY),--away $(AWAY))

# The same with scrapyd beside ours, under the same faults. It gets a venv outside of the tree.
faults-scrapyd: fault-programs
	@$(PY) -m tools.faults --scrapyd $(PLAYED)

# Plain Jobs read by their status, and ours beside them, against what the nodes of kwok know. No root.
faults-jobs: kube-binaries toxiproxy
	@$(PY) -m tools.faults.jobs $(PLAYED)

# Both of these with so many seeds, in the table of docs/faults.md: half an hour for three of three minutes.
SEEDS ?= 3
faults-table: fault-programs kube-binaries
	@$(PY) -m tools.faults.table --seeds $(SEEDS) $(PLAYED)

# Three seeds of the newest commit in two minutes, on the dev server of Temporal's SDK: what CI can pay.
SHORT = $(shell printf '%d' 0x$$(git rev-parse --short=6 HEAD))0
faults-short: toxiproxy
	@echo "Temporal is the dev server of its SDK here; make faults plays on production's. The same again: SHORT=$(SHORT)"
	@$(PY) -m tools.faults --dev --seeds 3 --minutes 1.2 --seed $(SHORT)

# All that a short play, and that of Jobs, needs to have built.
toxiproxy: env
	@$(PY) -m tools.faults.build short

# toxiproxy and the production Temporal server, from pinned Go modules, into a cache folder outside of the tree.
fault-programs: env
	@$(PY) -m tools.faults.build

# Tests play fixed examples, so that a change is refused only for what it did. This looks for new ones, twenty times as
# many, each time others: it prints how to play a failure again. Mend it, and put what was found beside the property.
fuzz: env
	@HYPOTHESIS_PROFILE=search $(PY) -m pytest -q -m "hypothesis and not soak" -n $(JOBS) --timeout 3600 \
	  $(if $(filter command line environment,$(origin SEED)),--hypothesis-seed $(SEED)) $(if $(WHERE),$(WHERE))
	@$(if $(WHERE),true,$(PY) -m tests.runner.fuzz 10000 $(filter-out undefined,$(SEED)))

# The pin stays below 37 until those we share clusters with have moved. This tells early what will break, and a failure
# of it holds up nothing. Its environment is beside the cache of the cluster's programs: ours, with another client first.
NEXT_CLIENT ?= kubernetes>=37,<38
NEXT_ENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/crawler-lifecycle/kubernetes-37
test-kubernetes-37: env
	@echo "the Kubernetes client's next major release; it is allowed to lag behind the one that we pin"
	@test -x $(NEXT_ENV)/bin/python || python3 -m venv $(NEXT_ENV)
	@$(NEXT_ENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade '$(NEXT_CLIENT)'
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$($(NEXT_ENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth
	@$(NEXT_ENV)/bin/python -c 'import kubernetes; print("kubernetes", kubernetes.__version__)'
	@KUBERNETES_MAJOR=37 $(NEXT_ENV)/bin/python -m pytest -q tests/clusters/kubernetes

# Hashes only: the locks name no address, so that they work behind any mirror. The image's is a part of the other one.
COMPILE := uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url
lock:
	@$(COMPILE) --extra dev --extra pusher --extra otel --extra parquet --extra mcp --group test --group lint --group build --group docs \
	  pyproject.toml -o locks/all.lock
	@$(COMPILE) --extra dev --group build -c locks/all.lock pyproject.toml -o locks/run.lock
	@$(COMPILE) --extra pusher --extra otel -c locks/all.lock pyproject.toml -o locks/image.lock
	@$(COMPILE) -c locks/all.lock images/crawler/requirements.in -o images/crawler/requirements.lock
	@$(COMPILE) examples/foreign/requirements.in -o examples/foreign/requirements.lock
	@$(COMPILE) --python-version 3.11 images/sbom/requirements.in -o images/sbom/requirements.lock

lock-check: env
	@$(PY) -m pytest -q tests/packaging/test_locks.py

# Whether amd64 and arm64 have a wheel with a locked hash for every pin. It asks the package index for ten minutes at most.
test-locks: env
	@$(PY) -m tools.locks

# Whether newer packages that the façades of graphs follow have other public names. It asks the package index.
test-upstream: env
	@$(PY) -m tools.upstream --check

# The same sources give the same bytes.
wheel: env
	@rm -rf dist && $(PY) -m hatchling build -t wheel -d dist

# Both images by buildah, podman or docker (BUILDER), with digests, sizes and bills of materials, in dist/images. buildah
# stands on a base that is made of Debian's packages: no registry is asked. FRESH=1 takes Debian's updates; docs/images.md.
export BUILDER BUILD_ID PYTHON_IMAGE RUNTIME_IMAGE MIRROR
image: wheel
	@$(PY) -m tools.images build $(if $(FRESH),--fresh) $(if $(ONLY),--only $(ONLY))

# Crawlers of your own get an image like this one; see docs/crawlers.md.
crawler-image: wheel
	@$(PY) -m tools.images build --only crawlers $(if $(FRESH),--fresh)

# Once more, with nothing of the last build: the same digests?
image-again: env
	@$(PY) -m tools.images again

image-list: env
	@$(PY) -m tools.images list

image-deps:
	@command -v buildah mmdebstrap >/dev/null || (apt-get update -q && apt-get install -y -q --no-install-recommends buildah crun uidmap mmdebstrap)

# Both images as they ship, in pods of a real node: the services with all their processes, and Scrapy crawls.
test-image: export CRAWL_IMAGES = dist/images
test-image: env
	@$(MAKE) --no-print-directory image BUILD_ID=tested
	@$(MAKE) --no-print-directory test-deps kube-binaries
	@$(PY) -m pytest -q tests/kubernetes/real/test_service_pods.py tests/kubernetes/real/test_crawler_image.py -m "not slow and not soak"

# What clients are generated from, the pages of error codes and of settings, the map of packages; tests compare them
# with the code.
openapi: env
	@$(PY) -m tools.openapi docs
	@$(PY) -m tools.settings_page docs/settings.md
	@$(PY) -m tools.package_map CONTRIBUTING.md

# The picture in the README, taken during a real run.
picture: $(RUNS)
	@$(PY) -m examples.picture docs/watch.svg

# Those of docs/page.md, taken of a real stack in a real browser (`make test-deps`).
page-pictures: env
	@$(PY) -m tests.page.pictures docs/pictures

# dist/site: docs/ as a site, which asks no other server for anything. A broken link, anchor or file is refused.
site: env
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs --quiet build

bench: env
	@$(PY) -m benchmarks

# Every benchmark at its smallest size, so that none of them breaks unseen. Its figures mean nothing. Those that need a
# large installation are left out; it says which, and BENCHMARK_SMALL=1 python -m benchmarks NAME plays one of them.
bench-smoke: env
	@BENCHMARK_SMALL=1 $(PY) -m benchmarks --each

capacity: kube-binaries
	@$(PY) -m benchmarks capacity

clean:
	@rm -rf dist .venv .crawl .mypy_cache .ruff_cache .pytest_cache .hypothesis

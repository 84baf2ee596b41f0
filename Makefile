# What there is to do here. `make` alone lists it.

.DEFAULT_GOAL := help
.PHONY: help build man demo screenshots test test-all test-kubernetes test-restarts test-diagnosis fuzz soak soak-resume lint bench bench-compare bench-felt images dist dist-check cross clean

CARGO ?= cargo
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml)
SCRIPTS := .ci/run benches/compare/run benches/felt/run deploy/check packaging/cross packaging/dist packaging/fill-templates packaging/dist-check packaging/toolchain tests/cross/run tests/cross/wine tests/demo/run tests/fuzz/run tests/install-clients tests/run

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

build: ## Build the release binary, target/release/switchboard
	$(CARGO) build --release --locked

man: ## Write the manual pages into target/man
	$(CARGO) run --quiet --locked -- manual target/man

demo: ## Log in with a real ssh through the proxy to a throwaway sshd, and show what happened
	@tests/demo/run

screenshots: ## Take the pictures of the page of `switchboard desk`, into docs/desk
	tests/install-clients chromium chromium-driver
	mkdir -p docs/desk
	SWITCHBOARD_PICTURES=docs/desk $(CARGO) test --locked --test it desk::pictures::

test: ## Install what the tests need (Debian, Ubuntu), then run all but the slow ones, and say how many those are
	tests/install-clients
	tests/run
	SWITCHBOARD="$${CARGO_TARGET_DIR:-target}/debug/switchboard" deploy/check

test-all: ## Run all tests, before a release: the slow ones, too, and every login with the clients for musl and Windows
	tests/install-clients
	tests/run all
	SWITCHBOARD="$${CARGO_TARGET_DIR:-target}/debug/switchboard" deploy/check
	LOGINS=all PROFILE=dev tests/cross/run musl windows

test-kubernetes: ## Run the tests that need no faults against a real API server: KUBECONFIG=FILE
	@test -n "$(KUBECONFIG)" || { echo 'say which cluster: make test-kubernetes KUBECONFIG=FILE' >&2; exit 2; }
	tests/install-clients iproute2 util-linux
	SWITCHBOARD_TEST_KUBECONFIG="$(abspath $(KUBECONFIG))" $(CARGO) test --locked --test it -- kubernetes::shapes:: kubernetes::changes:: kubernetes::rights:: kubernetes::permissions:: kubernetes::kinds:: kubernetes::labelled_pods:: kubernetes::writes::a_request_for --skip ::measured::

test-restarts: ## Kill a real API server 20 times, and take rights back when it is there again: KUBE=DIR (tests/README.md says what it holds)
	@test -x "$(KUBE)/up.sh" || { echo 'say how it is started: make test-restarts KUBE=DIR' >&2; exit 2; }
	tests/install-clients iproute2 util-linux
	SWITCHBOARD_TEST_KUBE="$(abspath $(KUBE))" SWITCHBOARD_TEST_KUBECONFIG="$(abspath $(KUBE))/admin.kubeconfig" $(CARGO) test --locked --test it -- --nocapture kubernetes::restarts::

test-diagnosis: ## Make tunnels slow in 17 known ways, and count the right verdicts; it takes two minutes
	$(CARGO) build --locked
	SWITCHBOARD="$${CARGO_TARGET_DIR:-target}/debug/switchboard" tests/diagnosis/run

fuzz: ## Look for inputs that break a property, for SECONDS=60 a target; it installs cargo-fuzz
	tests/fuzz/run $(or $(SECONDS),60)

soak: ## Run everything at once for a while and compare every number, exactly, for MINUTES=20
	tests/install-clients iproute2 util-linux
	$(CARGO) test --locked --bench soak -- $(or $(MINUTES),20)

soak-resume: ## Copy MIB=1024 through sessions by scp and sftp while CUTS=1000 connections fail; SEED= repeats an order
	tests/install-clients openssh-client openssh-server
	SEED="$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '))" CUTS=$(or $(CUTS),1000) MIB=$(or $(MIB),1024) $(CARGO) test --locked --test it resume::slow::copies_are_exact_while

lint: ## Check format, lints, licences and sources; what is optional runs where it is installed
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --locked -- -D warnings
	$(CARGO) clippy --lib --test it --locked --features jump -- -D warnings
	$(CARGO) clippy --bench access --bench compare --bench resume --bench soak --locked -- -D warnings
	@$(call optional,cargo-deny,$(CARGO) deny --locked check --hide-inclusion-graph licenses bans sources)
	@$(call optional,shellcheck,shellcheck $(SCRIPTS))
	@$(call optional,hadolint,hadolint Dockerfile)
	@$(call optional,zizmor,zizmor --offline .github)
	@$(call optional,actionlint,actionlint)
	tests/install-clients python3-venv
	packaging/check-release
	packaging/check-api

bench: ## Run the benchmarks; a bound that is exceeded fails it
	$(CARGO) bench --locked --no-fail-fast

bench-compare: ## Measure beside Envoy and HAProxy, which it installs; a goal that is lost fails it
	benches/compare/run

bench-felt: ## Measure logins, copies and keystrokes by each way to an sshd, as a user feels them
	benches/felt/run

images: ## Build the images and that of the example, as localhost/…, and load them into the kind cluster CLUSTER=kind
	docker build --build-arg VERSION=$(VERSION) --build-arg REVISION="$$(git rev-parse HEAD)" --tag localhost/switchboard:$(VERSION) .
	docker build --build-arg VERSION=$(VERSION) --build-arg REVISION="$$(git rev-parse HEAD)" --tag localhost/switchboard-anchor:$(VERSION) --target anchor .
	docker build --tag localhost/ssh-container:ubuntu-24.04 deploy/examples/ssh-container/image
	kind load docker-image --name $(or $(CLUSTER),kind) localhost/switchboard:$(VERSION) localhost/switchboard-anchor:$(VERSION) localhost/ssh-container:ubuntu-24.04

dist: ## Make packages (deb, rpm), archives of the whole program and of the clients, an SBOM, licences and checksums, in target/dist
	packaging/dist

dist-check: ## Install what `make dist` has made in a Debian of its own, log in with it, and remove it; as root
	packaging/dist-check

cross: ## Compile the client (musl: and the anchor) for other systems, and log in: TARGETS="musl arm64 windows macos", PROFILE=dev is quicker, LOGINS=all has every test of a login
	PROFILE="$(or $(PROFILE),client)" LOGINS="$(LOGINS)" tests/cross/run $(TARGETS)

clean: ## Remove what was built
	$(CARGO) clean

# $(call optional,PROGRAM,COMMAND): a missing program is said aloud, so that it does not look like a pass.
optional = if command -v $(1) >/dev/null; then echo '$(2)'; $(2); else echo 'not run, $(1) is not installed: $(2)'; fi

# Everything a person does with this repository. `make help` lists it.
SHELL := /bin/sh
CARGO ?= cargo
PYTHON ?= python3
# rustup puts cargo there, and a shell that was open before does not look.
export PATH := $(PATH):$(HOME)/.cargo/bin
TERRACE := target/release/terrace

.DEFAULT_GOAL := help

.PHONY: help
help: ## the version, and the targets
	@sed -n 's/^version = "\(.*\)"$$/Terrace \1/p' Cargo.toml
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: needs
needs: ## install what the build needs (as root), or say in one line what is missing
	@scripts/needs build

.PHONY: build
build: needs ## build terrace, terraced and terrace-research into target/release
	@$(CARGO) build --release --locked -p terrace-cli -p terrace-daemon -p terrace-research

.PHONY: dist
dist: needs ## build the programs that packages hold into target/dist: smaller, and four times as long to build
	@$(CARGO) build --profile dist --locked -p terrace-cli -p terrace-daemon -p terrace-research

.PHONY: demo
demo: ## manage a real program and print what that saved and cost; where that is not possible, the next best, which it names
	@scripts/demo

.PHONY: places
places: build qemu-plugin ## try what works on the host, in containers and as an ordinary user, and enter it into docs/getting-started.md (needs root)
	@scripts/places --table docs/getting-started.md

.PHONY: test
test: needs ## run all tests, or TESTS=live, others, guests; those that need root or a kernel feature skip elsewhere and say why
	@scripts/test $(TESTS)

.PHONY: check-all
check-all: ## all that changes seldom: packages, wheel, browser, systemd, Prometheus, fuzzing, all guests (root; hours; PARTS='NAME ...' for some)
	@scripts/check-all $(PARTS)

.PHONY: rows-sample
rows-sample: build ## run one in fifty kept runs of the papers' experiments again whole and compare (resumes; BUDGET=15m limits it)
	@$(TERRACE) reproduce all --sample 50 $(if $(BUDGET),--budget $(BUDGET)) --output target/rows-sample.jsonl

.PHONY: lint
lint: needs ## formatting, clippy and the documentation, warnings denied; the documents' links
	@scripts/links
	@scripts/site --check
	@scripts/gallery --check
	@scripts/picture --check
	@python3 benchmarks/campaign.py --check
	@python3 benchmarks/coin.py --check
	@python3 benchmarks/density.py --check
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items

.PHONY: qemu-plugin
qemu-plugin: ## build the plugin that records programs and counts a guest's accesses (QEMU 6.0 to 8.2)
	@cd qemu-plugin && $(CARGO) build --release --locked

.PHONY: wheel
wheel: ## build the Python package: target/wheels/terrace-*.whl (fetches maturin once)
	@[ -x target/python/tools/bin/maturin ] || { $(PYTHON) -m venv target/python/tools && target/python/tools/bin/pip --quiet install 'maturin>=1.9,<2'; }
	@CARGO_TARGET_DIR=$(CURDIR)/target target/python/tools/bin/maturin build --quiet --release --locked --manifest-path python/Cargo.toml --out target/wheels

.PHONY: python-test
python-test: ## test the Python package in a fresh environment: the wheel, Dask, the notebooks
	@scripts/python-test

.PHONY: lab-programs
lab-programs: needs target/lab/kvm-guest target/lab/node-blocks ## build the programs that scenarios bring into the guest
	@$(CARGO) test --locked -p terrace-linux --no-run

target/lab/%: lab/%.c
	@mkdir -p target/lab
	@cc -O2 -Wall -pthread -static -o $@ $<

.PHONY: lab
lab: build lab-programs ## run every scenario on every kernel it names, and enter the results into docs/kernels.md (needs QEMU; an hour)
	@scripts/needs lab
	@$(TERRACE) lab run --kernel all --table docs/kernels.md lab/scenarios/*.toml

.PHONY: bpf
bpf: ## rebuild the shipped eBPF object (needs clang 14 or later)
	@crates/bpf/build-object

.PHONY: deb
deb: dist qemu-plugin ## make the Debian packages: the programs, the QEMU plugin, debug symbols, the kernel module's source for DKMS
	@scripts/package deb

.PHONY: rpm
rpm: dist qemu-plugin ## make the RPM packages (needs rpmbuild: apt install rpm)
	@scripts/needs package
	@scripts/package rpm

.PHONY: image
image: dist ## make the container image, an OCI layout in a tar (podman load, skopeo copy oci-archive:)
	@scripts/package image

# Programs that depend on no library: they run on any distribution with a kernel that is new enough.
STATIC_RUSTFLAGS := -C target-feature=+crt-static

.PHONY: static
static: dist ## make a tar.gz of programs for x86-64 that need no library (builds them a second time)
	@rustup -q target add x86_64-unknown-linux-gnu
	@RUSTFLAGS="$(STATIC_RUSTFLAGS)" $(CARGO) build --profile dist --locked --target x86_64-unknown-linux-gnu -p terrace-cli -p terrace-daemon -p terrace-research --features terrace-cli/static,terrace-daemon/static,terrace-research/static
	@scripts/package static

.PHONY: aarch64
aarch64: dist ## make a tar.gz of programs for aarch64, built here by cross compilation, that need no library
	@scripts/needs aarch64
	@rustup -q target add aarch64-unknown-linux-gnu
	@CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc RUSTFLAGS="$(STATIC_RUSTFLAGS)" $(CARGO) build --profile dist --locked --target aarch64-unknown-linux-gnu -p terrace-cli -p terrace-daemon -p terrace-research --no-default-features
	@scripts/package aarch64

.PHONY: chart
chart: ## pack the Helm chart
	@scripts/package chart

.PHONY: release
release: dist qemu-plugin wheel $(RELEASE_ALSO) ## make all packages, SBOM, changes and checksums into target/release-artifacts (RELEASE_ALSO='static aarch64' for those as well)
	@scripts/needs package
	@RELEASE_ALSO="$(RELEASE_ALSO)" scripts/package release

.PHONY: package-test
package-test: ## install the packages of target/release-artifacts into fresh roots, and render the chart (needs root)
	@scripts/package-test

.PHONY: site
site: ## make the documentation site: target/site/index.html (builds mdBook once)
	@scripts/site

.PHONY: audit
audit: ## look for known vulnerabilities of the dependencies (needs cargo-audit, and the network once)
	@scripts/audit

.PHONY: sbom
sbom: ## list what the programs are made of: target/terrace.cdx.json (CycloneDX)
	@scripts/sbom

.PHONY: hostile
hostile: needs ## a thousand hostile connections for ten minutes beside root's orders and scrapes (needs root)
	@TERRACE_HOSTILE_SECONDS=$${TERRACE_HOSTILE_SECONDS:-600} $(CARGO) test --locked -p terrace-cli --test live_access -- a_thousand_hostile

.PHONY: soak
soak: needs ## the daemon under a storm for SOAK_SECONDS (7200): nothing of its own grows (needs root; SOAK_PROFILE=release, SOAK_OUTPUT=FILE.csv)
	@TERRACE_SOAK_SECONDS=$${SOAK_SECONDS:-7200} TERRACE_SOAK_OUTPUT=$$(realpath -m -- $${SOAK_OUTPUT:+"$$SOAK_OUTPUT"} 2>/dev/null) $(CARGO) test --locked --workspace --profile $${SOAK_PROFILE:-dev} --test live_soak

.PHONY: starts
starts: needs ## STARTS starts (500) of the tracker accessed-bits under a storm, and beside memory full of a misleading word: all are proven (needs root)
	@TERRACE_STARTS=$${STARTS:-500} $(CARGO) test --locked -p terrace-linux --test live_starts -- --test-threads=1 --nocapture starts_

.PHONY: bench
bench: build ## programs under Terrace and its peers on this machine, in parts of BENCH_MINUTES (45); the same command goes on (needs root)
	@$(CARGO) build --locked --release -p terrace-research --example redis_load
	@python3 benchmarks/campaign.py --minutes $${BENCH_MINUTES:-45}

.PHONY: traces
traces: build qemu-plugin ## record twelve real programs by the recipes of benchmarks/traces into target/traces (TRACES='NAME ...' for some; 20 minutes)
	@$(PYTHON) benchmarks/traces.py $(TRACES)

.PHONY: fuzz
fuzz: needs ## fuzz every decoder and parser, FUZZ_SECONDS each (600); faults are kept in fuzz/findings
	@$(CARGO) build --locked --quiet --workspace --bin terrace-fuzz
	@target/debug/terrace-fuzz all --seconds $${FUZZ_SECONDS:-600} --seed $${FUZZ_SEED:-1}

.PHONY: clean
clean: ## remove what the build made
	@$(CARGO) clean

# One line per target: 'make help'.  Everything may be run again at any time;
# a second run needs no network.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PREFIX      ?= /usr/local
EXEC_PREFIX ?= $(PREFIX)
BINDIR      ?= $(EXEC_PREFIX)/bin
LIBDIR      ?= $(EXEC_PREFIX)/lib
INCLUDEDIR  ?= $(PREFIX)/include
MANDIR      ?= $(PREFIX)/share/man
DOCDIR      ?= $(PREFIX)/share/doc/ofi
EXAMPLEDIR  ?= $(DOCDIR)/examples
DATADIR     ?= $(PREFIX)/share/ofi
DESTDIR     ?=
CARGO       ?= cargo
TARGET      ?= $(or $(CARGO_TARGET_DIR),target)/release
URL         ?= https://github.com/ofiwg/libfabric
# Where the symbols of what is installed go: 'beside' it, in .debug, where debuggers look; 'keep' has
# them stay in it, for those who take them out themselves (dh_strip); 'none' leaves them out.
SYMBOLS     ?= beside
OBJCOPY     ?= objcopy

# The file the links point to.  Its number sorts like those of the original,
# so that ldconfig picks the newer of two libraries with this SONAME.
LIBVERSION  := 1.32.1
# The API version the library answers to fi_version(), and pkg-config to callers.
APIVERSION  := $(shell sed -n 's/^pub const FI_\(MAJOR\|MINOR\|REVISION\)_VERSION: .* = \([0-9]*\);/\2/p' src/abi/fabric.rs | paste -sd.)
# providers/example is there to be copied, not to be used.
PLUGINS      = $(filter-out example,$(patsubst lib%_fi.so,%,$(notdir $(wildcard $(TARGET)/lib*_fi.so))))
TOOLS       := fi_info fi_pingpong fi_perf fi_strerror fi_ps fi_top fi_doctor fi_mon_sampler fi_trace
EXAMPLES    := msg.c rdm.c tagged.c rma.c atomic.c scalable.c common.h Makefile README.md
LOCAL       := $(CURDIR)/out/prefix
VERSION     := $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)

# No name of a folder of this machine goes into what is built, so that two builds have the same bytes:
# the sources are in /usr/src/ofi, what cargo fetched in /usr/src/crates.
CARGO_FILES := $(or $(CARGO_HOME),$(HOME)/.cargo)
BUILD_ENV    = RUSTFLAGS="$(RUSTFLAGS) --remap-path-prefix=$(CARGO_FILES)/registry/src=/usr/src/crates --remap-path-prefix=$(abspath $(TARGET))=/usr/src/ofi/target --remap-path-prefix=$(CURDIR)=/usr/src/ofi" \
               CFLAGS="$(CFLAGS) -ffile-prefix-map=$(CARGO_FILES)/registry/src=/usr/src/crates -ffile-prefix-map=$(abspath $(TARGET))=/usr/src/ofi/target -ffile-prefix-map=$(CURDIR)=/usr/src/ofi"
# put FROM TO: installs a library or program of the build, with its symbols as SYMBOLS says. What a
# program has mapped is replaced, not written to.
PUT          = put() { local new="$(TARGET)/.put" debug="$${2%/*}/.debug/$${2\#\#*/}.debug"; case "$(SYMBOLS)" in \
	    keep) install -m 755 "$$1" "$$2" && rm -f "$$debug";; \
	    none) $(OBJCOPY) --strip-unneeded "$$1" "$$new" && install -m 755 "$$new" "$$2" && rm -f "$$new" "$$debug";; \
	    beside) install -d "$${debug%/*}" && $(OBJCOPY) --only-keep-debug "$$1" "$$new.debug" && install -m 644 "$$new.debug" "$$debug" && \
	      $(OBJCOPY) --strip-unneeded --add-gnu-debuglink="$$debug" "$$1" "$$new" && install -m 755 "$$new" "$$2" && rm -f "$$new" "$$new.debug";; \
	    *) echo "SYMBOLS is beside, keep or none" >&2; false;; esac; }

.PHONY: help build install uninstall local dist deb rpm wheel recipes demo test check check-long check-packages check-verbs check-aarch64 check-processors bench docs features conformance hangs fmt lint headers clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# The headers are committed: what writes them ('make headers') takes long to compile.
build: ## the library, its providers and the tools, optimised
	$(BUILD_ENV) $(CARGO) build --release --workspace --exclude ofi --exclude example-fi

# Everything that is installed goes through here, so that uninstall knows it.
install: build ## into PREFIX (default /usr/local), under DESTDIR if given
	@[ -e include/rdma/fabric.h ] || { echo "include/rdma is missing: run 'make headers'" >&2; exit 1; }
	@[ -n "$(PLUGINS)" ] || { echo "no provider was built in $(TARGET)" >&2; exit 1; }
	install -d "$(DESTDIR)$(LIBDIR)/libfabric" "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(INCLUDEDIR)/rdma/providers"
	@$(PUT); put "$(TARGET)/libfabric.so" "$(DESTDIR)$(LIBDIR)/libfabric.so.$(LIBVERSION)"
	ln -sf libfabric.so.$(LIBVERSION) "$(DESTDIR)$(LIBDIR)/libfabric.so.1"
	ln -sf libfabric.so.1 "$(DESTDIR)$(LIBDIR)/libfabric.so"
	@$(PUT); for p in $(PLUGINS); do put "$(TARGET)/lib$${p}_fi.so" "$(DESTDIR)$(LIBDIR)/libfabric/lib$$p-fi.so" || exit; done
	(cd include && find rdma kfi -name '*.h' -exec install -D -m 644 {} "$(abspath $(DESTDIR)/)$(INCLUDEDIR)/{}" \;)
	sed -e 's|@prefix@|$(PREFIX)|' \
	    -e 's|@exec_prefix@|$(if $(filter $(PREFIX),$(EXEC_PREFIX)),$${prefix},$(EXEC_PREFIX))|' \
	    -e 's|@libdir@|$(if $(filter $(EXEC_PREFIX)/lib,$(LIBDIR)),$${exec_prefix}/lib,$(LIBDIR))|' \
	    -e 's|@includedir@|$(if $(filter $(PREFIX)/include,$(INCLUDEDIR)),$${prefix}/include,$(INCLUDEDIR))|' \
	    -e 's|@url@|$(URL)|' -e 's|@version@|$(APIVERSION)|' \
	    pkgconfig/libfabric.pc.in > "$(DESTDIR)$(LIBDIR)/pkgconfig/libfabric.pc"
	@$(PUT); for t in $(TOOLS); do put "$(TARGET)/$$t" "$(DESTDIR)$(BINDIR)/$$t" || exit; done
	@$(PUT); put "$(TARGET)/libdaplofi.so" "$(DESTDIR)$(LIBDIR)/libdaplofi.so.2"
	install -d "$(DESTDIR)$(DOCDIR)"
	sed -e 's|@libdir@|$(LIBDIR)|' capi/dapl/dat.conf.in > "$(DESTDIR)$(DOCDIR)/dat.conf"
	install -d "$(DESTDIR)$(EXAMPLEDIR)"
	install -m 644 $(EXAMPLES:%=examples/%) "$(DESTDIR)$(EXAMPLEDIR)"
	install -d "$(DESTDIR)$(DATADIR)"
	sed -e 's|@plug-ins@|$(LIBDIR)/libfabric/*-fi.so|' tools/src/fi_trace/libfabric.bt > "$(DESTDIR)$(DATADIR)/libfabric.bt"
	"$(TARGET)/manpages" docs/man ctest/abi "$(DESTDIR)$(MANDIR)"
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || case "$(LIBDIR)" in /usr/lib|/usr/lib/*|/usr/local/lib|/usr/local/lib/*|/lib|/lib/*) ldconfig || true;; esac

uninstall: ## what install put into PREFIX
	rm -f "$(DESTDIR)$(LIBDIR)"/libfabric.so "$(DESTDIR)$(LIBDIR)"/libfabric.so.1 "$(DESTDIR)$(LIBDIR)/libfabric.so.$(LIBVERSION)"
	for p in $(PLUGINS); do rm -f "$(DESTDIR)$(LIBDIR)/libfabric/lib$$p-fi.so"; done
	(cd include && find rdma kfi -name '*.h' -exec rm -f "$(abspath $(DESTDIR)/)$(INCLUDEDIR)/{}" \;)
	rm -f "$(DESTDIR)$(LIBDIR)/pkgconfig/libfabric.pc"
	for t in $(TOOLS); do rm -f "$(DESTDIR)$(BINDIR)/$$t"; done
	rm -f "$(DESTDIR)$(LIBDIR)/libdaplofi.so.2" "$(DESTDIR)$(DOCDIR)/dat.conf" "$(DESTDIR)$(DATADIR)/libfabric.bt"
	for e in $(EXAMPLES); do rm -f "$(DESTDIR)$(EXAMPLEDIR)/$$e"; done
	rm -f "$(DESTDIR)$(LIBDIR)/.debug"/{libfabric.so.$(LIBVERSION),libdaplofi.so.2}.debug; for t in $(TOOLS); do rm -f "$(DESTDIR)$(BINDIR)/.debug/$$t.debug"; done
	for p in $(PLUGINS); do rm -f "$(DESTDIR)$(LIBDIR)/libfabric/.debug/lib$$p-fi.so.debug"; done
	if [ -x "$(TARGET)/manpages" ]; then "$(TARGET)/manpages" docs/man ctest/abi --list | while read -r f; do rm -f "$(DESTDIR)$(MANDIR)/$$f"; done; fi
	-rmdir --ignore-fail-on-non-empty "$(DESTDIR)$(LIBDIR)/.debug" "$(DESTDIR)$(LIBDIR)/libfabric/.debug" "$(DESTDIR)$(BINDIR)/.debug" "$(DESTDIR)$(EXAMPLEDIR)" "$(DESTDIR)$(DOCDIR)" "$(DESTDIR)$(DATADIR)" "$(DESTDIR)$(LIBDIR)/libfabric" "$(DESTDIR)$(INCLUDEDIR)/rdma/providers" "$(DESTDIR)$(INCLUDEDIR)/rdma" "$(DESTDIR)$(INCLUDEDIR)/kfi" 2>/dev/null

local: ## install into out/prefix, where demo, check and bench look
	@$(MAKE) --no-print-directory install PREFIX="$(LOCAL)" EXEC_PREFIX="$(LOCAL)" BINDIR="$(LOCAL)/bin" LIBDIR="$(LOCAL)/lib" INCLUDEDIR="$(LOCAL)/include" MANDIR="$(LOCAL)/share/man" DOCDIR="$(LOCAL)/share/doc/ofi" EXAMPLEDIR="$(LOCAL)/share/doc/ofi/examples" DATADIR="$(LOCAL)/share/ofi" DESTDIR=

dist: ## out/dist/ofi-VERSION.tar.xz: the sources of HEAD and of all crates, which build without a network
	@packaging/make-dist

deb: ## Debian packages of that archive, in out/deb (docs/packaging.md)
	@packaging/make-deb

rpm: ## RPM packages of it, in out/rpm
	@packaging/make-rpm

wheel: ## a wheel of PyPI with the library and its Python bindings, in out/wheel
	@packaging/make-wheel

recipes: ## recipes of Spack and conda for that archive, in out/recipes
	@packaging/make-recipes

demo: ## build, then real programs over the library: example, fi_pingpong, Open MPI; figures by fi_perf
	@ctest/programs/demo

test: local ## unit tests of the shared crates, and conformance over tcp and shm: the quick check of a change
	$(CARGO) test -q -p ofi -p ofi-stats -p ofi-hosts -p ofi-core -p ofi-provider -p ofi-stream --lib
	PROV="tcp:rdm shm:rdm" CT_JOBS=3 ctest/run

check: ## every check there is; ends with 'N passed, N failed, N skipped'
	@ctest/check

check-long: ## the same with long soaks: faults, random calls and fuzzing for hours in place of minutes
	@CHECK_LONG=1 ctest/check

check-packages: ## every package built and tested: archive, Debian, RPM, wheel, Spack, conda, container (root)
	@CHECK_ONLY="archive debian rpm wheel recipes container" ctest/check

check-verbs: local ## the verbs provider over software RDMA, in a small QEMU guest
	@ctest/vm/run

check-aarch64: ## the library built for aarch64 and tested by qemu-user, in a Debian of its own (root)
	@ctest/processors/run aarch64

check-processors: ## the same for every architecture of ctest/processors/run
	@CHECK_ONLY="$$(ctest/processors/run --list)" ctest/check

bench: ## compare with the original (BENCH_PEER=dir: another libfabric besides)
	@mkdir -p out; rm -f out/figures.new
	@export BENCH_FIGURES='$(CURDIR)/out/figures.new'; benches/run; rc=$$?; benches/local || rc=1; benches/first || rc=1; \
	  benches/busy || rc=1; benches/network || rc=1; benches/streams || rc=1; benches/secret || rc=1; benches/mpi || rc=1; benches/perf || rc=1; \
	  mv out/figures.new out/figures.tsv; exit $$rc

MDBOOK := $(or $(shell command -v mdbook),out/mdbook/bin/mdbook)
out/mdbook/bin/mdbook:
	$(CARGO) install mdbook --version '^0.5' --locked --root out/mdbook

docs: $(MDBOOK) ## all documentation as a site, in out/site, with charts of the last 'make bench'
	$(CARGO) run --quiet --release -p ofi-docs --bin site . $(firstword $(wildcard out/figures.tsv) docs/figures.tsv) out/site-source
	$(MDBOOK) build out/site-source --dest-dir '$(CURDIR)/out/site'
	@echo "out/site/index.html"

features: local ## FEATURES.md, from what providers offer and open
	ctest/programs/features >out/FEATURES.md
	mv out/FEATURES.md FEATURES.md

conformance: local ## docs/conformance.md, from a run of the conformance suite
	@FI_LNX_PROV_LINKS=shm+tcp CT_HMEM='cuda rocr' PROV='tcp:rdm tcp:msg tcp;ofi_rxm:rdm udp:dgram shm:rdm udp;ofi_rxd:rdm sockets:rdm sockets:msg sockets:dgram net:rdm net:msg lnx:rdm' ctest/hmem/run --matrix docs/conformance.md >out/conformance.log; tail -1 out/conformance.log
	@{ printf '\n## uDAPL\n\nTests of `ctest/programs/dapl` over `tcp`: dat_srq_post_recv(3DAT) and related calls.\n\n'; \
	  ctest/programs/dapl | sed -n 's/^ok   dapl: /- /p' | awk '!seen[$$0]++'; } >>docs/conformance.md

hangs: local ## docs/hangs.md, from jobs that hang
	DOCTOR_BOOK=docs/hangs.md ctest/programs/doctor
	DOCTOR_BOOK=docs/hangs.md ctest/programs/mpi_doctor
	DOCTOR_BOOK=docs/hangs.md ctest/programs/doctor_hosts
	DOCTOR_BOOK=docs/hangs.md DOCTOR_HOSTS=8 DOCTOR_ONLY=barrier ctest/programs/mpi_doctor

# the parts of the ABI's module, which cargo fmt does not reach
ABI := $(filter-out %/mod.rs,$(wildcard src/abi/*.rs))
fmt: ## format the Rust sources
	$(CARGO) fmt --all
	rustfmt --edition 2024 $(ABI)

TYPOS := $(or $(shell command -v typos),out/typos/bin/typos)
# The same program of PyPI needs no compiler, which takes minutes for that of the crate.
out/typos/bin/typos:
	{ python3 -m pip install --quiet --no-deps --only-binary :all: --target out/typos/wheel typos==1.52.0 && install -D out/typos/wheel/bin/typos $@; } || \
	  $(CARGO) install typos-cli --version '=1.52.0' --locked --root out/typos

lint: $(TYPOS) ## formatting, clippy and words (typos.toml), warnings are errors
	$(CARGO) fmt --all --check
	rustfmt --edition 2024 --check $(ABI)
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(TYPOS) --config typos.toml

headers: ## generate include from src/abi
	$(CARGO) build -p ofi

clean: ## remove what was built
	$(CARGO) clean
	rm -rf out

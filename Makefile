# What a newcomer calls. The work is done by the scripts in tools/.

.PHONY: all tools build demo test fuzz soak kubelet conformance bench

all: build

# Packages and pinned tools for demo and test; safe to repeat.
tools:
	tools/install

build:
	cargo build --release -p shim

# One container in gVisor, through a containerd of its own.
demo:
	tools/install --no-testhost --no-cargo
	cargo build --release -p shim
	tools/demo

# Every gate and every test; the last line counts them.
test:
	tools/install
	tools/test

# The properties of every parser, with CASES inputs each instead of 256.
fuzz:
	PROPTEST_CASES=$(or $(CASES),20000) cargo test -p cgroups -p sandbox -p shim --lib --bins any_

# 200 pods in a row, then 10 at a time for 10 minutes, and one shim through 400
# rounds. SOAK_PODS, SOAK_SECONDS, SOAK_AT_ONCE and SOAK_ROUNDS change the numbers.
soak:
	tools/install --no-testhost --no-cargo
	cargo build -p shim
	cargo test -p integration --test soak -- --ignored --nocapture --test-threads=1

# Pods by a real kubelet, which is built first.
kubelet:
	tools/install --no-testhost --no-cargo --kubelet
	cargo build -p shim
	cargo test -p integration --test kubelet -- --test-threads=1

# The same, then containerd's own suites and critest, against runc's shim and ours side
# by side.
conformance: kubelet
	tools/install --no-testhost --no-cargo
	cargo build -p shim
	tools/conformance

# The shim's times and memory beside runc's and the bare runsc commands, and what its
# figures cost.
bench:
	tools/install --no-testhost --no-cargo
	cargo build --release -p shim
	cargo build -p integration --example stats
	bench/run
	bench/metrics

#!/usr/bin/env bash
# Installs what Sandfleet needs on Debian 12 or 13: packages, a virtual environment, the native
# binaries. Only what is missing, so running it again takes a second.
#
#   scripts/install.sh           all that `make demo` and `make test` need
#   scripts/install.sh --bench   also the peers that the benchmarks compare with
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
PACKAGES=(
	gcc make pkg-config libc6-dev musl-tools   # launcher and agent
	clang bpftool libbpf-dev libelf-dev        # eBPF sensor
	erofs-utils debootstrap util-linux         # layers
	skopeo golang-github-containers-common     # images of others, and which may be trusted
	btrfs-progs                                # caps of what sandboxes write
	redis-server                               # live state; NATS comes from PyPI
	prometheus iproute2 busybox-static file    # tests: promtool, a root file system
)
PEERS=(runc docker.io)
[[ "${1:-}" == --bench ]] && PACKAGES+=("${PEERS[@]}")

say() { printf 'install: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# ---------------------------------------------------------------- Debian's packages

missing_packages() {
	local package
	for package in "$@"; do
		[[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
			printf '%s\n' "$package"
	done
}

POLICY=/usr/sbin/policy-rc.d

# While packages are set up, nothing they bring may start: Sandfleet runs its own servers, and
# only while it is up.
forbid_starts() {
	[[ -e $POLICY ]] && mv "$POLICY" "$POLICY.sandfleet-saved"
	printf '#!/bin/sh\nexit 101\n' >"$POLICY"
	chmod 755 "$POLICY"
	trap allow_starts EXIT
	trap 'exit 130' INT TERM
}

allow_starts() {
	rm -f "$POLICY"
	[[ -e $POLICY.sandfleet-saved ]] && mv "$POLICY.sandfleet-saved" "$POLICY"
	trap - EXIT INT TERM
}

# And not at the next boot either, where they were not there before.
disable_services() {
	local unit
	command -v systemctl >/dev/null || return 0
	for unit in redis-server prometheus docker containerd; do
		[[ " $* " == *" $unit"* ]] && systemctl disable --quiet "$unit" 2>/dev/null || true
	done
}

apt_quietly() {
	DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet --yes --no-install-recommends \
		-o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
}

install_packages() {
	local missing log
	mapfile -t missing < <(missing_packages "$@")
	((${#missing[@]})) || return 0
	command -v apt-get >/dev/null || fail "this is not Debian; install by hand: ${missing[*]}"
	((EUID == 0)) || fail "become root, or run: sudo apt-get install ${missing[*]}"
	say "apt packages: ${missing[*]}"
	log=$(mktemp)
	forbid_starts
	# The lists may be new enough already; asking for them takes longer than most installs.
	if ! apt_quietly install "${missing[@]}" >"$log" 2>&1; then
		say "updating apt's lists"
		apt_quietly update >"$log" 2>&1 || say "apt-get update: $(tail -n 1 "$log")"
		apt_quietly install "${missing[@]}" >"$log" 2>&1 || {
			tail -n 5 "$log" >&2
			rm -f "$log"
			fail "apt-get failed"
		}
	fi
	allow_starts
	disable_services "${missing[@]}"
	rm -f "$log"
}

# ---------------------------------------------------------------- Python

is_new_enough() {
	"$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
	local name
	for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
		is_new_enough "$name" && { command -v "$name"; return; }
	done
	return 1
}

make_venv() {
	local python
	[[ -x $VENV/bin/python ]] && is_new_enough "$VENV/bin/python" && return
	if ! python=$(find_python); then
		install_packages python3
		python=$(find_python) || fail "needs Python 3.11 or newer; set PYTHON"
	fi
	say "virtual environment with $("$python" --version)"
	rm -rf "$VENV"
	"$python" -m venv "$VENV" >/dev/null 2>&1 && return
	# Debian's python3 comes without ensurepip.
	rm -rf "$VENV"
	install_packages python3-venv
	"$python" -m venv "$VENV" || fail "$python cannot make a virtual environment"
}

# What the environment was made from; another place or another file makes it anew.
python_state() {
	{ pwd; cat pyproject.toml constraints.txt; } | sha256sum
}

install_python() {
	local stamp=$VENV/.sandfleet
	make_venv
	[[ -f $stamp && "$(cat "$stamp")" == "$(python_state)" ]] && return
	say "Python packages"
	"$VENV/bin/python" -m pip install --quiet --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	python_state >"$stamp"
}

# ---------------------------------------------------------------- native binaries

build_native() {
	make --silent --directory native -j2
	if [[ -r /sys/kernel/btf/vmlinux ]]; then
		make --silent --directory native/bpf
	else
		say "no security sensor: this kernel shows no types (doctor line 'btf')"
	fi
}

install_packages "${PACKAGES[@]}"
install_python
build_native

#!/bin/sh
# Set up, try and test layerfs from a fresh checkout; needs nothing but python3 (3.11 or newer).
#
#   sh bootstrap.sh setup          make .venv with layerfs in it
#   sh bootstrap.sh demo           setup, then the whole main job on a real project, step by step
#   sh bootstrap.sh test           setup, then ruff, mypy --strict and the tests
#   sh bootstrap.sh test --full    the full tier too: long sweeps and big trees
#
# System packages are installed with apt-get where they are missing and that is possible (root, or sudo without a
# password); otherwise the script says what is missing and goes on with what is there.
#
#   PYTHON=python3.12    the interpreter to use
#   NO_APT=1             never call apt-get
#   VENV=DIR             where the virtual environment goes (default .venv)

set -u
cd "$(dirname "$0")" || exit 1

VENV=${VENV:-.venv}
ROOT=$(pwd)
READY=$VENV/layerfs-is-ready

say() { printf '%s\n' "bootstrap: $*"; }
die() { printf '%s\n' "bootstrap: error: $*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

python_is_new() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
        if have "$candidate" && python_is_new "$candidate"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# Print the Debian packages that are missing for the program itself and for everything the tests try.
missing_packages() {
    python=$(find_python) || { echo python3; python=python3; }
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    header='import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
    "$python" -c "$header" 2>/dev/null || echo python3-dev
    have cc || have gcc || echo gcc libc6-dev
    have git || echo git
    have pkg-config || echo pkg-config
    have fusermount3 || echo fuse3
    { have pkg-config && pkg-config --exists fuse3; } || echo libfuse3-dev
    have setfattr || echo attr
    have setfacl || echo acl
    have setcap || [ -x /sbin/setcap ] || echo libcap2-bin
    have strace || echo strace
    have make || echo make
    have groff || echo groff-base
    have mkfs.btrfs || [ -x /sbin/mkfs.btrfs ] || echo btrfs-progs
    have mkfs.xfs || [ -x /sbin/mkfs.xfs ] || echo xfsprogs
    have unshare || echo util-linux
    have mkfs.ext4 || [ -x /sbin/mkfs.ext4 ] || echo e2fsprogs
    have rsync || echo rsync
    have inotifywait || echo inotify-tools
    # Hundreds of MB that only some tests want: a developer without them skips those tests, CI skips none.
    if [ "${CI:-}" = true ]; then
        have npm || echo npm
        have cargo || echo cargo
    fi
}

install_packages() {
    wanted=$(missing_packages | tr '\n' ' ')
    [ -n "${wanted% }" ] || return 0
    if [ -n "${NO_APT:-}" ] || ! have apt-get; then
        say "not installed here, and apt-get is not used: $wanted"
        return 0
    fi
    say "installing $wanted"
    if ! as_root true; then
        say "neither root nor sudo without a password: going on without $wanted"
        return 0
    fi
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    if ! as_root apt-get install -y --no-install-recommends $wanted >/dev/null 2>&1; then
        as_root apt-get update >/dev/null 2>&1 || say "apt-get update failed (no network?)"
        for package in $wanted; do
            as_root apt-get install -y --no-install-recommends "$package" >/dev/null 2>&1 ||
                say "could not install $package; what needs it is left out or fails by name"
        done
    fi
}

# pip is quiet unless it fails.
pip_install() {
    if "$VENV/bin/python" -m pip install --disable-pip-version-check "$@" >"$VENV/pip.log" 2>&1; then
        return 0
    fi
    tail -n 20 "$VENV/pip.log" >&2
    return 1
}

# Newer than the marker means that the environment has to be made again.
is_ready() {
    [ -f "$READY" ] && [ -x "$VENV/bin/python" ] || return 1
    [ -z "$(find pyproject.toml setup.py csrc -newer "$READY" -print 2>/dev/null | head -n 1)" ]
}

setup() {
    if is_ready && { [ "$(cat "$READY")" = "$1 $ROOT" ] || [ "$(cat "$READY")" = "test $ROOT" ]; }; then
        return 0
    fi
    install_packages
    python=$(find_python) || die "python 3.11 or newer is needed; set PYTHON to one"
    [ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV" || die "cannot make a virtual environment in $VENV"
    say "installing layerfs into $VENV"
    if [ "$1" = test ]; then
        LAYERFS_REQUIRE_NATIVE=1 pip_install -e '.[dev]' ||
            die "pip could not install layerfs with its compiled kernels and the test tools"
    else
        pip_install -e . || die "pip could not install layerfs"
    fi
    "$VENV/bin/python" -c 'import layerfs.kernels._native' 2>/dev/null ||
        say "the compiled kernels were not built (no C compiler?): layerfs works, several times slower"
    pip_install 'pyfuse3>=3.4' >/dev/null 2>&1 ||
        say "pyfuse3 could not be installed: the fuse engine is not available, the others are"
    printf '%s\n' "$1 $ROOT" >"$READY"
}

run_step() {
    title=$1
    shift
    say "$title"
    if "$@"; then
        results="$results
    ok      $title"
    else
        results="$results
    FAILED  $title"
        failed=1
    fi
}

run_tests() {
    tier=''
    for option in "$@"; do
        case $option in
            --full) tier=--full ;;
            *) die "test takes --full only, not '$option'" ;;
        esac
    done
    setup test
    results='' failed=0
    run_step "ruff" "$VENV/bin/python" -m ruff check .
    run_step "mypy --strict" "$VENV/bin/python" -m mypy
    # shellcheck disable=SC2086
    run_step "pytest $tier" "$VENV/bin/python" -m pytest -n auto $tier
    say "results:$results"
    [ "$failed" = 0 ] || { say "FAILED"; exit 1; }
    say "all passed"
}

case ${1:-} in
    setup)
        setup plain
        say "ready: $VENV/bin/layerfs"
        ;;
    demo)
        shift
        setup plain
        PATH="$ROOT/$VENV/bin:$PATH"
        case $VENV in /*) PATH="$VENV/bin:$PATH" ;; esac
        export PATH
        exec sh benchmarks/demo.sh "$@"
        ;;
    test)
        shift
        run_tests "$@"
        ;;
    *)
        sed -n '2,15s/^# \{0,1\}//p' "$0"
        [ "${1:-}" = --help ] || exit 2
        ;;
esac

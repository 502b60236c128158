#!/bin/sh
# The whole main job on a real environment, step by step: a project with git history, a virtualenv, node_modules and
# build output goes init -> fork -> mount / run -> edit, install, test -> status, diff -> commit -> merge -> publish ->
# log, blame -> checkout, and the result is compared with what is expected, file by file.
#
#   sh bootstrap.sh demo            everything in a temporary directory, removed at the end
#   DEMO_DIR=DIR                    use and keep this directory (made if needed; must be empty)
#   DEMO_QUICK=1                    a small environment (no packages from the network)
#
# Without root the forks are entered with `layerfs run` in a user namespace and mounted as copies. Without a network the
# virtualenv and node_modules are made of generated files, and the demo says so.

set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
command -v layerfs >/dev/null 2>&1 || { echo "demo: no layerfs on PATH; run 'sh bootstrap.sh demo'" >&2; exit 1; }

KEEP=${DEMO_DIR:-}
WORK=${DEMO_DIR:-$(mktemp -d "${TMPDIR:-/tmp}/layerfs-demo-XXXXXX")}
WORK=$(mkdir -p "$WORK" && cd "$WORK" && pwd -P)
PROJECT=$WORK/shop
export LAYERFS_STORE="$WORK/store"
export LAYERFS_AUTHOR="${LAYERFS_AUTHOR:-Demo <demo@example.org>}"
unset PYTHONDONTWRITEBYTECODE PYTHONPATH VIRTUAL_ENV 2>/dev/null || true
export PIP_DISABLE_PIP_VERSION_CHECK=1 npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false

clean_up() {
    status=$?
    trap - EXIT INT TERM HUP
    cd /
    if [ -d "$LAYERFS_STORE" ]; then
        for name in fix-a fix-b try-c; do layerfs unmount "$name" --discard >/dev/null 2>&1 || true; done
    fi
    if [ -z "$KEEP" ]; then
        chmod -R u+rwX "$WORK" 2>/dev/null || true
        rm -rf --one-file-system "$WORK"
    fi
    [ "$status" = 0 ] || echo "demo: FAILED" >&2
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

STEP=0
step() { STEP=$((STEP + 1)); printf '\n\033[1m== %d. %s\033[0m\n' "$STEP" "$*"; }
say() { printf '   %s\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }
now() { date +%s.%N; }
took() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "   (%.2f s)\n", b - a }'; }

step "a real environment: git history, virtualenv, node_modules, build output"
python3 "$HERE/demo_project.py" "$PROJECT" ${DEMO_QUICK:+--quick}
python3 "$HERE/demo_check.py" record "$PROJECT" "$WORK/before.json"

step "init: capture all of it as layer L1"
cd "$PROJECT"
start=$(now)
run layerfs init --store "$LAYERFS_STORE"
took "$start"

step "fork: three lines of work, without copying anything"
start=$(now)
run layerfs fork fix-a fix-b try-c
took "$start"

step "mount: fix-a as a directory of its own"
start=$(now)
A=$(layerfs mount fix-a)
printf '$ layerfs mount fix-a\n%s\n' "$A"
took "$start"
say "the first mount materialises the layer; the next one of the same state only mounts it:"
start=$(now)
C=$(layerfs mount try-c)
printf '$ layerfs mount try-c\n%s\n' "$C"
took "$start"

step "work in fix-a: edit a source file, use git"
cd "$A"
python3 - <<'PY'
from pathlib import Path
path = Path("src/shop/tax.py")
text = path.read_text()
path.write_text(text.replace("return round(amount * RATE)", "return round(amount * RATE, 2)"))
PY
run git -c core.pager=cat diff --stat
run layerfs status
run layerfs diff src
LAYERFS_AGENT=agent-a LAYERFS_TOOL=edit LAYERFS_CALL_ID=a-1 run layerfs commit -m "tax: keep the cents"

step "run in fix-b: the project at its own path, with its own virtualenv; install a package, run the tests"
cd "$PROJECT"
start=$(now)
LAYERFS_AGENT=agent-b LAYERFS_CALL_ID=b-1 run layerfs run fix-b --commit -m "add the greeting package" -- \
    .venv/bin/python -m pip install --quiet --no-index --no-deps --no-build-isolation ./vendor/greeting-1.0-py3-none-any.whl
took "$start"
run layerfs run fix-b --commit -m "greet in the receipt" -- .venv/bin/python tools/greet.py
run layerfs run fix-b --discard -- .venv/bin/python -m unittest discover -q -s tests
say "the captured directory itself never saw any of it:"
run layerfs status

step "work in try-c: build output, and an experiment that is dropped"
cd "$C"
run make -s build
run layerfs status
run layerfs commit -m "build"
echo "a dead end" >experiment.txt
rm -r node_modules
run layerfs status
run layerfs restore @ --discard

step "merge: two lines of work become one; git decides nothing, lines do"
cd "$PROJECT"
run layerfs merge fix-b --into fix-a

step "publish: main grows by a layer, and nobody's work is covered"
run layerfs publish fix-a
run layerfs publish try-c
run layerfs layers

step "a conflict is a value, not an accident: nothing moves"
run layerfs fork clash --from L1
layerfs run clash --commit -m "another tax" -- \
    sed -i 's/return round(amount \* RATE)/return int(amount * RATE)/' src/shop/tax.py
if run layerfs publish clash; then echo "demo: this should have conflicted" >&2; exit 1; fi

step "explain: who wrote what, with which command"
run layerfs log main
run layerfs blame main src/shop/tax.py
run layerfs blame main src/shop/receipt.py

step "leave: the workspaces are clean and go away"
cd "$PROJECT"
python3 "$HERE/demo_check.py" record "$A" "$WORK/fix-a.json"
python3 "$HERE/demo_check.py" record "$C" "$WORK/try-c.json"
run layerfs unmount fix-a
run layerfs unmount try-c

step "checkout of main into an empty directory, compared with what is expected"
start=$(now)
run layerfs checkout main --to "$WORK/result"
took "$start"
run python3 "$HERE/demo_check.py" compare "$WORK" "$WORK/result"

step "the store: verified, and what it cost"
run layerfs fsck
run layerfs stats
printf '\ndemo: done\n'

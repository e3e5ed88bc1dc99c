#!/bin/sh
# A goodput gate for any CI, in two steps on the same machine:
#
#     sh gate.sh baseline python train.py     # on the base of the change: RUNS times, traced
#     sh gate.sh check python train.py        # on the change: held to the baseline
#
# The job's seed, steps and settings must be the same each time. `check` runs the job once and, where
# that does not pass, CHECKS times, all judged together: one start of a job is one observation of it.
# It exits with 0 where the change passes, 1 where goodput regressed, 3 where the runs cannot tell.
# What it is held to stands in rltrace.toml, or in GATE: GATE="--max-regression goodput=5%".
set -eu

: "${BASELINE:=baseline.json}" # where the baseline is kept
: "${RUNS:=5}"                 # of the job, in a baseline
: "${CHECKS:=3}"               # of the changed job, at most
: "${TRACES:=rltrace-runs}"    # where the traces go
: "${REPORT:=gate.xml}"        # the answer as JUnit XML
: "${GATE:=}"                  # further options of `rltrace gate`

step=${1:-}
[ $# -ge 2 ] || { echo "usage: gate.sh baseline|check COMMAND..." >&2; exit 2; }
shift

case $step in
baseline)
    rm -rf "$TRACES"/baseline-*
    for n in $(seq "$RUNS"); do
        rltrace wrap --out "$TRACES/baseline-$n" -- "$@"
    done
    rltrace baseline "$TRACES"/baseline-* -o "$BASELINE"
    ;;
check)
    rm -rf "$TRACES"/change-*
    rltrace wrap --out "$TRACES/change-1" -- "$@"
    look=0
    # shellcheck disable=SC2086 # GATE holds several words
    rltrace gate "$TRACES/change-1" --baseline "$BASELINE" $GATE > /dev/null 2>&1 || look=$?
    if [ "$look" = 1 ] || [ "$look" = 3 ]; then
        for n in $(seq 2 "$CHECKS"); do
            rltrace wrap --out "$TRACES/change-$n" -- "$@"
        done
    fi
    # On GitHub the answer also goes to the summary of the run and beside the change.
    github=${GITHUB_ACTIONS:+--github}
    # shellcheck disable=SC2086 # GATE holds several words
    rltrace gate "$TRACES"/change-* --baseline "$BASELINE" --junit "$REPORT" $github $GATE
    ;;
*)
    echo "gate.sh: $step is neither baseline nor check" >&2
    exit 2
    ;;
esac

#!/usr/bin/env bash
# Verifies and measures warpfeed on a GPU. There it needs bash, coreutils and the NVIDIA driver: no Rust, no toolkit.
#
#   benches/gpu.sh pack FOLDER                      here, with cargo: build all that is run, into FOLDER
#   FOLDER/gpu.sh [run [FOLDER]] [--json FILE] [--smoke]
#                                                   there: run it, in under 8 minutes; one table at the end
#
# --json FILE   writes a line of JSON a figure
# --smoke       runs all of it, but so little that no figure means anything: seconds, also over the simulated driver
#
# It takes the first GPU that CUDA_VISIBLE_DEVICES shows. The exit status is 0 where all is right, 1 where something failed,
# and 2 where only a figure missed its aim. docs/BENCHMARKS.md says what is measured.
set -uo pipefail
export LC_ALL=C

# Seconds for all of it, and for the longest single benchmark.
LIMIT=460
BENCH_LIMIT=60
RATIOS=(1:1:1 2:1:1 1:2:1 1:1:2)
SLOTS=(2 3)
# Steps of a benchmark, whose batches are 128 records of 1 MiB: milliseconds on any link.
SHAPE=(--batch-size 128 --record-bytes 1048576 --steps 60)
SMOKE_SHAPE=(--batch-size 4 --record-bytes 65536 --steps 4)
EFFICIENCY_AIM=0.95

die() {
    echo "gpu.sh: $*" >&2
    exit 1
}

# The head of this file.
usage() {
    local line
    while IFS= read -r line && [[ $line == '#'* ]]; do
        [[ $line == '#!'* ]] && continue
        line=${line#'#'}
        echo "${line# }"
    done <"${BASH_SOURCE[0]}"
}

# --- pack ---------------------------------------------------------------------------------------------------------------

# The executable that `cargo test --no-run` makes for a target.
test_binary() {
    local found
    found=$(cargo test --release --no-run --message-format=json "$@" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    [[ -n $found ]] || die "cargo made no executable for: $*"
    echo "$found"
}

pack() {
    local folder=$1 root binary
    mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || die "can't make $1"
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    cd "$root" || die "can't go to $root"
    # Not what an earlier tree left.
    rm -f "$folder"/{warpfeed,contract,conformance}
    cargo build --release --bin warpfeed || die 'the tool does not build'
    binary=$(test_binary -p warpfeed --lib) || exit 1
    install -m 755 "${CARGO_TARGET_DIR:-target}/release/warpfeed" "$folder/warpfeed" || exit 1
    install -m 755 "$binary" "$folder/contract" || exit 1
    if [[ -f tests/cusim/tests/conformance.rs ]]; then
        binary=$(test_binary -p cusim --test conformance) || exit 1
        install -m 755 "$binary" "$folder/conformance" || exit 1
    fi
    install -m 755 "${BASH_SOURCE[0]}" "$folder/gpu.sh" 2>/dev/null || install -m 755 benches/gpu.sh "$folder/gpu.sh" || exit 1
    echo "packed into $folder:"
    ls -l "$folder"
}

# --- run ----------------------------------------------------------------------------------------------------------------

steps=()   # name, outcome and seconds of each, in a line
failed=0

# step NAME SECONDS COMMAND...: runs it for that long at most, within what is left of the limit. What it prints on stdout is
# left in $out.
step() {
    local name=$1 most=$2 left=$((LIMIT - SECONDS)) begun=$SECONDS status outcome
    shift 2
    printf '\n--- %s\n' "$name"
    : >"$out"
    if ((left < 2)); then
        outcome='NOT RUN: no time is left'
        failed=1
    else
        timeout -k 5 $((most < left ? most : left)) "$@" >"$out"
        status=$?
        case $status in
            0) outcome=ok ;;
            124 | 137) outcome="FAILED: over its time"; failed=1 ;;
            *) outcome="FAILED: status $status"; failed=1 ;;
        esac
    fi
    steps+=("$(printf '%-28s %-26s %4d s' "$name" "$outcome" $((SECONDS - begun)))")
    [[ $outcome == ok ]]
}

keep() {
    cat "$out" >>"$json"
}

# A test executable, on the device: `also on` is what the contract says when it has found it.
tests() {
    local name=$1 file=$2
    shift 2
    if [[ ! -x $folder/$file ]]; then
        steps+=("$(printf '%-28s %s' "$name" 'not packed')")
        return
    fi
    step "$name" 120 "$folder/$file" "$@"
    local line found='' last=''
    while IFS= read -r line; do
        case $line in
            *'also on'*) found=${line##*also on} ;;
            *FAILED* | *panicked* | 'test result:'*) echo "$line"; last=$line ;;
        esac
    done <"$out"
    [[ -z $found ]] || echo "also on$found"
    # A filter that fits no test, and a machine without a GPU, would pass as well.
    if [[ $last != *' 0 passed'* && ($file != contract || -n $found) ]]; then return; fi
    steps+=("$(printf '%-28s %s' '' 'FAILED: nothing was tested on the GPU')")
    failed=1
}

# value KEY LINE: the value of a number or of a word in a line of JSON; nothing where there is none, or null.
value() {
    [[ $2 =~ \"$1\":\"?([^,\"}]*) && ${BASH_REMATCH[1]} != null ]] && echo "${BASH_REMATCH[1]}"
}

# Numbers with a point, as millionths.
millionths() {
    printf '%.0f' "${1}e6"
}

missed=0

# row WHAT FIGURE [AIM REACHED]
row() {
    local verdict=''
    if [[ -n ${3-} && $smoke == 0 ]]; then
        case ${4-} in
            true) verdict="$3  reached" ;;
            *) verdict="$3  MISSED"; missed=1 ;;
        esac
    fi
    printf '%-56s %12s  %s\n' "$1" "${2:--}" "$verdict"
}

table() {
    local line device='' mismatches=0 compared=0 batches=0 slots ratio efficiency reached compute
    local -A rate=()
    echo
    echo '================================================================================'
    while IFS= read -r line; do
        device=$(value device "$line") && [[ -n $device ]] && break
    done <"$json"
    echo "warpfeed on ${device:-no device}, $(date -u +%Y-%m-%d)"
    echo
    printf '%s\n' "${steps[@]}"
    echo
    [[ $smoke == 0 ]] || echo 'A smoke run: no figure means anything.'
    while IFS= read -r line; do
        if [[ $(value measure "$line") != link ]]; then copies; fi
        case $(value measure "$line") in
            link)
                # Later ones are larger.
                [[ -z $(value gb_per_s "$line") ]] || rate[$(value memory "$line")]=$(value gb_per_s "$line")
                ;;
            pipeline)
                [[ -n $(value device_slots "$line") ]] || continue
                slots=$(value device_slots "$line") compute=$(value compute_ms "$line")
                [[ $(millionths "$compute") == 0 ]] && compute='' || compute=', while computing'
                row "of that, delivered: $(value batch_bytes "$line") B, $slots slots$compute" \
                    "$(value of_link "$line")" "$(aim '≥' "$line")" "$(value reached "$line")"
                ;;
            stress)
                [[ -n $(value batches "$line") ]] || continue
                mismatches=$((mismatches + $(value mismatches "$line")))
                compared=$((compared + $(value bytes_compared "$line")))
                batches=$((batches + $(value batches "$line")))
                ;;
            steady)
                [[ -n $(value batch_bytes "$line") ]] || continue
                row "latency decode to ready, $(value batch_bytes "$line") B, p50 ms" "$(value latency_ms_p50 "$line")"
                row "latency decode to ready, $(value batch_bytes "$line") B, p99 ms" "$(value latency_ms_p99 "$line")"
                row "copier at 100 batches/s, $(value batch_bytes "$line") B, of a core" \
                    "$(value copier_share "$line")" "$(aim '<' "$line")" "$(value reached "$line")"
                ;;
            bench)
                ratio=$(value ratio "$line") slots=$(value device_slots "$line")
                efficiency=$(value overlap_efficiency "$line") reached=false
                [[ -n $efficiency ]] && (($(millionths "$efficiency") >= $(millionths $EFFICIENCY_AIM))) && reached=true
                row "overlap efficiency at $ratio, $slots slots" "$efficiency" "≥ $EFFICIENCY_AIM" "$reached"
                ;;
        esac
    done <"$json"
    copies
    if ((batches > 0)); then
        reached=false
        ((mismatches == 0)) && reached=true
        row "mismatches in $batches batches, $compared bytes" $mismatches '0' $reached
    else
        row 'mismatches: nothing was compared' '' '0' false
    fi
}

# The rates of the largest copies, once.
copies() {
    local memory
    ((${#rate[@]} > 0)) || return
    for memory in page-locked write-combined pageable; do
        row "largest copy, $memory, GB/s" "${rate[$memory]-}"
    done
    rate=()
}

# aim SIGN LINE
aim() {
    local found
    found=$(value aim "$2") && [[ -n $found ]] && echo "$1 $found"
}

run() {
    folder=$1
    [[ -x $folder/warpfeed ]] || die "$folder has no executable warpfeed: make it with 'gpu.sh pack FOLDER'"
    local scratch ratio slots line
    scratch=$(mktemp -d) || die 'no folder for scratch files'
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$scratch'" EXIT
    out=$scratch/out
    if [[ -n $json ]]; then : >"$json" || die "can't write $json"; else json=$scratch/json; : >"$json"; fi
    local shape=("${SHAPE[@]}") little=()
    if [[ $smoke == 1 ]]; then
        shape=("${SMOKE_SHAPE[@]}") little=(--smoke)
    fi
    local workers
    workers=$(nproc) && ((workers > 16)) && workers=16
    SECONDS=0

    step 'doctor' 30 "$folder/warpfeed" doctor
    cat "$out"
    if ! step 'the device' 60 "$folder/warpfeed" bench --device cuda:0 --steps 1 --batch-size 1 --record-bytes 1000; then
        echo
        die 'there is no GPU to run on'
    fi
    tests 'contract of devices' contract --test-threads=1 --nocapture device::tests::contract
    tests 'conformance of the driver' conformance --test-threads=1
    step 'check' 200 "$folder/warpfeed" check --device cuda:0 --json "${little[@]}"
    keep
    for ratio in "${RATIOS[@]}"; do
        for slots in "${SLOTS[@]}"; do
            step "bench $ratio, $slots slots" "$BENCH_LIMIT" "$folder/warpfeed" bench --device cuda:0 --json \
                --ratio "$ratio" --device-slots "$slots" --workers "$workers" "${shape[@]}"
            while IFS= read -r line; do
                echo "{\"measure\":\"bench\",\"ratio\":\"$ratio\",${line#\{}" >>"$json"
            done <"$out"
        done
    done
    table
    echo
    ((failed == 0)) || { echo 'FAILED'; exit 1; }
    ((missed == 0)) || { echo 'All of it ran; an aim was missed.'; exit 2; }
    echo 'All of it ran, and is right.'
}

command=run folder='' json='' smoke=0
case ${1-} in
    pack | run) command=$1; shift ;;
esac
while (($# > 0)); do
    case $1 in
        --json) json=${2-}; [[ -n $json ]] || die '--json needs a file'; shift ;;
        --smoke) smoke=1 ;;
        -h | --help) usage; exit ;;
        -*) die "there is no option $1" ;;
        *) [[ -z $folder ]] || die "one folder, not also $1"; folder=$1 ;;
    esac
    shift
done
if [[ $command == pack ]]; then
    [[ -n $folder ]] || die 'pack needs a folder'
    pack "$folder"
else
    run "${folder:-$(dirname "${BASH_SOURCE[0]}")}"
fi

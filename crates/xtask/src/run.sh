#!/bin/sh
# Proves the CUDA backend on this machine: run.sh [PART …], all parts if none is named.
# Parts: devices conformance measured proofs models beside. REPORT names the report (report.md here otherwise).
# beside needs a python3 with PyTorch; it takes the model of Silero that `cargo xtask bundle --model` was given.
cd "$(dirname "$0")" || exit 1
REPORT=${REPORT:-report.md}
LANES_CACHE_DIR=${LANES_CACHE_DIR-$PWD/cache}
export LANES_CACHE_DIR
failed=0
say() { printf '%s\n' "$*" | tee -a "$REPORT"; }
now() { date +%s.%N; }

# one SECONDS NAME COMMAND …: a line; what it printed stands below the table if it failed or SHOW is set.
one() {
  limit=$1 name=$2; shift 2
  began=$(now)
  timeout -k 5 "$limit" "$@" >out.txt 2>&1
  status=$?
  took=$(echo "$(now) $began" | awk '{ printf "%.2f", $1 - $2 }')
  if [ $status -eq 0 ]; then say "| $name | ok | $took |"; else say "| $name | FAILED ($status) | $took |"; failed=$((failed + 1)); fi
  if [ $status -ne 0 ] || [ -n "$SHOW" ]; then
    { printf '\n%s\n\n```text\n' "$name"; tail -n 120 out.txt; echo '```'; } >>below.txt
  fi
}
table() { say; say "## $1"; say; say '| what | result | s |'; say '| --- | --- | --- |'; : >below.txt; }
below() { tee -a "$REPORT" <below.txt; rm -f out.txt below.txt; SHOW=; }

devices() {
  say "# $(bin/lanes devices | grep -m1 cuda || echo no GPU)"
  say
  say "Commit $(cat commit), run $(date -u '+%Y-%m-%d %H:%M') UTC."
  head -n 1 /proc/driver/nvidia/version 2>/dev/null | tee -a "$REPORT"
  bin/lanes devices | grep -q '^cuda:0' || { say 'There is no CUDA device here.'; failed=$((failed + 1)); }
}

conformance() {
  table Conformance
  SHOW=
  total=0 before=$failed
  for test in $(bin/conformance --list --format terse 2>/dev/null | sed -n 's/: test$//p'); do
    total=$((total + 1))
    one 120 "$test" bin/conformance --exact "$test" --nocapture
  done
  below
  say
  say "$((total - failed + before)) of $total."
  [ $total -gt 0 ] || failed=$((failed + 1))
}

measured() {
  table Times
  SHOW=1
  one 120 'null turn, chain, memory' bin/null_turn
  one 300 'contractions' bin/products
  below
}

proofs() {
  table Proofs
  SHOW=1
  one 60 'a kernel that traps' bin/proofs trap
  one 60 'turns allocate nothing' bin/proofs allocations
  one 60 'launches refused' bin/proofs refused
  one 120 'out of memory' bin/proofs memory
  one 300 'churn' bin/proofs churn "${TURNS:-100000}"
  one 550 'exit' bin/proofs exit "${EXITS:-1000}" "${AT_ONCE:-8}"
  below
}

models() {
  table Models
  SHOW=1
  speech="input=models/vad/speech,frame=512,hop=512"
  one 120 'vad: check' bin/lanes check models/vad/vad.onnx --backend cuda --against cpu --input "$speech" --streams 8 --turns 20
  one 120 'vad: churn' bin/lanes run models/vad/vad.onnx --backend cuda --input "$speech" --streams 100 --churn 0.1 --turns 20
  one 120 'vad: bench' bin/lanes bench models/vad/vad.onnx --backend cuda --input "$speech" --streams 1,64,1024,4096 --turns 200
  for model in models/more/*.onnx; do
    [ -e "$model" ] || continue
    case $model in
      # Their length is open, and their rate an input.
      */silero*) set -- --input input=normal,frame=576 --fix sr=16000 ;;
      *) set -- --input normal ;;
    esac
    one 120 "$model: check" bin/lanes check "$model" --backend cuda --against cpu "$@" --streams 8 --turns 20
    one 300 "$model: bench" bin/lanes bench "$model" --backend cuda "$@" --streams 1,64,1024,4096 --turns 200
  done
  below
}

beside() {
  python3 -c 'import torch' 2>/dev/null || { say; say 'There is no PyTorch here to stand beside.'; return; }
  table 'Beside PyTorch'
  SHOW=1
  vad=models/more/silero_vad_op18_ifless.onnx
  [ -e "$vad" ] && set -- --vad "$vad" || set --
  one 200 'models and contractions' python3 gpu_beside.py --lanes bin/lanes --stack bin/lstm_stack --products bin/products "$@"
  below
}

: >"$REPORT"
[ $# -gt 0 ] || set -- devices conformance measured proofs models beside
for part in "$@"; do
  case $part in
    devices | conformance | measured | proofs | models | beside) $part ;;
    *) echo "run.sh: no part $part; there are devices conformance measured proofs models beside" >&2; exit 2 ;;
  esac
done
say
say "$failed failed."
[ $failed -eq 0 ]

#!/usr/bin/env bash
# Runs the tests on a build with sanitizers, and fails on any report.
#
#   tools/run_sanitized.sh address|thread [arguments for pytest]
#
# `address` stands for AddressSanitizer with UndefinedBehaviorSanitizer. Takes .venv as `make test` leaves it, and gcc.
# Only pyattn is instrumented, not Python, NumPy or PyTorch: races and overruns inside those are not looked for.
set -euo pipefail

kind=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
tree=$root/build/sanitized-$kind
reports=$tree/build/reports

# Reports go to files, so that none is lost with the output of a test's subprocess. gcc's UBSan cannot do that beside
# ASan: it writes to standard error, which --capture=sys leaves alone, and a subprocess that it stops fails its test.
case $kind in
address)
    # libstdc++ too: ASan looks for what throws C++ exceptions when it starts, and PyTorch throws some later.
    run=(env "LD_PRELOAD=$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so.6)"
        "ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:log_path=$reports/asan"
        "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
    ;;
thread)
    run=(env "LD_PRELOAD=$(gcc -print-file-name=libtsan.so)"
        "TSAN_OPTIONS=ignore_noninstrumented_modules=1:die_after_fork=0:log_path=$reports/tsan")
    # gcc 12's TSan does not know the memory layout of kernels that randomise more than they used to.
    if setarch "$(uname -m)" -R true 2>/dev/null; then run+=(setarch "$(uname -m)" -R); fi
    ;;
*)
    echo "address or thread, not '$kind'" >&2
    exit 2
    ;;
esac

# The extension is built in place, so the tree is copied. First on PYTHONPATH, the copy also wins in subprocesses that
# start elsewhere.
"$root/tools/copy_tree.sh" "$tree"
mkdir -p "$reports"
cd "$tree"
export PYTHONPATH=$tree PYATTN_SANITIZE=$kind
CC=gcc "$python" setup.py --quiet build_ext --inplace

finish() {
    status=$?
    find "$reports" -name '*san.*' -printf '--- %f\n' -exec cat {} \;
    if grep -rqE 'ERROR: AddressSanitizer|runtime error:|(WARNING|FATAL): ThreadSanitizer' "$reports"; then
        echo "FAILED: sanitizer reports ($kind)"
        exit 1
    fi
    exit $status
}
trap finish EXIT

"${run[@]}" "$python" -c "
import pyattn._core as core
assert core.__file__.startswith('$tree/'), core.__file__"
# Pages, pictures, what is printed and what is found out about other attentions: NumPy and matplotlib on top of the same
# calls, which tell a sanitizer nothing new. Nor does how much memory large arrays take, in minutes. The summary at the
# end names them, and what others do less of.
on_top=()
for path in tests/{house,plot,reference,testing,tracing,core/test_memory.py,interop/test_interop_bertviz.py}; do
    on_top+=("--ignore=$path")
done
"${run[@]}" "$python" -m pytest --capture=sys "${on_top[@]}" "$@" 2>&1 | tee "$reports/output"

#!/bin/sh
# The Python of Spark's processes on this machine, without the zip files that Spark puts before the installed packages.
# Nothing in a zip is kept compiled: every process would compile PySpark again, and Spark waits for those that plan
# streaming reads ten seconds at most, however busy the machine is.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) kept=${kept:+$kept:}$entry ;;
    esac
done
PYTHONPATH=$kept
export PYTHONPATH
# The daemon of the processes that plan cannot be named in a session's settings: they get ours here, which ends quietly
# when a query hangs up on it. By its file, because the interpreter may get this package only later, with a task.
if [ "$1" = -m ] && [ "$2" = pyspark.daemon ]; then
    shift 2
    run='import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name="__main__")'
    set -- -c "$run" "${0%/*}/daemon.py" "$@"
fi
exec "${DANUBIUS_SPARK_PYTHON:-python3}" "$@"

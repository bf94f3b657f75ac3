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
exec "${DANUBIUS_SPARK_PYTHON:-python3}" "$@"

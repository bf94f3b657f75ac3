"""The benchmark: the same work for every system, in separate producer and consumer processes.

`work` says what is measured, `harness` runs the processes, `worker` is Danubius' side of them,
`runner` turns their results into measurements, `command` is the command line. `benches/` brings
the same work to other systems.
"""

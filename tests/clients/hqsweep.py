#!/usr/bin/env python3
"""Runs a sweep on HyperQueue: a server and a worker in this process, and a task for each shard.

    hqsweep.py PROGRAM FOLDER SHARDS     in the folder of sweep.toml; 1 when a task has failed
"""

import os
import sys
import tempfile

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

program, folder, shards = sys.argv[1], sys.argv[2], int(sys.argv[3])
sweep = [program, "simulate", "sweep", "sweep.toml", "--json", "--out", folder, "--threads", "1", "--shard"]
with tempfile.TemporaryDirectory() as state, LocalCluster(state, WorkerConfig(cores=2)) as cluster:
    client = cluster.client()
    job = Job(default_workdir=os.getcwd(), max_fails=None, name="sweep")
    for shard in range(1, shards + 1):
        output = {"stdout": f"hyperqueue-{shard}.out", "stderr": f"hyperqueue-{shard}.err"}
        job.program([*sweep, f"{shard}/{shards}"], **output)
    ended_well = client.wait_for_jobs([client.submit(job)], raise_on_error=False)
sys.exit(0 if ended_well else 1)

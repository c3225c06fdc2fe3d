#!/usr/bin/env python3
"""Kills one rank of a job that computes: the others must end within ten seconds, and the launcher must say which died.

usage: killed_rank.py LAUNCHER TEST_CLUSTER
"""

import os
import re
import signal
import subprocess
import sys
import time

RANKS, SECONDS = 3, 10


def is_alive(pid):
    """False for a zombie, which only waits for its parent."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_one(launcher, program, victim):
    job = subprocess.Popen([launcher, "-n", str(RANKS), program, "--gtest_also_run_disabled_tests",
                            "--gtest_filter=ClusterFaults.DISABLED_WorksUntilItIsKilled"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids = {}
    for line in job.stdout:
        if found := re.search(r"rank (\d+) has pid (\d+)", line):
            pids[int(found[1])] = int(found[2])
        if len(pids) == RANKS:
            break
    time.sleep(1)  # in the middle of their work
    os.kill(pids[victim], signal.SIGKILL)
    killed = time.monotonic()
    rest = job.communicate(timeout=60)[0]
    while any(is_alive(pid) for pid in pids.values()) and time.monotonic() < killed + SECONDS:
        time.sleep(0.1)
    seconds = time.monotonic() - killed
    print(f"rank {victim} killed: the job ended after {seconds:.1f} s with {job.returncode}")
    alive = [pid for pid in pids.values() if is_alive(pid)]
    if job.returncode == 0 or seconds > SECONDS or alive or not re.search(r"signal 9|KILLED|EXIT CODE: 9", rest):
        sys.exit(f"not as it should be; alive: {alive}\n{rest}")
    if "noticed that process" in rest and f"process rank {victim} " not in rest:
        sys.exit(f"the rank is not named:\n{rest}")


for victim in (0, RANKS - 1):
    kill_one(sys.argv[1], sys.argv[2], victim)

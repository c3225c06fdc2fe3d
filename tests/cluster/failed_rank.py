#!/usr/bin/env python3
"""Ranks that fail while a job computes. One that is killed: the others must end within ten seconds, and the launcher
must name it. One that is stopped, and hangs: the others must end after their time limit, and name it.

usage: failed_rank.py LAUNCHER TEST_CLUSTER
"""

import os
import re
import signal
import subprocess
import sys
import time

RANKS, SECONDS, WAIT_LIMIT = 3, 10, 5


def is_alive(pid):
    """False for a zombie, which only waits for its parent."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def end_one(launcher, program, victim, sign, wait_limit):
    """Sends the signal to a rank; returns what the job prints. The job must end in time, with an error."""
    job = subprocess.Popen([launcher, "-n", str(RANKS), program, "--gtest_also_run_disabled_tests",
                            "--gtest_catch_exceptions=0",
                            "--gtest_filter=ClusterFaults.DISABLED_WorksUntilItIsKilled"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           env=os.environ | {"ATTN_TEST_WAIT_LIMIT": str(wait_limit)})
    pids = {}
    for line in job.stdout:
        if found := re.search(r"rank (\d+) has pid (\d+)", line):
            pids[int(found[1])] = int(found[2])
        if len(pids) == RANKS:
            break
    time.sleep(1)  # in the middle of their work
    os.kill(pids[victim], sign)
    ended = time.monotonic()
    rest = job.communicate(timeout=60)[0]
    while any(is_alive(pid) for pid in pids.values()) and time.monotonic() < ended + SECONDS + wait_limit:
        time.sleep(0.1)
    seconds = time.monotonic() - ended
    print(f"rank {victim}, {sign.name}: the job ended after {seconds:.1f} s with {job.returncode}")
    alive = [pid for pid in pids.values() if is_alive(pid)]
    if job.returncode == 0 or seconds > SECONDS + wait_limit or alive:
        sys.exit(f"not as it should be; alive: {alive}\n{rest}")
    return rest


for victim in (0, RANKS - 1):
    said = end_one(*sys.argv[1:], victim, signal.SIGKILL, 0)
    named = "noticed that process" not in said or f"process rank {victim} " in said
    if not named or not re.search(r"signal 9|KILLED|EXIT CODE: 9", said):
        sys.exit(f"the rank is not named:\n{said}")
    said = end_one(*sys.argv[1:], victim, signal.SIGSTOP, WAIT_LIMIT)
    if f"ranks have waited for {WAIT_LIMIT} s, which is the limit: rank {victim} hangs" not in said:
        sys.exit(f"the rank is not named:\n{said}")

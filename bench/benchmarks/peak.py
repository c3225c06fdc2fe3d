"""Runs a program, and prints the most memory that it had, in bytes.

usage: python -m benchmarks.peak PROGRAM [ARGUMENT...]
"""

import resource
import subprocess
import sys

status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, flush=True)
sys.exit(status)

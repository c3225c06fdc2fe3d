#!/usr/bin/env bash
# Puts known bugs back, one at a time: the tests must fail for each. See run.py for the arguments.
exec python3 "$(dirname "$0")/run.py" "$@"

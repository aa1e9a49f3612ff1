#!/usr/bin/env bash
# The same as standstill.sh with a loop device as the member: its kernel thread stands still.
OVER_LOOP=1
. "$(dirname "$0")/standstill.sh"

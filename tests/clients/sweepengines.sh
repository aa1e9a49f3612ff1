#!/usr/bin/env bash
# Sweeps on the engines of docs/sweeps.md: GNU parallel, and Slurm and HyperQueue on one node that this test starts.
# Workers are killed in the middle, the same command is given again, and what is merged has the same bytes as one run.
. "$(dirname "$0")/lib.sh"
need parallel sbatch slurmctld slurmd munged cmp
need_root "a Slurm of its own"
begin
POINTS=12
# Where scripts/test-tools puts HyperQueue's Python package.
HYPERQUEUE=/usr/local/share/forebay-tests/python
cat >sweep.toml <<'TOML'
name = "engines"
task = "timeline"
[base]
device = "ocz-vertex-2-ex-50gb"
scale = 256
sample_minutes = 10.0
phases = [
  "secure-erase",
  { load = { minutes = 120.0, pattern = { random_share = 1.0, outstanding = 32 } } },
]
[grid]
seed = [1, 2, 3, 4]
"device.unused_fraction" = [0.0, 0.1, 0.2]
TOML
sweep() { "$FOREBAY" simulate sweep sweep.toml --json "$@"; }
lines() { cat "$1"/engines.shard-*.jsonl 2>/dev/null | wc -l; }
has_lines() { [ "$(lines "$1")" -ge "$2" ]; }
run sweep --out alone
run sweep --out alone --merge
[ "$(wc -l <alone/engines.jsonl)" = $POINTS ] || fail "one run has not $POINTS points"
# merged FOLDER ENGINE: the parts of a finished sweep.
merged() {
    run sweep --out "$1" --merge
    cmp alone/engines.jsonl "$1/engines.jsonl" || fail "$2 gives another file than one run"
}
# worker FOLDER: the process of a worker, as soon as it has written a point.
worker() {
    await 60 "a point of $1" has_lines "$1" 1
    pgrep -f "simulate sweep sweep.toml.*--out $DIR/$1 " | while read -r pid; do
        [ "$(readlink "/proc/$pid/exe")" = "$(realpath "$FOREBAY")" ] && echo "$pid"
    done | tail -n 1
}
# killed_and_resumed COMMAND FOLDER ENGINE: one of its workers is killed; the same command goes on with the sweep.
killed_and_resumed() {
    local engine victim
    "$1" &
    engine=$!
    victim=$(worker "$2")
    [ -n "$victim" ] || fail "no worker to kill: $(tail -n 20 ./*.log task-*.out hyperqueue-*.err 2>/dev/null)"
    kill -9 "$victim"
    if wait "$engine"; then fail "$3 does not say that a worker was killed"; fi
    has_lines "$2" $POINTS && fail "the worker was killed after its last point"
    refuse sweep --out "$2" --merge
    run "$1"
    merged "$2" "$3"
}

say "GNU parallel"
by_parallel() {
    parallel --will-cite --jobs 2 "$FOREBAY" simulate sweep sweep.toml --json --out "$DIR/byparallel" \
        --threads 1 --shard '{}'/2 ::: 1 2 >parallel.log 2>&1
}
killed_and_resumed by_parallel byparallel "GNU parallel"

say "Slurm"
NODE=$(hostname -s)
mkdir -p "$RUN/munge" "$RUN/state" "$RUN/spool"
dd if=/dev/urandom of="$RUN/munge/key" bs=1024 count=1 2>/dev/null
chmod 400 "$RUN/munge/key"
chmod 700 "$RUN/munge"
munged --foreground --force --key-file="$RUN/munge/key" --socket="$RUN/munge.socket" --pid-file="$RUN/munge/pid" \
    --log-file="$RUN/munge/log" --seed-file="$RUN/munge/seed" >munged.log 2>&1 &
undo "kill $!; wait $!"
cat >slurm.conf <<CONF
ClusterName=engines
SlurmctldHost=$NODE(127.0.0.1)
SlurmctldPort=$(own_port)
SlurmdPort=$(($(own_port) + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$RUN/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
StateSaveLocation=$RUN/state
SlurmdSpoolDir=$RUN/spool
SlurmctldPidFile=$RUN/slurmctld.pid
SlurmdPidFile=$RUN/slurmd.pid
SlurmctldLogFile=$DIR/slurmctld.log
SlurmdLogFile=$DIR/slurmd.log
NodeName=$NODE NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$NODE Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$DIR/slurm.conf
has_socket() { [ -S "$RUN/munge.socket" ]; }
await 30 "munged" has_socket
slurmctld -D >slurmctld.out 2>&1 &
undo "kill $!; wait $!"
slurmd -D -N "$NODE" >slurmd.out 2>&1 &
undo "kill $!; wait $!"
is_idle() { sinfo -h -o %T 2>/dev/null | grep -q idle; }
await 60 "an idle node: $(tail -n 5 slurmctld.log slurmd.log 2>&1)" is_idle
cat >sweep.sbatch <<BATCH
#!/bin/sh
#SBATCH --array=1-2
#SBATCH --cpus-per-task=1
#SBATCH --chdir=$DIR
#SBATCH --output=$DIR/task-%a.out
exec "$FOREBAY" simulate sweep sweep.toml --json --out "$DIR/byslurm" --threads 1 \\
    --shard "\$SLURM_ARRAY_TASK_ID/\$SLURM_ARRAY_TASK_COUNT"
BATCH
by_slurm() { sbatch --wait sweep.sbatch >sbatch.log 2>&1; }
killed_and_resumed by_slurm byslurm Slurm

export PYTHONPATH=$HYPERQUEUE
if ! python3 -c 'import hyperqueue' 2>/dev/null; then
    skip "GNU parallel and Slurm pass; HyperQueue is not here (pip install --target $HYPERQUEUE hyperqueue)"
fi
say "HyperQueue"
by_hyperqueue() { python3 "$HERE/hqsweep.py" "$FOREBAY" "$DIR/byhyperqueue" 2 >hyperqueue.log 2>&1; }
killed_and_resumed by_hyperqueue byhyperqueue HyperQueue
version=$(python3 -c 'from importlib.metadata import version; print(version("hyperqueue"))')
pass "parallel $(parallel --version | head -n 1 | grep -o '[0-9]*$'), $(sinfo --version), HyperQueue $version; a worker \
of each killed"

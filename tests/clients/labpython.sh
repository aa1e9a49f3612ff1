#!/usr/bin/env bash
# The lab from Python: a run with its operations, a sweep, a trace as a load, and what is refused.
. "$(dirname "$0")/lib.sh"
need python3
begin
cat >trace.csv <<'END'
128166372003061629,web,0,Write,0,4096,0
128166372003061729,web,0,Write,8192,8192,0
128166372003061829,web,0,Read,0,4096,0
128166372003062829,web,0,Read,4096,4096,0
END
PYTHONPATH=$ROOT/scripts FOREBAY=$FOREBAY python3 - <<'END' || fail "the module says something else than the program"
import forebay_lab

task = {
    "device": "ocz-vertex-2-ex-50gb",
    "scale": 256,
    "seed": 1,
    "phases": ["secure-erase", {"load": {"minutes": 3, "pattern": {"random_share": 1.0, "read_share": 0.25}}}],
}
outcome, ops = forebay_lab.run("timeline", task, operations=True)
assert outcome == forebay_lab.run("timeline", task), "the log of operations changes the outcome"
assert ops["kind"][0] == "secure-erase" and set(ops["kind"][1:]) == {"read", "write"}
assert list(ops["submitted_ns"]) == sorted(ops["submitted_ns"])
# The last phase's percentiles, from the operations that completed within it.
load = [i for i in range(len(ops["phase"])) if ops["phase"][i] == 1]
span_ns = 3 * 60e9 / outcome["scale"]
begin = ops["submitted_ns"][load[0]]
whole = outcome["phases"][1]["whole"]["responses"]
for kind in ("read", "write"):
    times = sorted(ops["response_ns"][i] for i in load
                   if ops["kind"][i] == kind and ops["completed_ns"][i] < begin + span_ns)
    said = whole[kind + "s"]
    assert len(times) == said["requests"] > 1000, (kind, len(times), said)
    for share, at in ((0.5, 0), (0.99, 2)):
        exact = times[int(len(times) * share)] / 1e6
        assert abs(said["at_ms"][at] / exact - 1) < 0.02, (kind, share, exact, said)
    assert abs(times[-1] / 1e6 / said["max_ms"] - 1) < 1e-5, (kind, times[-1], said)
lines = forebay_lab.sweep("timeline", task, {"seed": [1, 2], "phases.1.load.minutes": [1, 3]}, threads=1)
assert [line["point"]["seed"] for line in lines] == [1, 2, 1, 2]
assert lines[2]["outcome"] == outcome, "a point of a sweep is the same run"
replayed = forebay_lab.run("timeline", {
    "device": "ddrdrive-x1", "phases": [{"trace": {"file": "trace.csv"}}]}, operations=True)
assert list(replayed[1]["submitted_ns"]) == [0, 10_000, 20_000, 120_000], replayed[1]["submitted_ns"]
assert list(replayed[1]["kind"]) == ["write", "write", "read", "read"]
for wrong in ({**task, "device": "no such"}, {**task, "phases": []}, {**task, "color": 1}):
    try:
        forebay_lab.run("timeline", wrong)
    except forebay_lab.LabError as error:
        assert "\n" not in str(error), error
    else:
        raise SystemExit(f"not refused: {wrong}")
END
# A figure of the documents as a script makes it: amplification falls with the space that is left unused.
PYTHONPATH=$ROOT/scripts FOREBAY=$FOREBAY python3 - <<'END' || fail "unused space does not help"
import forebay_lab

task = {"device": "intel-710-200gb", "seed": 1, "phases": [
    {"fill": {"block_bytes": 1048576}}, {"passes": {"passes": 2.0, "pattern": {"random_share": 1.0}}}]}
lines = forebay_lab.sweep("timeline", task, {"device.unused_fraction": [0.0, 0.2]})
full, spared = (line["outcome"]["phases"][1]["whole"]["amplification"] for line in lines)
print(f"amplification {full:.2f}, with a fifth unused {spared:.2f}")
assert spared < 0.8 * full
END
pass "runs, operations, sweeps and traces are the same from Python"

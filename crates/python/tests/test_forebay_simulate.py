"""The wheel against the program: the same request and seed have the same figures.

FOREBAY names the program.
"""

import csv
import json
import os
import subprocess
import threading

import numpy as np
import pytest

import forebay_simulate as fs

TASK = {
    "device": "ocz-vertex-2-ex-50gb",
    "scale": 256,
    "seed": 1,
    "phases": [
        "secure-erase",
        {"load": {"minutes": 3, "pattern": {"random_share": 1.0, "read_share": 0.25}}},
    ],
}
TOML = """
name = "task"
task = "timeline"
[base]
device = "ocz-vertex-2-ex-50gb"
scale = 256
seed = 1
phases = ["secure-erase", { load = { minutes = 3, pattern = { random_share = 1.0, read_share = 0.25 } } }]
"""


def forebay(*words):
    program = os.environ.get("FOREBAY", "forebay")
    return subprocess.run([program, "simulate", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Outcome and operations of the task, by the program."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "task.toml").write_text(TOML)
    outcome = forebay("run", str(folder / "task.toml"), "--operations", str(folder / "ops.csv"))
    with open(folder / "ops.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    kinds = {"read": fs.READ, "write": fs.WRITE, "secure-erase": fs.SECURE_ERASE}
    columns = {name: np.array([int(row[name]) for row in rows]) for name in rows[0] if name not in ("kind", "status")}
    columns["op"] = np.array([kinds[row["kind"]] for row in rows])
    return json.loads(outcome)["timeline"], columns


def random_writes(device, count, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(0, device.capacity_bytes // 4096, count) * 8


def test_outcome_is_the_programs(logged):
    assert fs.run("timeline", TASK) == logged[0]


def test_requests_at_the_programs_instants_complete_when_the_programs_do(logged):
    outcome, ops = logged
    ssd = fs.Device(TASK["device"], scale=256, seed=1)
    # An erase has no place; the program waits for it before the load begins.
    done = ssd.run(
        ops["op"], ops["offset_bytes"] // 512, ops["len_bytes"] // 512, time_ns=ops["submitted_ns"], fua=ops["fua"] == 1
    )
    assert len(done) > 10_000
    np.testing.assert_array_equal(done.completed_ns, ops["completed_ns"])
    np.testing.assert_array_equal(done.latency_ns, ops["response_ns"])
    assert ssd.digest == outcome["digest"]
    assert ssd.stats()["write_amplification"] == pytest.approx(outcome["amplification"], rel=1e-6)


def test_closed_load_is_the_programs(logged):
    _, ops = logged
    ssd = fs.Device(TASK["device"], scale=256, seed=1)
    ssd.secure_erase()
    load = ops["phase"] == 1
    done = ssd.run(ops["op"][load], ops["offset_bytes"][load] // 512, 8, outstanding=32)
    np.testing.assert_array_equal(done.submitted_ns, ops["submitted_ns"][load])
    np.testing.assert_array_equal(done.completed_ns, ops["completed_ns"][load])


def test_sweep_has_the_points_in_order_and_the_same_runs():
    lines = fs.sweep("timeline", TASK, {"seed": [1, 2], "phases.1.load.minutes": range(1, 4, 2)}, threads=2)
    assert [(line["point"]["phases.1.load.minutes"], line["point"]["seed"]) for line in lines] == [
        (1, 1), (1, 2), (3, 1), (3, 2),
    ]  # fmt: skip
    assert lines[2]["outcome"] == fs.run("timeline", TASK)


def test_experiment_is_the_programs(tmp_path):
    said = json.loads(forebay("content", "--small", "--json", "--out", str(tmp_path)))
    results = fs.experiment("content", small=True)
    # The program was told its commit when it was built, the wheel was not.
    said.pop("generator"), results.pop("generator")
    assert results == said
    first = said["experiments"][0]["charts"][0]
    points = fs.chart(results, "content", first["id"])
    assert list(points) == [series["name"] for series in first["series"]]
    x, y = points[first["series"][0]["name"]]
    assert len(x) == len(y) == len(first["series"][0]["points"]) > 0
    with pytest.raises(fs.SimulateError, match="there is no chart"):
        fs.chart(results, "content", "no such")


def test_catalogue_is_the_programs():
    assert fs.catalogue() == json.loads(forebay("--list", "--json"))["devices"]
    assert fs.page("ddrdrive-x1") in fs.catalogue()


def test_description_can_be_changed():
    spec = fs.page("intel-710-200gb")["device"]
    amplification = []
    for unused in (0.0, 0.2):
        ssd = fs.Device({**spec, "unused_fraction": unused}, seed=1)
        ssd.fill()
        before = ssd.stats()
        ssd.run(fs.WRITE, random_writes(ssd, 2 * ssd.capacity_bytes // 4096), 8)
        after = ssd.stats()
        moved = [after[name] - before[name] for name in ("media_written_bytes", "written_bytes")]
        amplification.append(moved[0] / moved[1])
    assert amplification[1] < 0.8 * amplification[0]


def test_one_at_a_time_waits_for_each():
    card = fs.Device("ddrdrive-x1")
    done = card.run(fs.WRITE, np.arange(100) * 8, 8, outstanding=1)
    np.testing.assert_array_equal(done.submitted_ns[1:], done.completed_ns[:-1])
    assert (done.status == 0).all() and card.now_ns == done.completed_ns[-1]


def test_instants_are_kept_whatever_the_device_does():
    ssd = fs.Device("intel-320-80gb", seed=2)
    times = np.arange(1000) * 1_000
    done = ssd.run(fs.READ, random_writes(ssd, 1000), 8, time_ns=times)
    np.testing.assert_array_equal(done.submitted_ns, times)
    assert ssd.now_ns == times[-1] < done.completed_ns.max()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"lba": [-1]}, "request 0: lba is -1"),
        ({"lba": [0.5]}, "no int64"),
        ({"lba": [[1]]}, "dimensions"),
        ({"op": 7}, "op is 7"),
        ({"op": 300}, "no uint8"),
        ({"lba": [1, 2], "blocks": [1, 2, 3]}, "entries for"),
        ({"lba": [1 << 50]}, "leave its"),
        ({"blocks": 0}, "not whole 512-byte sectors"),
        ({"outstanding": 0}, "outstanding is 0"),
        ({"stored": 0}, "stored is 0"),
        ({"time_ns": [5, 4], "lba": [0, 8]}, "is before"),
        ({"block_bytes": 100, "lba": [1]}, "sectors"),
    ],
)
def test_requests_that_make_no_sense_are_refused_in_one_line(arguments, said):
    with pytest.raises(fs.SimulateError, match=said) as refused:
        fs.Device("ddrdrive-x1").run(**{"op": fs.WRITE, "lba": [0], "blocks": 8, **arguments})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "task",
    [{**TASK, "device": "no such"}, {**TASK, "phases": []}, {**TASK, "color": 1}, {**TASK, "seed": float("nan")}],
)
def test_tasks_that_make_no_sense_are_refused_in_one_line(task):
    with pytest.raises(fs.SimulateError) as refused:
        fs.run("timeline", task)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, ValueError)


def test_devices_of_several_threads_run_side_by_side():
    def play(into):
        ssd = fs.Device("intel-320-80gb", seed=3)
        into.append(ssd.run(fs.WRITE, random_writes(ssd, 50_000), 8).completed_ns)

    found = []
    threads = [threading.Thread(target=play, args=(found,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)

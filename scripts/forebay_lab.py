"""Runs of the Forebay device lab as plain data: tasks in, outcomes and columns of operations out.

The program does the work: ``forebay simulate run`` and ``forebay simulate sweep``, which
docs/sweeps.md describes. Only the standard library is used. Columns are ``array`` objects where they
are numbers, so that ``numpy.frombuffer(ops["response_ns"], dtype="int64")`` copies nothing.
"""

import array
import csv
import json
import os
import subprocess
import tempfile

NUMBERS = ("phase", "offset_bytes", "len_bytes", "fua", "stream")
NUMBERS += ("submitted_ns", "completed_ns", "response_ns")


class LabError(Exception):
    """The program refused the task or failed; the text is its one line."""


def _toml(value):
    """A value as TOML, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=True).replace("\\/", "/")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    raise TypeError(f"a task holds plain data, not {type(value).__name__}")


def _file(folder, kind, task, grid):
    path = os.path.join(folder, "task.toml")
    with open(path, "w", encoding="utf-8") as out:
        out.write(f'name = "task"\ntask = {_toml(kind)}\n\n[base]\n')
        out.writelines(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in task.items())
        out.write("\n[grid]\n" if grid else "")
        out.writelines(f"{json.dumps(key)} = {_toml(list(v))}\n" for key, v in (grid or {}).items())
    return path


def _call(program, words):
    program = program or os.environ.get("FOREBAY", "forebay")
    done = subprocess.run([program, "simulate", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout


def read_operations(path):
    """Columns of a file that ``--operations`` wrote."""
    with open(path, newline="", encoding="utf-8") as lines:
        rows = csv.reader(lines)
        names = next(rows)
        columns = {name: array.array("q") if name in NUMBERS else [] for name in names}
        for row in rows:
            for name, text in zip(names, row, strict=True):
                columns[name].append(int(text) if name in NUMBERS else text)
    return columns


def run(kind, task, *, operations=False, program=None):
    """The outcome of one task; with ``operations``, a pair of it and the columns of its requests."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", _file(folder, kind, task, None)]
        ops = os.path.join(folder, "operations.csv")
        outcome = json.loads(_call(program, words + (["--operations", ops] if operations else [])))
        outcome = outcome[kind]
        return (outcome, read_operations(ops)) if operations else outcome


def sweep(kind, task, grid, *, threads=None, program=None):
    """The lines of a grid in its order, each a dict with ``point`` and ``outcome``."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["sweep", _file(folder, kind, task, grid), "--out", folder, "--json"]
        _call(program, words + (["--threads", str(threads)] if threads else []))
        _call(program, words + ["--merge"])
        with open(os.path.join(folder, "task.jsonl"), encoding="utf-8") as lines:
            found = [json.loads(line) for line in lines]
    return [{**line, "outcome": line["outcome"][kind]} for line in found]

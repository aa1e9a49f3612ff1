"""Models of SSDs and the experiments of the Forebay device lab.

Requests go in as numpy arrays, and instants of completion come out as such. Time is virtual: a
device is as fast as its model says, whatever machine runs it. The same request and seed have the
same figures everywhere, and the same as ``forebay simulate`` has.

    >>> import numpy as np, forebay_simulate as fs
    >>> ssd = fs.Device("intel-320-80gb", seed=1)
    >>> lba = np.random.default_rng(1).integers(0, ssd.capacity_bytes // 4096, 100_000) * 8
    >>> done = ssd.run(fs.WRITE, lba, 8, outstanding=32)
    >>> np.percentile(done.latency_ns, [50, 99]) / 1e3
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _native
from ._native import DEFAULT_SEED, SimulateError
from ._native import VERSION as __version__

__all__ = [
    "DEFAULT_SEED",
    "FLUSH",
    "READ",
    "SECURE_ERASE",
    "TRIM",
    "WRITE",
    "Completions",
    "Device",
    "SimulateError",
    "__version__",
    "catalogue",
    "chart",
    "experiment",
    "page",
    "run",
    "sweep",
]

#: Codes of requests, for the argument ``op`` of :meth:`Device.run`.
READ, WRITE, FLUSH, TRIM, SECURE_ERASE = range(5)

IntArray = npt.NDArray[np.int64]
Integers = Union[int, npt.ArrayLike]


@dataclass(frozen=True)
class Completions:
    """What became of requests, in the order in which they were given.

    Instants are nanoseconds of the device's own clock.
    """

    #: When the device got the request.
    submitted_ns: IntArray
    #: When it completed.
    completed_ns: IntArray
    #: 0 done, 1 unreadable, 2 refused because the flash is worn out.
    status: npt.NDArray[np.uint8]

    @property
    def latency_ns(self) -> IntArray:
        """How long each request took."""
        return self.completed_ns - self.submitted_ns

    def __len__(self) -> int:
        return len(self.submitted_ns)


def _column(name: str, value: Any, dtype: Any, count: int) -> Any:
    """``value`` as a contiguous column of ``count`` numbers; none is changed by the conversion."""
    given = np.asarray(value)
    if given.ndim > 1:
        raise SimulateError(f"{name} has {given.ndim} dimensions, not one")
    with np.errstate(invalid="ignore"):
        column = given.astype(dtype)
    if not np.array_equal(column, given):
        raise SimulateError(f"{name} has a value that is no {np.dtype(dtype).name}")
    if column.ndim == 0:
        column = np.full(count, column, dtype)
    if len(column) != count:
        raise SimulateError(f"{name} has {len(column)} entries for {count} requests")
    return np.ascontiguousarray(column)


def _plain(data: Any) -> str:
    try:
        return json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SimulateError(f"this is not plain data: {error}") from None


class _Requests:
    """Columns of requests as the native module takes them."""

    def __init__(self, count: int, block_bytes: int, **columns: Any) -> None:
        types: dict[str, Any] = {"op": np.uint8, "lba": np.int64, "blocks": np.int64}
        types.update(fua=np.bool_, stream=np.uint8, stored=np.uint16)
        self.block_bytes = block_bytes
        for name, dtype in types.items():
            setattr(self, name, _column(name, columns[name], dtype, count))


class Device:
    """A model of a device, new and empty, at time 0 of its own clock.

    ``device`` is a name of the catalogue, a page in a file (with a ``/`` or ending in ``.toml``), or
    a description as ``page(name)["device"]`` has it, perhaps changed.

    A model of flash is ``scale`` times smaller than the device, with the same dies, speeds and share
    of spare space: it fills so many times sooner. 0 stands for as small as stays faithful, 1 for the
    full size.
    """

    def __init__(
        self,
        device: Union[str, os.PathLike[str], Mapping[str, Any]],
        *,
        scale: int = 0,
        seed: int = DEFAULT_SEED,
    ) -> None:
        if isinstance(device, Mapping):
            spec = dict(device)
        else:
            spec = page(device)["device"]
        self._model = _native.Model(_plain(spec), scale, seed)
        #: The description that the model was built from, at full size.
        self.spec: dict[str, Any] = spec

    def __repr__(self) -> str:
        return f"<Device {self.name}, 1/{self.scale:.4g}, at {self.now_ns} ns>"

    @property
    def name(self) -> str:
        """The name in its description."""
        return self._model.name

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the model offers: the device's, divided by the scale."""
        return self._model.capacity_bytes

    @property
    def queue_depth(self) -> int:
        """Commands that it takes at once."""
        return self._model.queue_depth

    @property
    def volatile_cache(self) -> bool:
        """Whether completed writes may be lost without a flush."""
        return self._model.volatile_cache

    @property
    def scale(self) -> float:
        """How many times smaller than the device the model is."""
        return self._model.scale

    @property
    def now_ns(self) -> int:
        """The instant from which on it takes requests."""
        return self._model.now_ns

    @property
    def digest(self) -> str:
        """Sixteen digits that follow from the whole state: equal for equal histories."""
        return self._model.digest()

    def run(
        self,
        op: Integers,
        lba: Integers,
        blocks: Integers,
        *,
        time_ns: Optional[npt.ArrayLike] = None,
        outstanding: int = 32,
        block_bytes: int = 512,
        fua: Union[bool, npt.ArrayLike] = False,
        stream: Integers = 0,
        stored: Integers = 1000,
    ) -> Completions:
        """Gives requests to the device and says when each completes.

        ``op`` (codes such as ``WRITE``), ``lba`` and ``blocks`` are arrays, or numbers that hold for
        all requests; places and lengths count in blocks of ``block_bytes``. Flush and secure erase
        have none.

        With ``time_ns``, each request is given at its instant, in order and not before ``now_ns``.
        Without it the load is closed: ``outstanding`` requests are in the device, and each further
        one is given when one completes.

        Of writes, ``fua`` makes them durable before they complete, ``stream`` is theirs, and
        ``stored`` is what compression leaves of their data in thousandths (1000: nothing is gained).
        """
        given = (op, lba, blocks, 0 if time_ns is None else time_ns)
        count = max((np.size(value) for value in given if np.ndim(value) > 0), default=1)
        requests = _Requests(
            count, block_bytes, op=op, lba=lba, blocks=blocks, fua=fua, stream=stream, stored=stored
        )
        if outstanding < 1:
            raise SimulateError(f"outstanding is {outstanding}, not at least 1")
        if time_ns is None:
            return Completions(*self._model.play_closed(outstanding, requests))
        times = _column("time_ns", time_ns, np.int64, count)
        return Completions(*self._model.play_at(times, requests))

    def secure_erase(self) -> Completions:
        """Erases everything and waits for it."""
        return self.run(SECURE_ERASE, 0, 0, outstanding=1)

    def fill(self, request_bytes: int = 1 << 20, outstanding: int = 8) -> Completions:
        """Writes the whole device once in order."""
        lba = np.arange(0, self.capacity_bytes, request_bytes, dtype=np.int64) // 512
        blocks = np.minimum(request_bytes // 512, self.capacity_bytes // 512 - lba)
        return self.run(WRITE, lba, blocks, outstanding=outstanding)

    def stats(self) -> dict[str, Union[int, float]]:
        """Counters since the start of its life, when all that it was given has completed."""
        return self._model.stats()


def catalogue() -> list[dict[str, Any]]:
    """Every page of the catalogue: descriptions, provenance, and what others printed."""
    pages: list[dict[str, Any]] = json.loads(_native.catalogue())["devices"]
    return pages


def page(device: Union[str, os.PathLike[str]]) -> dict[str, Any]:
    """One page, by name or file."""
    found: dict[str, Any] = json.loads(_native.page(os.fspath(device)))
    return found


def sweep(
    kind: str,
    task: Mapping[str, Any],
    grid: Mapping[str, Iterable[Any]],
    *,
    threads: int = 0,
) -> list[dict[str, Any]]:
    """The points of a grid in its order, each a dict with ``point`` and ``outcome``.

    ``kind``, ``task`` and ``grid`` are those of ``forebay simulate sweep``, and so are the figures.
    """
    axes = {name: list(values) for name, values in grid.items()}
    lines = json.loads(_native.grid(kind, _plain(dict(task)), _plain(axes), threads))
    return [{**line, "outcome": line["outcome"][kind]} for line in lines]


def run(kind: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of one task, as ``forebay simulate run`` prints it."""
    outcome: dict[str, Any] = sweep(kind, task, {}, threads=1)[0]["outcome"]
    return outcome


def experiment(
    name: str,
    *,
    devices: Sequence[str] = (),
    seed: int = DEFAULT_SEED,
    scale: int = 0,
    small: bool = False,
    threads: int = 0,
    out: Union[str, os.PathLike[str], None] = None,
) -> dict[str, Any]:
    """The results of an experiment, or of ``all``: what ``forebay simulate NAME --json`` prints.

    Finished runs are kept in ``out`` and taken from there the next time. Without it nothing is kept.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = _native.experiment(
            name,
            devices=list(devices),
            out=os.fspath(folder if out is None else out),
            seed=seed,
            scale=scale,
            small=small,
            threads=threads,
        )
    results: dict[str, Any] = json.loads(text)
    return results


def chart(
    results: Mapping[str, Any], experiment: str, chart: str
) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[np.float64]]]:
    """The points of a chart, by series: places (numbers or names) and values, NaN where unknown."""
    for e in results["experiments"]:
        for c in e["charts"]:
            if (e["id"], c["id"]) == (experiment, chart):
                return {
                    series["name"]: (
                        np.array([point["x"] for point in series["points"]]),
                        np.array([point["y"] for point in series["points"]], dtype=np.float64),
                    )
                    for series in c["series"]
                }
    known = [f"{e['id']}/{c['id']}" for e in results["experiments"] for c in e["charts"]]
    raise SimulateError(f"there is no chart {experiment}/{chart}, but {', '.join(known)}")

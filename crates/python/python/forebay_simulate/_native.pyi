"""The extension module in Rust. The package's functions say what they take and give."""

from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "DEFAULT_SEED",
    "Model",
    "SimulateError",
    "VERSION",
    "catalogue",
    "experiment",
    "grid",
    "page",
]

DEFAULT_SEED: Final[int]
VERSION: Final[str]

class SimulateError(ValueError): ...

_Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]

@final
class Model:
    def __new__(cls, device: str, scale: int, seed: int) -> Model: ...
    @property
    def name(self) -> str: ...
    @property
    def capacity_bytes(self) -> int: ...
    @property
    def queue_depth(self) -> int: ...
    @property
    def volatile_cache(self) -> bool: ...
    @property
    def scale(self) -> float: ...
    @property
    def now_ns(self) -> int: ...
    def digest(self) -> str: ...
    def play_at(self, time_ns: npt.NDArray[np.int64], requests: Any) -> _Columns: ...
    def play_closed(self, outstanding: int, requests: Any) -> _Columns: ...
    def stats(self) -> dict[str, int | float]: ...

def grid(kind: str, base: str, axes: str, threads: int) -> str: ...
def experiment(
    name: str,
    *,
    devices: list[str],
    out: str,
    seed: int,
    scale: int,
    small: bool,
    threads: int,
) -> str: ...
def catalogue() -> str: ...
def page(name: str) -> str: ...

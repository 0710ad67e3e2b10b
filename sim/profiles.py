"""The profiles that come with Baton, by name: `smollm2-cpu`, `llama-3-8b@h100`, `llama-3-70b@h200x4`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from baton.core.errors import InvalidArgument
from baton.sim.cost import MeasuredCost
from baton.sim.host import Beside, Points
from baton.sim.roofline import Device, ModelShape, roofline
from baton.sim.spec import Profile

DATA = Path(__file__).parent / "data"
PATTERN = re.compile(r"(?P<model>[^@]+)@(?P<device>\w+?)(x(?P<tp>\d+))?")
DEGREES = (1, 2, 4, 8)  # of tensor parallelism, within a host


def profile(name: str, degree: int | None = None) -> Profile:
    """name: a file's, too. degree: devices of a node, where the name says nothing of them; None: the model's
    usual ones. InvalidArgument: no such profile, none of that degree, or one whose model does not fit its
    devices."""
    measured = _measured_one(name)
    if measured is not None:
        if degree not in (None, 1):
            raise InvalidArgument(f"{only_degree_1(name)}, not {degree}", field="profile")
        return measured
    named = _named(name)
    try:
        return roofline(named.device, named.model, named.degree or degree or named.usual)
    except ValueError as error:
        raise InvalidArgument(str(error), field="profile") from None


@dataclass(frozen=True, slots=True)
class Degrees:
    """The kinds of node that a name stands for, and what is to be said of the degrees without one."""

    profiles: tuple[Profile, ...]
    told: tuple[str, ...] = ()


def degrees(name: str) -> Degrees:
    """A device's profile at every degree of DEGREES that the model can be split into and that holds it; with
    a degree in the name (@h100x4) that one alone; of a measured profile what was measured. InvalidArgument:
    as `profile`, or none fits."""
    if _measured_one(name) is not None:
        return Degrees((profile(name),), (only_degree_1(name),))
    named = _named(name)
    if named.degree:
        return Degrees((profile(name),))
    fitting, told = [], []
    for degree in DEGREES:
        try:
            fitting.append(roofline(named.device, named.model, degree))
        except ValueError as error:
            told.append(str(error))
    if not fitting:
        raise InvalidArgument("; ".join(told), field="profile")
    return Degrees(tuple(fitting), tuple(told))


def only_degree_1(name: str) -> str:
    return f"{name} was measured on one device, so tensor parallelism is known of it at degree 1 only"


class _Named(NamedTuple):
    """degree: in the name, if it is; usual: else."""

    device: Device
    model: ModelShape
    degree: int
    usual: int


def _named(name: str) -> _Named:
    found = PATTERN.fullmatch(name)
    devices, models = _data("gpus"), _data("models")
    if found is None or found["model"] not in models or found["device"] not in devices:
        raise InvalidArgument(f"no profile {name!r}; there are {', '.join(names())}", field="profile")
    device, model = found["device"], found["model"]
    return _Named(
        _device(device, devices[device]),
        _shape(model, models[model]),
        int(found["tp"] or 0),
        models[model].get("devices", 1),
    )


def _measured_one(name: str) -> Profile | None:
    """A shipped or a file's profile of measured figures; None for a name of another kind."""
    if name.endswith((".yaml", ".yml")):
        return read_profile(Path(name))
    measured = _data("measured")
    return _measured(name, measured[name]) if name in measured else None


def read_profile(path: Path) -> Profile:
    """The first profile of a file as `baton profile` writes. InvalidArgument: it holds none."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        name, data = next(iter(loaded.items()))
        return _measured(str(name), data)
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error}", field="profile") from None
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError, StopIteration) as error:
        raise InvalidArgument(f"{path} holds no profile: {error!r}", field="profile") from None


def names() -> Iterator[str]:
    """All measured ones, and every model on every device; xN after a device: N of them per node."""
    yield from _data("measured")
    for model in _data("models"):
        yield from (f"{model}@{device}" for device in _data("gpus"))


@cache
def _data(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DATA / f"{name}.yaml").read_text())
    return loaded


def _measured(name: str, data: dict[str, Any]) -> Profile:
    fixed, per_token, per_pair = data["prefill"]
    limits = data["limits"]
    block_bytes = data["kv_bytes_per_token"] * limits["block_size"]
    return Profile(
        name=name,
        cost=MeasuredCost(
            prefill=(float(fixed), float(per_token), float(per_pair)),
            decode=_points(data["decode"]),
            context_s=float(data["context_s"]),
        ),
        kv_bytes_per_token=data["kv_bytes_per_token"],
        num_blocks=data["pool_bytes"] // block_bytes,
        nic_bytes_s=float(data["nic_bytes_s"]),
        write_s=data["write_s"],
        noise=data["noise"],
        beside=_beside(data["beside"]) if "beside" in data else None,
        **limits,
    )


def _beside(data: dict[str, Any]) -> Beside:
    """What was not measured, for want of a second node, is as the nearest that was."""
    prompt, decode = data.get("prompt", {}), data.get("decode", {})
    prompt_decode = _points(prompt.get("decode", {1: prompt.get("prompt", 1.0)}))
    decode_prompt = _points(decode.get("prompt", decode.get("decode", {1: 1.0})))
    crowd = data.get("crowd")
    return Beside(
        prompt_prompt=float(prompt.get("prompt", prompt_decode[-1][1])),
        prompt_decode=prompt_decode,
        decode_prompt=decode_prompt,
        decode_decode=_points(decode["decode"]) if "decode" in decode else decode_prompt,
        cores=int(data["cores"]),
        threads=int(data["threads"]),
        crowd=crowd and (int(crowd["nodes"]), float(crowd["prompt"]), float(crowd["decode"])),
    )


def _points(data: dict[Any, Any]) -> Points:
    return tuple(sorted((int(rows), float(value)) for rows, value in data.items()))


def _device(name: str, data: dict[str, Any]) -> Device:
    rates = ("bf16_flops", "memory_bytes", "memory_bytes_s", "nvlink_bytes_s", "nic_bytes_s", "reduce_s")
    return Device(name, *(float(data[rate]) for rate in rates))


def _shape(name: str, data: dict[str, Any]) -> ModelShape:
    counts = ("layers", "hidden", "heads", "kv_heads", "head_dim", "bytes", "max_model_len")
    return ModelShape(
        name, float(data["parameters"]), float(data["embedding"]), *(int(data[count]) for count in counts)
    )

"""Strategies by name, with what can be set of them: `top_k`, `top_k:fraction=0.001`.

Another package adds names of its own by an entry point, in its pyproject.toml:

    [project.entry-points."jaxnet.strategies"]
    signs = "their_package:signs"          # a function that returns a Strategy; its keyword arguments can be set
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from jaxnet.comm.expression import MiB
from jaxnet.comm.halves import AllReduce
from jaxnet.comm.strategies import (
    bf16,
    blueconnect,
    bmuf,
    caffe2,
    cntk_1bit,
    ddp,
    flat,
    fp16,
    halving_doubling,
    hierarchical,
    horovod,
    int8,
    local_sgd,
    mg_wfbp,
    mxnet_2bit,
    parameter_server,
    per_leaf,
    post_local_sgd,
    powersgd,
    priority,
    s_caffe_b,
    s_caffe_hr,
    s_caffe_ob,
    s_caffe_obr,
    top_k,
    torus,
    xla,
    zero,
)
from jaxnet.comm.strategy import Strategy

STRATEGIES: dict[str, Callable[..., Strategy]] = {
    make.__name__: make
    for make in (
        *(xla, per_leaf, flat, caffe2, ddp, horovod, mg_wfbp, priority),
        *(hierarchical, blueconnect, torus, halving_doubling, parameter_server),
        *(s_caffe_b, s_caffe_hr, s_caffe_ob, s_caffe_obr, zero),
        *(fp16, bf16, int8, cntk_1bit, mxnet_2bit, top_k, powersgd),
        *(local_sgd, post_local_sgd, bmuf),
    )
}


def installed_strategies() -> dict[str, EntryPoint]:
    """Strategies of other packages that are installed, by name; a name of jaxnet stays jaxnet's."""
    return {each.name: each for each in entry_points(group="jaxnet.strategies") if each.name not in STRATEGIES}


AUTO = "auto"
"""The name of the default: the strategy that is best on a platform, as far as is known."""

# A TPU's own all-reduce takes the links of all dims of a slice at once; stages take those of one dim after the other.
_BEST = {"tpu": "ddp"}
_BEST_ELSEWHERE = "hierarchical"

# Sizes that are better on a platform than the strategy's own. By compiled programs of ResNet-50 on 16 devices, ms
# exposed with pieces of 1 MiB, of 4 MiB and whole: torus 0.8, ?, 0.3 on H100 and 3.2, 1.8, 2.2 on v5e;
# halving_doubling 0.6, ?, 0.2 and 5.5, 3.7, 2.4. On CPUs, ms a step with buckets of 25 and of 4 MiB: 637 and 435
# between two hosts at 1 Gbit/s, 326 and 247 on 8 devices of a process (docs/results.md). On TPUs a
# reduce-scatter over a whole slice of 4 x 4 v5e becomes an all-reduce above 22.5 MiB.
_SIZES: Mapping[tuple[str, str], Mapping[str, int | None]] = {
    ("hierarchical", "cpu"): {"bucket_bytes": 4 * MiB},
    ("zero", "gpu"): {"bucket_bytes": 25 * MiB},
    **{
        (name, "tpu"): {"bucket_bytes": 16 * MiB}
        for name in ("hierarchical", "blueconnect", "zero", "powersgd", "local_sgd", "post_local_sgd", "bmuf")
    },
    ("torus", "gpu"): {"piece_bytes": None},
    ("torus", "tpu"): {"piece_bytes": 4 * MiB},
    ("halving_doubling", "gpu"): {"piece_bytes": None},
    ("halving_doubling", "tpu"): {"piece_bytes": None},
}

_SCALARS = (bool, int, float, float | None, int | None)
_LARGEST, _SMALLEST = 1e38, 1e-38  # float32 ends there


def named_strategy(
    name: str, bucket_bytes: int | None = None, all_reduce: AllReduce | None = None, platform: str = "cpu"
) -> Strategy:
    """The strategy called `name`, with buckets of `bucket_bytes` instead of its own size.

    Args:
        name: one of `STRATEGIES` or `installed_strategies()`; `:key=value` behind it, any number, sets what else that
            function takes. Or 'auto': 'ddp' on TPUs, 'hierarchical' elsewhere.
        bucket_bytes: None: what is best for the strategy on the platform.
        all_reduce: makes the sums across hosts, such as `mpi_all_reduce`; None: XLA's.
        platform: 'cpu', 'gpu' or 'tpu': where it will run.

    Raises:
        ValueError: no such strategy (the nearest name is given), one that takes no such key or value, one without a
            bucket size, one that sums across hosts in another way than by an all-reduce, or one of another package
            that cannot be imported or makes no Strategy.

    >>> named_strategy("hierarchical", bucket_bytes=4 * 2**20).schedule
    'during'
    >>> named_strategy("local_sgd:every=16").schedule.every
    16
    >>> named_strategy("auto").name, named_strategy("auto", platform="tpu").name
    ('hierarchical', 'ddp')
    """
    name = _BEST.get(platform, _BEST_ELSEWHERE) if name == AUTO else name
    base, settings = _parse(name)
    if bucket_bytes is not None and not has_bucket_size(base):
        raise ValueError(f"strategy {base!r} has no bucket size to set; leave bucket_bytes out")
    if all_reduce is not None and not takes_all_reduce(base):
        able = ", ".join(filter(takes_all_reduce, STRATEGIES))
        raise ValueError(f"strategy {base!r} has no all-reduce across hosts that another could replace; {able} have")
    given = {"bucket_bytes": bucket_bytes, "all_reduce": all_reduce}
    chosen = settings | {key: value for key, value in given.items() if value is not None}
    arguments = {**_SIZES.get((base, platform), {}), **chosen}
    maker = _maker(base)
    try:
        made = maker(**arguments)
    except Exception as error:
        if base in STRATEGIES and not isinstance(error, ValueError):
            raise
        raise ValueError(f"strategy {name!r}: {error or type(error).__name__}") from error
    if not isinstance(made, Strategy):
        raise ValueError(f"strategy {name!r}: {installed_strategies()[base].value} returned {made!r:.60}, no Strategy")
    return replace(made, name=name)


def has_bucket_size(name: str) -> bool:
    """Whether the strategy called `name` takes `bucket_bytes`."""
    return "bucket_bytes" in _parameters(_parse(name)[0])


def takes_all_reduce(name: str) -> bool:
    """Whether the strategy called `name` takes `all_reduce`: its stage across hosts is one, of any transport."""
    return "all_reduce" in _parameters(_parse(name)[0])


def settings_of(name: str) -> dict[str, Any]:
    """What can be set of the strategy called `name`, with the values in force.

    >>> settings_of("powersgd"), settings_of("powersgd:rank=4")
    ({'rank': 2}, {'rank': 4})
    """
    base, given = _parse(name)
    # The size of buckets is a key of its own.
    found = _parameters(base).items()
    return {
        key: given.get(key, one.default) for key, one in found if one.annotation in _SCALARS and key != "bucket_bytes"
    }


def _parameters(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(_maker(name), eval_str=name not in STRATEGIES).parameters)


def _maker(name: str) -> Callable[..., Strategy]:
    if name in STRATEGIES:
        return STRATEGIES[name]
    entry = installed_strategies()[name]
    try:
        maker: Callable[..., Strategy] = entry.load()
    except Exception as error:  # whatever the package raises when it is imported
        raise ValueError(f"strategy {name!r}: {entry.value} cannot be imported: {error}") from error
    return maker


def _parse(name: str) -> tuple[str, dict[str, Any]]:
    """The strategy's own name, and its settings."""
    base, *settings = name.split(":")
    if base == AUTO:
        if settings:
            raise ValueError(f"strategy {name!r}: {AUTO} takes no settings; name a strategy")
        base = _BEST_ELSEWHERE
    if base not in STRATEGIES and base not in (installed := installed_strategies()):
        known = [AUTO, *STRATEGIES, *installed]
        near = difflib.get_close_matches(base, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no strategy {base!r}; {hint}there are: {', '.join(known)}")
    given: dict[str, Any] = {}
    for key, value in (_setting(base, setting) for setting in settings):
        if key in given:
            raise ValueError(f"strategy {base!r}: {key} is set twice; set it once")
        given[key] = value
    return base, given


def _setting(base: str, setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    known = settings_of(base)
    if not equals or key not in known:
        there = ", ".join(f"{k}={v}".lower() for k, v in known.items()) or "none"
        raise ValueError(f"strategy {base!r} has no setting {setting!r}; wanted key=value of: {there}")
    kind = _parameters(base)[key].annotation
    try:
        return key, _value(text, kind)
    except ValueError:
        whole = f"a whole number below {2**31}"
        wanted = {bool: "true or false", int: whole, int | None: whole}.get(kind, "a number that float32 holds")
        raise ValueError(f"strategy {base!r}: {key}={text}: wanted {wanted}") from None


def _value(text: str, kind: Any) -> bool | int | float:
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if kind in (int, int | None):
        if abs(whole := int(text)) >= 2**31:  # programs count in int32
            raise ValueError(text)
        return whole
    value = float(text)
    if not (value == 0 or _SMALLEST <= abs(value) <= _LARGEST):
        raise ValueError(text)
    return value

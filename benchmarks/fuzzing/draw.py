"""What a user may type, drawn from a seed: a config, changes to it, and a second run in the same workdir."""

import random
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.fuzzing.templates import as_it_is, kinds_of, templates, with_object
from benchmarks.fuzzing.values import LARGE, OBJECTS, PATHS, TEXTS
from benchmarks.fuzzing.wrong import WRONG
from jaxnet.comm import STRATEGIES, settings_of
from jaxnet.config.keys import is_group, key_values
from jaxnet.config.run import Config
from jaxnet.data import Synthetic
from jaxnet.models import CNN

_CONFIG = """\
from jaxnet.data import Synthetic
from jaxnet.models import CNN, ResNet, ViT
from jaxnet.config.run import Checkpoints, Config, Log

def get_config():
    return Config(
        model={model},
        data={data},
        epochs=1,
        batch_size=16,
        eval_batch_size=16,
        checkpoints=Checkpoints(every_steps=2),
        log=Log(every_steps=1, tensorboard=False),
    )
"""
_MODELS = (
    "CNN({classes}, widths=(2,), hidden=4)",
    "CNN({classes}, widths=(2,), hidden=4, dtype='float16')",
    "CNN({classes}, widths=(2, 3), convs=1, hidden=3, norm=False, dropout=0.5)",
    "ResNet({classes}, depths=(1,), block='basic', stem='small', channels=2)",
    "ViT({classes}, patch=4, dim=4, depth=1, heads=2)",
    "CNN({classes}, widths=())",
    "CNN({classes}, widths=(0,), hidden=4)",
)
_CLASSES = (2, 2, 2, 3, 1, 10)
_SHAPES = ((8, 8, 1), (8, 8, 1), (8, 8, 3), (1, 1, 1), (9, 5, 2))
_TRAIN = (32, 32, 33, 1, 100)
_TEST = (16, 16, 1, 17)

# Values that are plausible, for keys where any small number is not.
_PLAUSIBLE: dict[str, tuple[str, ...]] = {
    "batch_size": ("4", "8", "16", "32", "64"),
    "eval_batch_size": ("4", "8", "16", "128"),
    "epochs": ("0.01", "0.5", "1", "2", "2.7"),
    "eval_every_epochs": ("0.25", "0.5", "1", "100"),
    "hosts": ("none", "1", "2", "4"),
    "seed": ("0", "1", "4294967295"),
    "resolutions": ("", "0:4,0.5:8", "0:8", "0:16,0.3:8"),
    "initial_weights": ("none",),
    "pixels.mean": ("0.5", "0.1,0.2,0.3", "0"),
    "pixels.std": ("0.5", "1,2,3"),
    "pixels.size": ("none", "4", "16"),
    "optimizer.milestones": ("", "0.3,0.6", "0.5"),
    "optimizer.groups": ("", "*:0.5", "dense*:10,conv*:0", "head:10"),
    "optimizer.learning_rate": ("0.1", "1e-3", "1e4", "1e-30"),
    "bucket_bytes": ("none", "1024", "26214400", "1025"),
    "model.widths": ("2", "2,3"),
    "data.image_shape": ("8,8,1", "16,16,3", "4,4,1"),
    "data.num_train": ("1", "15", "32", "50"),
    "data.num_test": ("1", "16", "31"),
}
# The combinations that matter most: a case has one of each.
_MAIN = ("strategy", "mode", "batch_norm", "hosts", "microbatches", "optimizer.name", "optimizer.schedule")
TEMPLATES = templates()
_PARTS, _TEMPLATES = 0.25, 0.65  # of all cases, up to where they are of this kind
# What a process does to itself, and what only mpirun can give.
_LEFT_OUT = ("watchdog.", "transport")

_ODD_OVERRIDES = (
    "epochs",
    "=",
    "=3",
    "==",
    "model",
    "model=CNN",
    "epochs.x=1",
    "a.b.c.d=1",
    ".=1",
    "..=",
    "Epochs=1",
    "é=1",
)


@dataclass(frozen=True)
class Case:
    """A config file, the overrides of a run, and those of a second one in the same workdir, if there is one.

    Attributes:
        config: the file.
        overrides: of the run.
        again: of the second one.
        trains: whether it may be trained; else it ends where its program would be compiled.
        about: what it is, in words.
        must_fail: whether it is wrong whatever the overrides are.
    """

    config: bytes
    overrides: tuple[str, ...]
    again: tuple[str, ...] | None
    trains: bool = True
    about: str = ""
    must_fail: bool = False


def draw_case(seed: int, kinds: dict[str, Any]) -> Case:
    """The case of `seed`; `kinds` are all keys of a config with their types.

    >>> draw_case(3, {"epochs": float}) == draw_case(3, {"epochs": float})
    True
    """
    draw = random.Random(seed)
    part = draw.random()
    if part < _PARTS:
        return _of_part(draw, kinds)
    if part < _TEMPLATES:
        return _of_template(draw)
    classes = draw.choice(_CLASSES)
    data = f"Synthetic({draw.choice(_SHAPES)}, {classes}, {draw.choice(_TRAIN)}, {draw.choice(_TEST)})"
    config = _CONFIG.format(model=draw.choice(_MODELS[: draw.choice((1, 4, 7))]).format(classes=classes), data=data)
    overrides = _overrides(draw, kinds)
    if draw.random() < 0.4:  # something is wrong
        overrides = overrides[: draw.randrange(3)] + [_odd(draw, kinds) for _ in range(draw.choice((1, 1, 2)))]
        draw.shuffle(overrides)
    again = (*overrides, *(_overrides(draw, kinds)[-1:])) if draw.random() < 0.15 else None
    about = " ".join(line.strip() for line in config.splitlines() if line.strip().startswith(("model=", "data=")))
    return Case(config.encode(), tuple(overrides), again, about=about)


def _of_part(draw: random.Random, kinds: dict[str, Any]) -> Case:
    """A config with a part that is wrong, in a few cases with overrides, which come first or never."""
    kind = draw.choice(list(WRONG))
    name = draw.choice(list(WRONG[kind]))
    wrong = WRONG[kind][name]
    overrides = _overrides(draw, kinds) if draw.random() < 0.3 else []
    return Case(
        wrong.file(), tuple(overrides), None, about=f"{kind}: {name}", must_fail=bool(wrong.words) and not overrides
    )


def _of_template(draw: random.Random) -> Case:
    """A config that comes along, or one of each task and data set, with one or two odd values of its own keys."""
    number = draw.randrange(len(TEMPLATES))
    template = TEMPLATES[number]
    kinds = kinds_of(template)
    keys = [key for key in kinds if not key.startswith(_LEFT_OUT)]
    first = draw.choice(keys)
    about = f"template {number}"
    if draw.random() < 0.5:
        value = draw.choice(OBJECTS)
        return Case(with_object(template, first, value).encode(), (), None, False, f"{about}, {first} = {value}")
    chosen = dict.fromkeys([first, *([draw.choice(keys)] if draw.random() < 0.3 else [])])
    overrides = [f"{key}={_value(draw, key, kinds[key])}" for key in chosen]
    return Case(as_it_is(template).encode(), tuple(overrides), None, False, about)


def _value(draw: random.Random, key: str, kind: Any) -> str:
    if draw.random() < 0.25:
        return _plausible(draw, key, kind)
    return draw.choice([value for value in (*TEXTS, *LARGE) if key != "compile_cache" or value not in PATHS])


def _overrides(draw: random.Random, kinds: dict[str, Any]) -> list[str]:
    able = [key for key in kinds if not key.startswith(_LEFT_OUT)]
    keys = [key for key in _MAIN if key in kinds and draw.random() < 0.4]
    keys += draw.sample(able, min(draw.choice((0, 1, 2, 4)), len(able)))
    return [f"{key}={_plausible(draw, key, kinds[key])}" for key in dict.fromkeys(keys)]


def _plausible(draw: random.Random, key: str, kind: Any) -> str:
    if key == "strategy":
        return _strategy(draw)
    if key in _PLAUSIBLE:
        return draw.choice(_PLAUSIBLE[key])
    return _of_kind(draw, kind)


def _of_kind(draw: random.Random, kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _of_kind(draw, draw.choice(parts))
    if origin is Literal:
        return str(draw.choice(parts))
    if origin is tuple:
        return ",".join(_of_kind(draw, parts[0]) for _ in range(draw.choice((0, 1, 2))))
    values = {
        bool: ("true", "false"),
        int: ("1", "2", "3", "4"),
        float: ("0.1", "0.5", "0.9", "1", "2"),
        type(None): ("none",),
    }
    return draw.choice(values.get(kind, ("x",)))


def _strategy(draw: random.Random) -> str:
    name = draw.choice(list(STRATEGIES))
    settings = settings_of(name)
    if settings and draw.random() < 0.3:
        key = draw.choice(list(settings))
        name += f":{key}={draw.choice(('0', '1', '2', '4', '0.5', '1e-9', '-1', 'true', 'x', '10000000000'))}"
    return name


def _odd(draw: random.Random, kinds: dict[str, Any]) -> str:
    if draw.random() < 0.1:
        return draw.choice(_ODD_OVERRIDES)
    key = draw.choice([key for key in kinds if not key.startswith(_LEFT_OUT)])
    able = TEXTS if key != "epochs" else [value for value in TEXTS if not value.startswith(("21", "42"))]  # long
    able = [value for value in able if key != "compile_cache" or value not in PATHS]  # it would be written to
    return f"{key}={draw.choice(able)}"


def all_kinds() -> dict[str, Any]:
    """The keys of a config of this kind, groups left out, with their types."""
    return {key: kind for key, value, kind in key_values(_example()) if not is_group(value)}


def _example() -> Config:
    return Config(CNN(2, widths=(2,), hidden=4), Synthetic((8, 8, 1), 2, 32, 16), 1, 16)

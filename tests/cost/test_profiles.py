"""A file of what was measured gives back what it was given, keeps what it has of others, and names what is wrong."""

import json

import jax
import pytest

from jaxnet.comm import make_mesh
from jaxnet.config.file import load_config
from jaxnet.cost.fit import Curve, Line
from jaxnet.cost.prediction import Parts, between_slower_hosts
from jaxnet.cost.profiles import as_json, as_parts, key_of, read_profile, write_profile
from jaxnet.cost.shapes import Sizes
from jaxnet.cost.workloads import LOSSES, synthetic
from jaxnet.errors import InputError
from jaxnet.training.prepare import workload_of
from support.programs import ROOT

CURVES = {
    ("all-reduce", ("host", "device")): Curve({65536: 0.001, 1048576: 0.016}, Line(0.0, 1.5e-8, 1e-8, 2e-8, 0.02)),
    ("reduce-scatter", ("device",)): Curve({65536: 0.002}, Line(0.001, 1e-9, 0.0, 2e-9, 0.4)),
}
PARTS = Parts(1.0, (3.0, 2.5), 3.0, 3.25, CURVES, 0.3, 0.001, 2e-10, {"pieces": 0.02}, 0.04)


def workload(width=16, batch=8, hosts=2):
    sizes = Sizes(leaves=((width, width),) * 2, example=(width,), batch=batch)
    return synthetic("small", LOSSES["small"], sizes, make_mesh(hosts, jax.devices()[:4]))


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new" / "profile.json"
    assert read_profile(path, "a") is None
    write_profile(path, "a", PARTS)
    write_profile(path, "b", PARTS._replace(step=4.0))
    assert read_profile(path, "a") == PARTS
    assert read_profile(path, "b").step == 4.0
    assert read_profile(path, "c") is None
    assert as_parts(json.loads(json.dumps(as_json(PARTS)))) == PARTS


def test_the_keys_of_a_file_may_be_sorted(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"a": as_json(PARTS)}, sort_keys=True))
    [curve, _] = read_profile(path, "a").curves.values()
    assert list(curve.medians) == [65536, 1048576]


def test_a_measurement_is_of_one_model_batch_and_mesh():
    keys = {key_of(each) for each in (workload(), workload(width=32), workload(batch=16), workload(hosts=4))}
    assert len(keys) == 4
    assert key_of(workload()) in keys
    assert "2 x 2 cpu devices" in key_of(workload())
    assert f"JAX {jax.__version__}" in key_of(workload())


def test_a_measurement_is_of_one_optimizer_and_size_of_images_too():
    def key(*changes):
        config = load_config(ROOT / "configs/digits.py", "batch_size=8", *changes)
        return key_of(workload_of("digits", config, make_mesh(1, jax.devices()[:1])))

    timed = [(), ("microbatches=2",), ("optimizer.name=sgd", "optimizer.nesterov=false"), ("batch_norm=host",)]
    assert len({key(*changes) for changes in timed}) == len(timed)
    assert key("seed=3", "epochs=2", "strategy=flat", "log.every_steps=7") == key()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "is no file of `jaxnet tune --profile`"),
        ("{", "is no file of `jaxnet tune --profile`"),
        ('{"a": 1}', "of 'a'"),
        (json.dumps({"a": as_json(PARTS) | {"share": "much"}}), "its share is 'much'"),
        (json.dumps({"a": as_json(PARTS) | {"share": 1.5}}), "its share is 1.5"),
        (json.dumps({"a": as_json(PARTS) | {"step": float("nan")}}), "its step is nan"),
        (json.dumps({"a": as_json(PARTS)}).replace("0.016", "-0.016"), "its all-reduce is -0.016"),
        (json.dumps({"a": as_json(PARTS)}).replace("0.016", "0.0"), "its all-reduce took no time"),
        (json.dumps({"a": as_json(PARTS)}).replace('"1048576"', '"1MiB"'), "its all-reduce has a median of '1MiB'"),
        (json.dumps({"a": as_json(PARTS)}).replace('{"65536": 0.002}', "{}"), "its reduce-scatter has no medians"),
    ],
)
def test_what_is_no_profile_is_refused_and_stays(tmp_path, text, words):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"profile\.json") as refused:
        read_profile(path, "a")
    assert words in str(refused.value)
    if "a" not in text:
        with pytest.raises(InputError):
            write_profile(path, "a", PARTS)
    assert path.read_text() == text


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/profile\.json"):
        write_profile(tmp_path / "file" / "profile.json", "a", PARTS)


def test_slower_links_between_hosts_change_what_goes_between_hosts():
    slower = between_slower_hosts(PARTS, 4)
    between, inside = CURVES
    assert slower.curves[inside] == CURVES[inside]
    assert slower.curves[between].seconds(10**6) == pytest.approx(4 * CURVES[between].seconds(10**6))
    assert slower.curves[between].medians[65536] == pytest.approx(0.001 + 3 * 1.5e-8 * 65536)
    assert slower._replace(curves={}) == PARTS._replace(curves={})
    assert between_slower_hosts(PARTS, 1) == PARTS

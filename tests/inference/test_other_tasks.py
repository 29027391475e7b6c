"""What was learned of other things than pictures: numbers, tokens, and tasks of one's own."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxnet.cli.main import main
from jaxnet.config.run import Config, Ensemble, Log
from jaxnet.data import Arrays
from jaxnet.errors import InputError
from jaxnet.inference import load
from jaxnet.inference.predictor import _arrays
from jaxnet.inference.rows import continued, read_rows, row_lines
from jaxnet.models import Transformer
from jaxnet.optimizer import Optimizer
from jaxnet.tasks import LanguageModel
from jaxnet.training.trainer import train

CONFIG = '''
from dataclasses import dataclass
import flax.linen as nn
import numpy as np
from jaxnet import Config, Log, Optimizer, Regression, Task
from jaxnet.data import Arrays

DRAW = np.random.RandomState(0)
X = DRAW.standard_normal((64, 3))
Y = 100 + 10 * X @ [1.0, -2.0, 0.5]

@dataclass(frozen=True)
class Heights(Task):
    """Reads nested arrays, and gives two values."""
    unit: float = 1.0
    def inputs(self, batch):
        return batch["about"]["features"]
    def measures(self, outputs, batch):
        return {"loss": (outputs[:, 0] - batch["height"]) ** 2}
    def predicted(self, outputs):
        return {"height": outputs[:, 0] * self.unit, "twice": 2 * outputs}

def get_config():
    data = Arrays(**{split: {"features": X, "target": Y} for split in ("train", "test")})
    log = Log(tensorboard=False)
    return Config(nn.Dense(1), data, 8, 16, Regression(100, 10), optimizer=Optimizer("sgd", 0.1), log=log)
'''


def command(*words):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert ended.value.code in (0, None)


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """The workdir of a run, its config file, and its config."""
    folder = tmp_path_factory.mktemp("regression")
    file = folder / "heights.py"
    file.write_text(CONFIG)
    space: dict = {}
    exec(CONFIG, space)
    config = space["get_config"]()
    train(config, folder / "run", quiet=True)
    return folder / "run", file, space


def test_numbers_are_in_the_units_of_the_target(regression):
    workdir, file, space = regression
    predictor = load(workdir, config=file, batch=4)
    found = predictor({"features": space["X"]})
    assert found.shape == (64, 1)
    assert abs(found[:, 0] - space["Y"]).mean() < 4
    np.testing.assert_array_equal(predictor({"features": space["X"][5:7]}), found[5:7])


def test_an_exported_program_says_the_same(regression, tmp_path, capsys):
    workdir, file, space = regression
    out = tmp_path / "program"
    command("export", workdir, "--config", file, "--out", out, "--platforms", "cpu")
    given = {"features": np.float32(space["X"][:5])}
    wanted = load(workdir, config=file)(given)
    np.testing.assert_allclose(load(out)(given), wanted, rtol=1e-6)
    program = jax.export.deserialize(bytearray(out.read_bytes()))
    np.testing.assert_allclose(program.call(given), wanted, rtol=1e-6)
    capsys.readouterr()


def test_rows_of_files(regression, tmp_path, capsys):
    workdir, file, space = regression
    rows = np.float32(space["X"][:3])
    wanted = load(workdir, config=file)({"features": rows})[:, 0]
    np.savez(tmp_path / "rows.npz", features=rows)
    text = "age,size,weight\n" + "\n".join(",".join(map(repr, row)) for row in rows.tolist())
    (tmp_path / "rows.csv").write_text(text)
    for name in ("rows.npz", "rows.csv"):
        command("predict", workdir, "--config", file, "--json", tmp_path / name)
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["row"] for line in lines] == [0, 1, 2]
        assert [line["prediction"] for line in lines] == pytest.approx(wanted.tolist(), rel=1e-5)


def test_of_several_files_each_line_names_its_own(regression, tmp_path, capsys):
    workdir, file, space = regression
    rows = np.float32(space["X"][:2])
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path in files:
        np.savez(path, features=rows)
    command("predict", workdir, "--config", file, *files)
    assert [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"{path} {row}" for path in files for row in (0, 1)
    ]
    command("predict", workdir, "--config", file, "--json", *files)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["path"], line["row"]) for line in lines] == [(str(path), row) for path in files for row in (0, 1)]
    np.savez(files[1], features=rows[0])
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(workdir), "--config", str(file), *map(str, files)])
    assert ended.value.code == 2
    assert f"error: {files[1]}: wanted features float32[n, 3], got features float32[3]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"1,2\n", r"a.csv cannot be read: row 1 is 1,2: wanted 3 numbers"),
        ("a.csv", b"a,b,c\n1,2,3\n1,x,3\n", r"row 2 is 1,x,3: wanted 3 numbers"),
        ("a.csv", b"1,,3\n4,5,6\n", r"row 1 is 1,,3: wanted 3 numbers"),
        ("a.csv", b"NA,?,\n4,5,6\n", r"row 1 is NA,\?,: wanted 3 numbers"),
        ("a.csv", b"1,x,3\n4,5,6\n", r"row 1 is 1,x,3: wanted 3 numbers, or a line of names without a number"),
        ("a.csv", b"a,b,c\n", r"a.csv holds no example: wanted at least one"),
        ("a.csv", b"\n", r"a.csv holds no example: wanted at least one"),
        ("a.txt", b"", r"a.txt: wanted a file named .npz or .csv with features"),
        ("a.npz", b"PK\3\4", r"a.npz cannot be read"),
        ("b.npz", None, r"b.npz cannot be read: .*No such file"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_rows(path, {"features": jax.ShapeDtypeStruct((3,), "float32")})


@pytest.mark.parametrize("dtype", ["int16", "int32", "uint8", "float32"])
@pytest.mark.parametrize("head", ["", "a,b,c\n", ",b,of 2021\n", "\ufeff"])
def test_numbers_of_a_table_are_of_the_kind_that_is_wanted(tmp_path, dtype, head):
    (tmp_path / "a.csv").write_text(head + "1,2,3\n4,5,6\n", encoding="utf-8")
    example = {"features": jax.ShapeDtypeStruct((3,), dtype)}
    rows = _arrays(read_rows(tmp_path / "a.csv", example), example)["features"]
    assert (rows.tolist(), str(rows.dtype)) == ([[1, 2, 3], [4, 5, 6]], dtype)


def test_a_table_of_integers_has_no_fractions(tmp_path):
    (tmp_path / "a.csv").write_text("1,2.5,3\n")
    with pytest.raises(InputError, match=r"row 1 is 1,2\.5,3: wanted 3 whole numbers"):
        read_rows(tmp_path / "a.csv", {"features": jax.ShapeDtypeStruct((3,), "int32")})


@pytest.mark.parametrize(("given", "dtype"), [(70_000, "int16"), (2**40, "int32"), (-1, "uint8")])
def test_integers_that_do_not_fit_are_refused(given, dtype):
    example = {"tokens": jax.ShapeDtypeStruct((1,), dtype)}
    with pytest.raises(InputError, match=f"tokens holds {given} to {given}: wanted {dtype}"):
        _arrays({"tokens": np.array([[given]])}, example)


def test_a_prediction_that_is_no_number_is_json_all_the_same():
    [line] = row_lines(np.array([[np.nan]]), as_json=True)
    assert json.loads(line, parse_constant=pytest.fail) == {"row": 0, "prediction": None}


def test_an_archive_without_the_array(tmp_path):
    np.savez(tmp_path / "a.npz", other=np.zeros(3))
    with pytest.raises(InputError, match=r"a.npz has no array features; wanted features, got other"):
        read_rows(tmp_path / "a.npz", {"features": jax.ShapeDtypeStruct((3,), "float32")})


def test_an_archive_without_an_example(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.zeros((0, 3)))
    with pytest.raises(InputError, match=r"a.npz holds no example"):
        read_rows(tmp_path / "a.npz", {"features": jax.ShapeDtypeStruct((3,), "float32")})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"features": np.zeros((2, 4))}, r"takes no arrays of \{'features': \(2, 4\)\}"),
        ({"features": np.zeros(3)}, r"wanted features float32\[n, 3\], got features float64\[3\]"),
        ({"other": np.zeros((2, 3))}, r"wanted features float32\[n, 3\], got other float64\[2, 3\]"),
        (np.zeros((2, 3)), r"wanted features float32\[n, 3\], as \{'features': array\}, got ndarray"),
        ({"features": np.array([["a", "b", "c"]])}, r"wanted features float32\[n, 3\], got features <U1\[1, 3\]"),
    ],
)
def test_arrays_that_are_not_those_of_training(regression, given, said):
    workdir, file, _ = regression
    with pytest.raises(InputError, match=said):
        load(workdir, config=file)(given)


def test_a_network_of_numbers_takes_no_pictures(regression, tmp_path):
    workdir, file, _ = regression
    with pytest.raises(InputError, match="takes no pictures but features: give it arrays"):
        next(load(workdir, config=file).files([tmp_path / "a.png"]))
    with pytest.raises(InputError, match="is no language model: it continues no text"):
        continued(load(workdir, config=file), b"abc", 3)


# ---- A task of one's own, in an ensemble --------------------------------------------------------------------


def test_a_task_of_ones_own_says_what_it_likes(regression, tmp_path):
    _, _, space = regression
    arrays = {"about": {"features": np.float32(space["X"]), "other": np.zeros(64, np.float32)}}

    class Nested:
        num_examples = 64

        def rows(self, indices):
            height = np.float32(space["Y"][indices])
            return {**jax.tree.map(lambda leaf: leaf[indices], arrays), "height": height}

    class Data:
        def load(self, split):
            return Nested()

    task = space["Heights"](unit=100.0)
    config = replace(space["get_config"](), data=Data(), task=task, optimizer=Optimizer("sgd", 0.01))
    run = train(config, tmp_path / "one", quiet=True)
    file = tmp_path / "own.py"
    file.write_text(CONFIG.replace("Regression(100, 10)", "Heights()"))
    predictor = load(tmp_path / "one", config=file)
    assert list(predictor.inputs) == ["about"]
    found = predictor({"about": {name: leaf[:3] for name, leaf in arrays["about"].items()}})
    params = run.state.params
    outputs = arrays["about"]["features"][:3] @ np.asarray(params["kernel"]) + np.asarray(params["bias"])
    np.testing.assert_allclose(found["height"], 100 * outputs[:, 0], rtol=1e-5)
    np.testing.assert_allclose(found["twice"], 2 * outputs, rtol=1e-5)

    train(replace(config, ensemble=Ensemble(2)), tmp_path / "two", quiet=True)
    assert load(tmp_path / "two", config=file, member=1)({"about": arrays["about"]})["height"].shape == (64,)
    with pytest.raises(InputError, match="Heights has no common prediction of members: choose one of them"):
        load(tmp_path / "two", config=file)


def test_arrays_of_any_name(regression, tmp_path, capsys):
    _, _, space = regression
    text = CONFIG.replace('["about"]["features"]', '["größe/cm"]').replace('{"height": outputs', '{"größe.m": outputs')
    text = text.replace('"features": X, "target": Y', '"größe/cm": X, "height": Y').replace(
        "Regression(100, 10)", "Heights()"
    )
    file, out, rows = tmp_path / "own.py", tmp_path / "program", np.float32(space["X"][:2])
    file.write_text(text)
    exec(text, own := {})
    train(own["get_config"](), tmp_path / "run", quiet=True)
    wanted = load(tmp_path / "run", config=file)({"größe/cm": rows})["größe.m"]
    command("export", tmp_path / "run", "--config", file, "--out", out, "--platforms", "cpu")
    np.savez(tmp_path / "rows.npz", **{"größe/cm": rows})
    capsys.readouterr()
    command("predict", out, "--json", tmp_path / "rows.npz")
    found = [json.loads(line)["prediction"]["größe.m"] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.raises(InputError, match=r"wanted größe/cm float32\[n, 3\], got größe/cm float32\[3\]"):
        load(out)({"größe/cm": rows[0]})


def test_members_of_a_regression_are_averaged(regression, tmp_path):
    _, file, space = regression
    train(replace(space["get_config"](), ensemble=Ensemble(2)), tmp_path, quiet=True)
    given = {"features": space["X"]}
    each = [load(tmp_path, config=file, member=member)(given) for member in range(2)]
    np.testing.assert_allclose(load(tmp_path, config=file)(given), np.mean(each, 0), rtol=1e-5)


# ---- Text ---------------------------------------------------------------------------------------------------

TEXT = b"abcdefgh" * 40
NET = Transformer(positions=12, dim=16, depth=1, heads=2)


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A model of a text in which each letter says the next."""
    workdir = tmp_path_factory.mktemp("language")
    tokens = np.frombuffer(TEXT, np.uint8)[: 13 * 24].reshape(24, 13).astype(np.int16)
    data = Arrays(train={"tokens": tokens}, test={"tokens": tokens}, dev={"tokens": tokens[:8]})
    config = Config(
        NET,
        data,
        16,
        8,
        LanguageModel(),
        validation="dev",
        optimizer=Optimizer("adamw", 0.02),
        log=Log(tensorboard=False),
    )
    return workdir, train(config, workdir, quiet=True)


def test_the_probabilities_of_the_next_token(language):
    workdir, run = language
    predictor = load(workdir, batch=2)
    assert predictor.inputs["tokens"].shape == (12,)
    tokens = np.frombuffer(TEXT[:36], np.uint8).reshape(3, 12).astype(np.int16)
    found = predictor({"tokens": tokens})
    logits = NET.apply({"params": jax.device_get(run.state.params)}, np.int32(tokens), train=False)
    np.testing.assert_allclose(found, jax.nn.softmax(logits), atol=1e-6)
    np.testing.assert_allclose(predictor({"tokens": tokens[:, :5]}), found[:, :5], atol=1e-6)
    assert load(workdir, best=True).where.rpartition("/")[2] == f"{run.summary['best']['step']:06}"
    with pytest.raises(InputError, match="sequences of 13 tokens: set"):
        predictor({"tokens": np.zeros((1, 13), np.int16)})


def test_a_text_is_continued_a_byte_at_a_time(language, tmp_path, capsys):
    workdir, _ = language
    predictor = load(workdir)
    assert continued(predictor, b"abc", 20) == b"defghabcdefghabcdefg"
    assert continued(predictor, TEXT[:30], 4) == TEXT[30:34]
    drawn = {continued(predictor, b"abc", 12, temperature=4.0, seed=seed) for seed in (0, 0, 1)}
    assert len(drawn) == 2
    out = tmp_path / "program"
    command("export", workdir, "--out", out, "--platforms", "cpu")
    capsys.readouterr()
    for place in (workdir, out):
        command("predict", place, "--continue", 4, "abcd")
        assert capsys.readouterr().out == "abcdefgh\n"
    command("predict", workdir, "--continue", 4, "--json", "abcd")
    assert json.loads(capsys.readouterr().out) == {"text": "abcd", "continued": "efgh"}
    with pytest.raises(InputError, match="wanted a text of at least one byte"):
        continued(predictor, b"", 1)


def test_only_a_model_of_bytes_continues_a_text():
    class OtherTokens:
        where, inputs = "runs/words", {"tokens": jax.ShapeDtypeStruct((4,), np.int16)}

        def __call__(self, example):
            return np.zeros((1, 4, 5000), np.float32)

    with pytest.raises(InputError, match="runs/words predicts one of 5,000 tokens; wanted a model of bytes"):
        continued(OtherTokens(), b"abc", 1)


def test_what_a_module_of_someone_else_needs(regression):
    workdir, _, _ = regression
    with pytest.raises(InputError, match=r"its model is 'flax.linen.linear.Dense', which is not of jaxnet"):
        load(workdir)

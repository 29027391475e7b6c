"""A manifest notices every change of the files that it lists, and of itself."""

import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnet.checkpoints import manifest

ABOUT = {"step": 200, "metrics": {"accuracy": 0.98}}
CONTENTS = {"a": b"alpha", "deep/er/b": bytes(range(256)) * 40, "empty": b""}


@pytest.fixture
def sealed(tmp_path):
    for name, content in CONTENTS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    manifest.write(tmp_path, ABOUT)
    return tmp_path


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_lists_every_file_with_its_size_and_digest(sealed):
    expected = {name: (len(c), hashlib.sha256(c).hexdigest()) for name, c in CONTENTS.items()}
    assert manifest.check(sealed) == manifest.skim(sealed) == (ABOUT, expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(about=st.dictionaries(st.text(), JSON, max_size=3))
def test_about_comes_back_as_it_was(about, tmp_path_factory):
    directory = tmp_path_factory.mktemp("about")
    manifest.write(directory, about)
    assert manifest.check(directory).about == about


def test_every_bit_of_the_manifest_counts(tmp_path):
    (tmp_path / "a").write_text("alpha")
    manifest.write(tmp_path, {"step": 1})
    path = tmp_path / manifest.NAME
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flip(path, bit)
        with pytest.raises(manifest.DamagedCheckpoint, match=r"manifest\.json"):
            manifest.skim(tmp_path)
        path.write_bytes(whole)
    assert manifest.check(tmp_path).about == {"step": 1}


@pytest.mark.parametrize("length", [0, 1, 100])
def test_a_truncated_manifest_is_damage(sealed, length):
    os.truncate(sealed / manifest.NAME, length)
    with pytest.raises(manifest.DamagedCheckpoint, match=r"manifest\.json is not as it was written"):
        manifest.check(sealed)


def test_a_missing_manifest_is_damage(sealed):
    (sealed / manifest.NAME).unlink()
    with pytest.raises(manifest.DamagedCheckpoint, match=r"manifest\.json is missing"):
        manifest.check(sealed)


@pytest.mark.parametrize("bit", [0, 7, 8 * 5000 + 3, 8 * 256 * 40 - 1])
def test_a_flipped_bit_is_found_by_check_and_not_by_skim(sealed, bit):
    flip(sealed / "deep/er/b", bit)
    manifest.skim(sealed)
    with pytest.raises(manifest.DamagedCheckpoint, match=r"^deep/er/b is not as it was written"):
        manifest.check(sealed)


@pytest.mark.parametrize("look", [manifest.check, manifest.skim])
@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda d: (d / "a").unlink(), "^a is missing$"),
        (lambda d: os.truncate(d / "a", 3), "^a has 3 bytes, 5 were written$"),
        (lambda d: os.truncate(d / "empty", 1), "^empty has 1 bytes, 0 were written$"),
        (lambda d: [(d / name).unlink() for name in CONTENTS], "^a is missing; deep/er/b is missing; empty"),
    ],
)
def test_missing_and_resized_files_are_found_by_both(sealed, look, harm, complaint):
    harm(sealed)
    with pytest.raises(manifest.DamagedCheckpoint, match=complaint):
        look(sealed)


def test_many_faults_make_one_short_line(tmp_path):
    for name in "abcdefgh":
        (tmp_path / name).write_text(name)
    manifest.write(tmp_path, {})
    for name in "abcdefg":
        (tmp_path / name).unlink()
    with pytest.raises(
        manifest.DamagedCheckpoint, match=r"^a is missing; b is missing; c is missing; and 4 files more$"
    ):
        manifest.check(tmp_path)


def test_a_file_that_is_not_listed_is_no_damage(sealed):
    (sealed / ".nfs0001").write_text("left by a network file system")
    assert manifest.check(sealed).about == ABOUT

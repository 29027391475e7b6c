"""The picture files that the arguments of a command mean."""

import os
from pathlib import Path

import numpy as np
import pytest

from jaxnet.data import Inputs
from jaxnet.inference.answers import as_text, image_files
from jaxnet.inference.predictor import Prediction


def test_names_of_strangers_are_shown_as_text():
    inputs = Inputs((8, 8, 1), 2, ("\x1b[31mno", "y" * 300))
    for name in ("a\nerror: b\x1b.png", os.fsdecode(b"a\n\xff.png")):
        line = as_text(Prediction(Path(name), np.array([0.5, 0.5])), inputs, top_k=2)
        assert line.isprintable()
        assert len(line) < 400
        assert "\\x1b[31mno 50.00%, yyy" in line
    assert as_text(Prediction(Path("a"), None, "no\x1b"), inputs, 1) == "a: no\\x1b"


@pytest.fixture
def tree(tmp_path):
    for name in ("b.png", "a.JPG", "notes.txt", "sub/c.jpeg", "sub/deep/d.png", "z/e.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def found(tree, *words, stdin=()):
    return [str(path.relative_to(tree)) for path in image_files([str(tree / word) for word in words], stdin)]


def test_a_directory_is_walked_in_order(tree):
    assert found(tree, ".") == ["a.JPG", "b.png", "sub/c.jpeg", "sub/deep/d.png", "z/e.png"]


def test_files_are_taken_as_they_are_given(tree):
    assert found(tree, "notes.txt", "none.png", "sub") == ["notes.txt", "none.png", "sub/c.jpeg", "sub/deep/d.png"]


def test_links_are_followed_and_loops_end(tree):
    (tree / "sub" / "up").symlink_to(tree)
    (tree / "sub" / "self.png").symlink_to("self.png")
    (tree / "linked").symlink_to(tree / "z")
    (tree / "to.png").symlink_to("b.png")
    names = found(tree, ".")
    assert names == ["a.JPG", "b.png", "linked/e.png", "sub/c.jpeg", "sub/deep/d.png", "sub/self.png", "to.png"]


def test_a_directory_that_cannot_be_listed_is_left_to_the_reader(tree, monkeypatch):
    listdir = os.listdir

    def refuse(path):
        if path.name == "sub":
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert found(tree, ".") == ["a.JPG", "b.png", "sub", "z/e.png"]


def test_paths_from_stdin(tree):
    lines = [f"{tree / 'z'}\n", "\n", "-\n", str(tree / "b.png")]
    assert [str(path.relative_to(tree)) for path in image_files(["-"], lines)] == ["z/e.png", "b.png"]


def test_a_name_that_no_file_can_have_is_left_to_the_reader():
    assert [str(path) for path in image_files(["a\0b"], ())] == ["a\0b"]

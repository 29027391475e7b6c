"""The picture files that the arguments of a command mean."""

import os

import pytest

from jaxnet.inference.answers import image_files


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

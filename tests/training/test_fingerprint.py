"""What must be the same on all processes: a decoder is, where a data set has one."""

import pytest

from jaxnet.cli import doctor
from jaxnet.cluster.agreement import describe_difference
from jaxnet.command_line import Parser
from jaxnet.config.run import Config
from jaxnet.data import Digits, Photos
from jaxnet.data.photos import datasets
from jaxnet.data.photos.decoding import PILLOW
from jaxnet.models import CNN
from jaxnet.operations.doctor.examine import _same
from jaxnet.training.processes import fingerprint, other_decoder

DIGITS = Config(model=CNN(10), data=Digits(), epochs=1, batch_size=8)
PHOTOS = Config(model=CNN(10), data=Photos("album"), epochs=1, batch_size=8)


@pytest.fixture
def decode_by(monkeypatch):
    return lambda name: monkeypatch.setattr(datasets, "best_decoder", lambda: PILLOW._replace(name=name))


def test_processes_that_decode_differently_are_told(decode_by):
    decode_by("simplejpeg and OpenCV")
    first = fingerprint(PHOTOS)
    decode_by("Pillow")
    assert describe_difference([first, fingerprint(PHOTOS)]) == (
        "the processes differ: decoder is 'simplejpeg and OpenCV' on rank 0, 'Pillow' on rank 1; give all the same"
    )
    assert "decoder" not in fingerprint(DIGITS)


def test_a_run_that_goes_on_with_another_decoder_says_so(decode_by):
    decode_by("Pillow")
    assert other_decoder(PHOTOS, {"decoder": "Pillow"}) is None
    assert other_decoder(PHOTOS, {}) is None  # a checkpoint from before decoders were saved
    assert other_decoder(DIGITS, {"decoder": "Pillow"}) is None
    assert other_decoder(PHOTOS, {"decoder": "simplejpeg and OpenCV"}).startswith(
        "images are decoded by Pillow from now on, and were by simplejpeg and OpenCV until this checkpoint"
    )


class Talk:
    """Two ranks, of which the other decodes by Pillow."""

    def gather(self, name, own):
        return [own, {**own, "versions": {**own["versions"], "decoder": "Pillow"}}]


def test_the_doctor_finds_it(decode_by, tmp_path):
    decode_by("simplejpeg and OpenCV")
    text = "from jaxnet.config.run import Config\nfrom jaxnet.models import CNN\nfrom jaxnet.data import Photos\n"
    text += "def get_config():\n    return Config(model=CNN(10), data=Photos('album'), epochs=1, batch_size=8)\n"
    (tmp_path / "album.py").write_text(text)
    parser = Parser()
    doctor.add_doctor(parser.add_commands("COMMAND"))
    what = doctor._examination(parser.parse_args(["doctor", "--config", str(tmp_path / "album.py")]))
    versions = _same(Talk(), what)[0]
    assert (versions.check, versions.found) == (
        "same versions",
        "decoder is 'simplejpeg and OpenCV' on rank 0, 'Pillow' on rank 1",
    )
    assert versions.cure.startswith("install the same there")

"""An ensemble predicts as the mean of its members, or as one of them."""

from dataclasses import replace

import numpy as np
import pytest

from jaxnet.ensembles import Ensemble
from jaxnet.errors import InputError
from jaxnet.inference import load
from jaxnet.models import CNN
from support.runs import train
from support.trained import TEST, config


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("ensemble")
    small = replace(config(ensemble=Ensemble(2)), model=CNN(10, widths=(4,), hidden=8), epochs=1)
    return workdir, train(small, workdir, quiet=True)


def accuracy(probabilities):
    return (probabilities.argmax(1) == TEST.label).mean()


def test_the_mean_of_all_members_or_one_of_them(ensemble):
    workdir, summary = ensemble
    each = [load(workdir, batch=64, member=index)(TEST.image) for index in range(2)]
    mean = load(workdir, batch=64)(TEST.image)
    np.testing.assert_allclose(mean, np.mean(each, axis=0), rtol=0, atol=1e-6)
    assert accuracy(mean) == pytest.approx(summary["ensemble/accuracy"])
    assert [accuracy(one) for one in each] == pytest.approx([row["accuracy"] for row in summary["members"]])
    assert summary["accuracy"] == pytest.approx(np.mean([accuracy(one) for one in each]))


def test_a_member_that_is_not_there_is_refused(ensemble, workdir):
    with pytest.raises(InputError, match=r"member 2: .* holds an ensemble of 2: wanted 0 to 1"):
        load(ensemble[0], member=2)
    with pytest.raises(InputError, match=r"member 0: .* holds one network: leave it out"):
        load(workdir, member=0)

"""The files of launch/ that launchers make. `PYTHONPATH=.:tests python -m support.launch_examples` writes them anew."""

from pathlib import Path

from jaxnet.operations.launchers.hosts import Host
from jaxnet.operations.launchers.kubernetes import KubernetesJob, manifest
from jaxnet.operations.launchers.mpi import MpiJob, mpi_script
from jaxnet.operations.launchers.sky import SkyJob, sky_task
from jaxnet.operations.launchers.slurm import SlurmJob, slurm_script

FOLDER = Path(__file__).parents[2] / "launch"
_SHARED = "/shared/jaxnet"
_TRAIN = ("train.py", "--config", "configs/digits.py", "--workdir", "runs/digits")
_HERE = (f"{_SHARED}/.venv/bin/python", *_TRAIN)
_UNBUFFERED = {"PYTHONUNBUFFERED": "1"}


def made():
    """The text of each, by its name."""
    slurm = SlurmJob(
        _HERE, _SHARED, _UNBUFFERED, name="digits", nodes=2, gpus_per_process=8, time="4:00:00", requeue=10
    )
    mpi = MpiJob(
        (_HERE[0], "-m", "mpi4py", *_TRAIN, "transport=mpi"),
        _SHARED,
        2,
        _UNBUFFERED,
        hosts=(Host("node1"), Host("node2")),
        transport="mpi",
    )
    sky = SkyJob(("python3", *_TRAIN), 2, "digits", "A100:8", setup="pip install '.[cuda]'", environment=_UNBUFFERED)
    pods = KubernetesJob(
        ("python3", "/opt/jaxnet/train.py", "--config", "/opt/jaxnet/configs/digits.py", "--workdir", "runs/digits"),
        "registry.example/jaxnet:cuda",
        2,
        "jaxnet-work",
        name="digits",
        gpus=8,
        environment=_UNBUFFERED,
    )
    return {
        "slurm.sbatch": slurm_script(slurm),
        "mpi.sh": mpi_script(mpi),
        "sky.yaml": sky_task(sky),
        "jobset.yaml": manifest(pods),
    }


if __name__ == "__main__":
    for name, text in made().items():
        (FOLDER / name).write_text(text)

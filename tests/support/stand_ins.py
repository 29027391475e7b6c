"""Programs in the place of srun, mpirun, ssh and the like, which tests of launchers find on the PATH."""

import json
import os
import subprocess
import sys

# Prints what it was started with; begun without site packages, in 20 ms.
_SHOW = """
import json, os, sys
names = ["VALUE", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"]
names += os.environ.get("SHOWN", "").split()
own = {name: os.environ.get(name) for name in names}
json.dump({"words": sys.argv[1:], "folder": os.getcwd(), **own}, sys.stdout)
"""

# A starter that skips its own options, up to the shell or the interpreter that it is to run.
_STARTER = """#!/bin/bash
while [[ $1 != /bin/sh && $1 != *python* ]]; do shift; done
export {place}
exec "$@"
"""

PLACES = {
    "srun": "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1",
    "mpirun": "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMI_RANK=1 PMI_SIZE=2",
}
_OTHERS = {
    "scontrol": '#!/bin/sh\n[ "$3" = "n[1-2]" ] && printf "n1\\nn2\\n"\n',
    # apptainer exec OPTIONS --pwd FOLDER IMAGE COMMAND...
    "apptainer": '#!/bin/bash\nuntil [[ $1 == --pwd ]]; do shift; done\ncd "$2" && shift 3 && exec "$@"\n',
    "gcloud": '#!/bin/bash\nfor last; do :; done\nexec sh -c "${last#--command=}"\n',
    "ssh": '#!/bin/sh\nfor last; do :; done\nSSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$last"\n',
}


def make_stand_ins(folder):
    """Write them all into `folder`; the result is the environment that finds them first."""
    folder.mkdir(exist_ok=True)
    for name, text in (_OTHERS | {name: _STARTER.format(place=place) for name, place in PLACES.items()}).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "show.py").write_text(_SHOW)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL") if name in os.environ}
    path = f"{folder}:{os.environ['PATH']}"
    return kept | {"PATH": path, "SLURM_JOB_ID": "4097", "SLURM_JOB_NODELIST": "n[1-2]", "PYTHONUTF8": "1"}


def show_command(environ, words):
    """A command that prints, as JSON, the words, the folder and the variables that arrived."""
    return [sys.executable, "-I", "-S", "-X", "utf8", environ["PATH"].partition(":")[0] + "/show.py", *words]


def run_script(script, environ, folder, **variables):
    """Run a script as its reader would, from a file; what `show_command` printed in it."""
    path = folder / "script.sh"
    path.write_text(script)
    done = subprocess.run(["bash", path], env=environ | variables, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

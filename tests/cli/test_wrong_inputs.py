"""Wrong inputs of every kind: one line that says what to change, status 2, no traceback, nothing on disk touched."""

import gzip
import subprocess
import sys

import pytest

import train
from jaxnet.cli.main import run as jaxnet
from support.programs import PATIENCE, ROOT, clean_environment
from support.refusals import DIGITS, every, one_line, refused, says

FASHION = str(ROOT / "configs/fashion_mnist.py")

# A change to configs/digits.py on 8 devices, and what the message has to say.
OVERRIDES = {
    # keys
    "unknown key": ("colour=3", "no config key 'colour'; there are: model.*, epochs, "),
    "initials": ("lr=1", "no config key 'lr'; did you mean 'optimizer.learning_rate' or "),
    "near miss": ("batchsize=64", "no config key 'batchsize'", "did you mean 'batch_size'?"),
    "near miss in a group": ("optimizer.momentun=0", "'optimizer.momentun'", "did you mean 'optimizer.momentum'?"),
    "right word, no path": ("learning_rate=1", "'learning_rate'", "did you mean 'optimizer.learning_rate'?"),
    "right word, wrong path": ("log.keep=1", "no config key 'log.keep'", "did you mean 'checkpoints.keep'?"),
    "right word on two paths": ("every_steps=5", "did you mean 'checkpoints.every_steps' or 'log.every_steps'?"),
    "nothing like it in a group": (
        "log.zzzzz=3",
        "key 'log.zzzzz'; there are: log.every_steps, log.tensorboard, log.hlo",
    ),
    "data without keys": ("data=ImageNet", "data is a group of keys, not a value; it has none; another one is set in"),
    "misspelt group": ("optimiser.momentum=0", "did you mean 'optimizer.momentum'?"),
    "below a value": ("epochs.first=1", "no config key 'epochs.first'"),
    "not a field of the data": ("data.idx_dir=/data", "no config key 'data.idx_dir'"),
    "no equals sign": ("epochs", "'epochs' is not of the form key=value, such as optimizer.learning_rate=0.1"),
    "no key": ("=3", "'=3' is not of the form key=value"),
    "group": ("optimizer=sgd", "optimizer is a group of keys, not a value; set optimizer.name=sgd, or one of "),
    "model group": ("model=ResNet", "model is a group of keys", "model.widths"),
    # types
    "int": ("batch_size=many", "batch_size=many: wanted an integer, got 'many'"),
    "int from a fraction": ("microbatches=1.5", "microbatches=1.5: wanted an integer"),
    "int from a power": ("batch_size=1e2", "batch_size=1e2: wanted an integer"),
    "int from nothing": ("microbatches=", "microbatches=: wanted an integer, got ''"),
    "int or none": ("hosts=two", "hosts=two: wanted an integer or none"),
    "float": ("optimizer.learning_rate=fast", "optimizer.learning_rate=fast: wanted a number"),
    "float or none": ("average_decay=off", "average_decay=off: wanted a number or none"),
    "nan": ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan: wanted a number"),
    "infinity": ("epochs=inf", "epochs=inf: wanted a number"),
    "bool": ("log.hlo=maybe", "log.hlo=maybe: wanted true or false"),
    "choice": ("optimizer.name=adam", "optimizer.name=adam: wanted one of sgd, adamw"),
    "choice of modes": ("mode=pjit", "mode=pjit: wanted one of auto, shard_map, jit, pmap"),
    "choice of norms": ("batch_norm=sync", "batch_norm=sync: wanted one of local, host, global"),
    "list": ("model.widths=8,wide", "model.widths=8,wide: wanted a comma-separated tuple, each an integer"),
    "not none": ("batch_size=none", "batch_size=none: wanted an integer"),
    "unknown dtype": ("model.dtype=fp32", "model.dtype=fp32: wanted one of float32, bfloat16, float16"),
    "text that no file name holds": (
        "initial_weights=a\0b",
        r"initial_weights='a\x00b': wanted text without NUL characters, which no file name has",
    ),
    # ranges
    "no epochs": ("epochs=0", "epochs=0.0: wanted a number above 0"),
    "more steps than can be counted": ("epochs=1e12", "epochs=1000000000000.0", "steps; wanted below 2147483648"),
    "learning rate": ("optimizer.learning_rate=0", "optimizer.learning_rate=0.0: wanted a number above 0"),
    "momentum": ("optimizer.momentum=1", "optimizer.momentum=1.0: wanted at least 0 and below 1"),
    "warm-up": ("optimizer.warmup_steps=-1", "optimizer.warmup_steps=-1: wanted at least 0"),
    "weight decay": ("optimizer.weight_decay=-0.1", "optimizer.weight_decay=-0.1: wanted at least 0"),
    "clip": ("optimizer.clip_norm=0", "optimizer.clip_norm=0.0: wanted a number above 0, or none"),
    "smoothing": ("task.label_smoothing=1", "task.label_smoothing=1.0: wanted at least 0 and below 1"),
    "average": ("average_decay=1", "average_decay=1.0: wanted at least 0 and below 1"),
    "microbatches": ("microbatches=0", "microbatches=0: wanted at least 1"),
    "batch": ("batch_size=0", "batch_size=0: wanted at least 1"),
    "evaluation batch": ("eval_batch_size=-8", "eval_batch_size=-8: wanted at least 1"),
    "evaluation": ("eval_every_epochs=0", "eval_every_epochs=0.0: wanted a number above 0"),
    "log": ("log.every_steps=0", "log.every_steps=0: wanted at least 1"),
    "checkpoints": ("checkpoints.every_steps=0", "checkpoints.every_steps=0: wanted at least 1"),
    "kept checkpoints": ("checkpoints.keep=0", "checkpoints.keep=0: wanted at least 1"),
    "profile": ("profile.steps=-1", "profile.steps=-1: wanted at least 0"),
    "shift": ("task.augmentation.shift=-1", "task.augmentation.shift=-1: wanted at least 0"),
    "a number that no program counts to": (
        "task.augmentation.shift=4294967296",
        "task.augmentation.shift=4294967296: wanted at most 1000000000",
    ),
    "the same in a tuple": (
        "model.widths=8,-4294967296",
        "widths must be one or more numbers of at least 1, got (8, -4294967296)",
    ),
    "a number of many digits": ("microbatches=1" + "0" * 99, "microbatches=an integer of 329 bits: wanted at most"),
    "a number of float64": (
        "eval_every_epochs=1e308",
        "eval_every_epochs=1e+308: wanted -1e+38 to 1e+38: devices compute in float32, where this is infinite",
    ),
    "a negative one": ("task.pixels.mean=-1e308", "task.pixels.mean=-1e+308: wanted -1e+38 to 1e+38"),
    "a number that is 0 on devices": (
        "optimizer.learning_rate=1e-320",
        "optimizer.learning_rate=1e-320: wanted 0, or at least 1e-38: devices compute in float32, where this is 0",
    ),
    "images that no file has": (
        "task.pixels.size=1000000",
        "task.pixels.size=1000000: wanted 1 to 65535, the longest side of a JPEG file, or none",
    ),
    "images of more than memory": (
        "task.pixels.size=65535",
        "64 examples of 65535x65535x1 take 1,099 GB on the devices",
    ),
    "a batch of more than memory": ("batch_size=1000000000", "batch_size=1000000000: 1,000,000,000 examples of 8x8x1"),
    "more layers than a program has": (
        "model.convs=10000000",
        "model.convs=10000000: convs must be 1 to 1000 layers in all, because each is traced and compiled by itself",
    ),
    "more layers in all": ("model.convs=600 model.widths=4,4", "convs must be 1 to 1000 layers in all"),
    "more units than memory": ("model.hidden=1000000000", "parameters with all that is kept of each take"),
    "more members than a program has": ("ensemble.members=10000000", "ensemble.members=10000000: wanted 1 to 100: one"),
    "a shift out of the images": (
        "task.augmentation.shift=9",
        "task.augmentation.shift=9: images of 8x8 are gone when they are moved by more than 8",
    ),
    "more than a year": ("watchdog.other_seconds=1e9", "watchdog.other_seconds=1000000000.0: wanted 1 to 31536000, a"),
    "more bytes than are counted": ("bucket_bytes=9223372036854775808", "bucket_bytes=9223372036854775808: wanted at"),
    "negative seed": ("seed=-1", "seed=-1: wanted 0 to 4294967295"),
    "seed of more than 32 bits": ("seed=4294967296", "seed=4294967296: wanted 0 to 4294967295"),
    "no deviation": ("task.pixels.std=0", "task.pixels.std=(0.0,): wanted numbers above 0"),
    # the mesh
    "batch on 8 devices": (
        "batch_size=60",
        "batch_size=60: wanted a multiple of 8, for 8 devices; nearest: 64",
    ),
    "microbatches on 8 devices": (
        "microbatches=16",
        "batch_size=64: wanted a multiple of 128, for 8 devices and 16 microbatches; nearest: 128",
    ),
    "hosts": ("hosts=3", "hosts=3: 8 devices do not divide into 3 hosts of equal size", "wanted one of 1, 2, 4, 8"),
    "no hosts": ("hosts=0", "hosts=0: ", "wanted one of 1, 2, 4, 8"),
    "pmap over hosts": ("mode=pmap hosts=2", "mode=pmap", "hosts=2", "mode=shard_map"),
    # strategies
    "strategy": ("strategy=heirarchical", "no strategy 'heirarchical'; did you mean 'hierarchical'?", "per_leaf"),
    "unknown strategy": ("strategy=zzz", "no strategy 'zzz'", "xla, per_leaf, flat, caffe2, ddp"),
    "no bucket bytes": ("bucket_bytes=0", "bucket_bytes=0: wanted at least 1024"),
    "bucket megabytes": ("bucket_bytes=25", "bucket_bytes=25: wanted at least 1024", "bytes"),
    "buckets of a strategy without": ("strategy=flat bucket_bytes=4096", "'flat' has no bucket size"),
    "jit without xla": ("mode=jit", "mode=jit does not go with strategy=hierarchical", "leave mode=auto"),
    "xla without jit": ("strategy=xla mode=shard_map", "mode=shard_map does not go with strategy=xla"),
    "pmap of xla": ("strategy=xla mode=pmap", "mode=pmap does not go with strategy=xla"),
    "xla by host": ("strategy=xla batch_norm=host", "batch_norm=host does not go with strategy=xla"),
    # the model and the data
    "too few classes": (
        "model.num_classes=9",
        "shape (1, 9)",
        "the data set has 10 classes",
        "set model.num_classes=10",
    ),
    "no classes": ("model.num_classes=0", "model.num_classes=0: num_classes must be at least 1, got 0"),
    "no layers": ("model.widths=", "model.widths=: widths must be one or more numbers of at least 1, got ()"),
    "no channels": ("model.widths=8,0", "model.widths=8,0: widths"),
    "no convolutions": ("model.convs=0", "model.convs=0: convs"),
    "no hidden units": ("model.hidden=-1", "model.hidden=-1: hidden"),
    "drop all": ("model.dropout=1", "model.dropout=1: dropout must be at least 0 and below 1"),
    "too deep for the images": ("model.widths=4,4,4,4", "images of 8x8", "model.widths", "at most 3"),
    "norm axes": ("model.norm_axes=host", "model.norm_axes", "set batch_norm"),
    "pixels of bytes": ("task.pixels.mean=127", "task.pixels.mean=(127.0,): wanted numbers of 0 to 1, as pixels are"),
    "pixels of two channels": (
        "task.pixels.mean=0.3,0.3",
        "task.pixels.mean=(0.3, 0.3): wanted one number, or one for each of the 1 channels",
    ),
}


# A command line of train.py, and what the message has to say.
COMMANDS = {
    "no config": ((), "required: --config (see train.py --help)"),
    "no --config before it": ((DIGITS,), "required: --config"),
    "--config without a value": (("--config",), "--config: expected one argument"),
    "a near config": (
        ("--config", "configs/digit.py"),
        f"config configs/digit.py: no such file (looked for from {ROOT}); did you mean configs/digits.py?",
    ),
    "a config by its name": (("--config", "digits"), "config digits: no such file", "did you mean configs/digits.py?"),
    "no such config": (
        ("--config", "configs/zzz.py"),
        "no such file",
        "such as configs/cifar10_resnet20.py, configs/d",
    ),
    "no such directory": (("--config", "/nowhere/zzz.py"), "config /nowhere/zzz.py: no such file"),
    "a directory": (
        ("--config", "configs"),
        "config configs: this is a directory",
        "such as configs/cifar10_resnet20.py",
    ),
    "not a .py file": (
        ("--config", "pyproject.toml"),
        "config pyproject.toml: this is not a Python file: wanted a .py",
    ),
    "a misspelt option": (("--config", DIGITS, "--workdri=x"), "arguments: --workdri=x; did you mean --workdir?"),
    "an option for a key": (
        ("--config", DIGITS, "--zzz", "3"),
        "--zzz; a key of the config is given as zzz=VALUE (see",
    ),
    "no workdir": (("--config", DIGITS, "--workdir", ""), "argument --workdir: wanted a path, got nothing"),
    "a stray word": (("--config", DIGITS, "quickly"), "'quickly' is not of the form key=value"),
    "a config that stands twice": (("--config", DIGITS, "--config", "zzz.py"), "config zzz.py: no such file"),
}

# A command line of `jaxnet`, and what the message has to say.
JAXNET = {
    "no command": ((), "required: COMMAND (see jaxnet --help)"),
    "unknown command": (("plam",), "jaxnet has no command 'plam'; did you mean 'plan'?"),
    "plan without a config": (("plan",), "required: --config (see jaxnet plan --help)"),
    "plan with an unknown option": (("plan", "--config", DIGITS, "--jsn"), "arguments: --jsn; did you mean --json?"),
    "an option of another command": (
        ("plan", "--config", DIGITS, "--steps-of"),
        "--steps-of (see jaxnet plan --help)",
    ),
    "mesh of words": (("plan", "--config", DIGITS, "--mesh", "2by4"), "--mesh 2by4: wanted HOSTSxDEVICES, such as 2x4"),
    "mesh of three sizes": (("plan", "--config", DIGITS, "--mesh", "2x2x2"), "--mesh 2x2x2: wanted HOSTSxDEVICES"),
    "mesh of a superscript": (("plan", "--config", DIGITS, "--mesh", "\u00b2x4"), "wanted HOSTSxDEVICES"),
    "mesh of nothing": (("plan", "--config", DIGITS, "--mesh", "0x4"), "--mesh 0x4: wanted 1 to 1024 devices in all"),
    "mesh of too many": (("plan", "--config", DIGITS, "--mesh", "9999x9999"), "wanted 1 to 1024 devices in all"),
    "plan of an unknown strategy": (("plan", "--config", DIGITS, "strategy=dpp"), "did you mean 'ddp'?"),
    "plan of a batch that does not divide": (("plan", "batch_size=60", "--config", DIGITS, "epochs=2"), "nearest: 64"),
    "plan of an unknown key": (
        ("plan", "--config", DIGITS, "colour=1"),
        "no config key 'colour'; there are: model.*, ",
    ),
    "strategies of something": (("strategies", "fast"), "fast: give --config FILE too"),
    "strategies on a mesh of nothing": (("strategies", "--mesh", "2x4"), "--mesh: give --config FILE too"),
    "launch of nothing": (("launch", "local", "--processes", "2"), "no command to launch; give it after --"),
    "more processes than a machine has": (
        ("launch", "local", "--processes", "99999999", "--", "x"),
        "--processes: '99999999' must be a whole number of at most 1024: each is a Python with JAX in",
    ),
    "processes of thousands of digits": (("launch", "local", "--processes", "9" * 5000, "--", "x"), "at most 1024"),
    "processes of infinity": (("launch", "local", "--processes", "inf", "--", "x"), "'inf' must be a whole number of"),
    "more hosts than a lab has": (("lab", "--hosts", "99999999", "--", "x"), "'99999999' must be", "at most 1024"),
    "more devices than are emulated": (
        ("launch", "local", "--processes", "1", "--devices-per-process", "99999999", "--", "x"),
        "at most 1024: each emulated device has threads of its own",
    ),
    "more nodes than can call": (("launch", "slurm", "--nodes", "99999999", "--", "x"), "at most 100000: all are"),
    "more pods than can call": (
        ("launch", "kubernetes", "--pods", "99999999", "--image", "a", "--claim", "b", "--", "x"),
        "at most 100000: all are written down, and all call process 0",
    ),
    "a port that is none": (
        ("launch", "ssh", "--hosts", "a", "--port", "65536", "--", "x"),
        "'65536' must be a whole number of at most 65535: ports end there",
    ),
    "a batch of more than memory": (
        ("bench", "inference", "--model", "alexnet", "--batch", "1,99999999"),
        "'99999999' must be a whole number of at most 65536: a batch lies in memory",
    ),
    "an image that no file has": (
        ("bench", "inference", "--model", "alexnet", "--image", "65536"),
        "at most 65535: no JPEG file has a longer side",
    ),
    "a width that is no number": (("bench", "inference", "--model", "alexnet", "--width", "nan"), "above 0, up to 16"),
    "a temperature that is no number": (
        ("predict", "x", "y", "--temperature", "x"),
        "--temperature: x must be 0 to 100",
    ),
    "a seed of more bits": (("predict", "x", "y", "--seed", "4294967296"), "JAX takes 32 bits of a seed"),
    "a negative seed": (("predict", "x", "y", "--seed=-1"), "'-1' must be a whole number of at least 0"),
    "threads without end": (
        ("data", "prepare", "imagenet2012", "--manual-dir", "x", "--threads", "99999999"),
        "at most 1024: no machine has so many cores",
    ),
    "no processes": (("launch", "local", "--processes", "0", "--", "x"), "'0' must be a whole number of at least 1"),
}


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@every(OVERRIDES)
def test_a_wrong_override(given, words, new_workdir, capsys):
    command = ["--config", DIGITS, "--workdir", new_workdir, *given.split()]
    says(refused(lambda: train.main(command), capsys), words)


@every(COMMANDS)
def test_a_wrong_command(given, words, new_workdir, capsys):
    command = given if "--workdir" in given else ["--workdir", new_workdir, *given]
    says(refused(lambda: train.main(command), capsys), words)


@every(JAXNET)
def test_a_wrong_command_of_jaxnet(given, words, capsys):
    says(refused(lambda: jaxnet(given), capsys), words)


@pytest.mark.parametrize(
    "command",
    [
        "bench collectives",
        "bench step --strategy flat",
        "bench inference --model alexnet",
        "tune --model small",
        "predict weights.safetensors picture.png",
        "predict program.stablehlo picture.png",
        "export weights.safetensors --out new.stablehlo",
    ],
)
def test_a_platform_of_which_there_is_no_device(command, tmp_path, capsys, monkeypatch):
    def fail():
        raise RuntimeError("unknown backend")

    for name in ("weights.safetensors", "program.stablehlo"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("jax.local_device_count", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "tpuu")
    assert refused(lambda: jaxnet(command.split()), capsys) == (
        "JAX cannot start with JAX_PLATFORMS=tpuu: unknown backend"
    )


def test_fashion_mnist_that_is_not_there(tmp_path, new_workdir, capsys):
    overrides = [f"data.data_dir={tmp_path}", "data.idx_dir=/nowhere"]
    message = refused(lambda: train.main(["--config", FASHION, "--workdir", new_workdir, *overrides]), capsys)
    says(
        message, [f"neither prepared in {tmp_path} nor in /nowhere", "apt-get install dataset-fashion-mnist", "idx_dir"]
    )
    assert not list(tmp_path.iterdir())


def test_fashion_mnist_that_is_damaged(tmp_path, new_workdir, capsys):
    (tmp_path / "idx").mkdir()
    (tmp_path / "idx/train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(1000))[:20])
    overrides = [f"data.data_dir={tmp_path}/tfds", f"data.idx_dir={tmp_path}/idx"]
    message = refused(lambda: train.main(["--config", FASHION, "--workdir", new_workdir, *overrides]), capsys)
    says(message, [f"{tmp_path}/idx/train-images-idx3-ubyte.gz cannot be read: "])
    assert not (tmp_path / "tfds").exists()


# Programs as a user starts them, elsewhere than in the repository.
TRAIN = (str(ROOT / "train.py"), "--config", DIGITS)
PROGRAMS = {
    "relative config": ((TRAIN[0], "--config", "configs/digits.py"), {}, "config configs/digits.py: no such file"),
    "batch": ((*TRAIN, "batch_size=60"), {"JAX_NUM_CPU_DEVICES": "8"}, "batch_size=60: wanted a multiple of 8"),
    "plan": (("-m", "jaxnet", "plan", "--config", DIGITS, "hosts=many"), {}, "hosts=many: wanted an integer or none"),
    "platform": (
        TRAIN,
        {"JAX_PLATFORMS": "tpuu"},
        "JAX cannot start with JAX_PLATFORMS=tpuu: ",
        "'tpuu' is not in the list",
    ),
    "devices": (
        TRAIN,
        {"JAX_NUM_CPU_DEVICES": "x"},
        "JAX_NUM_CPU_DEVICES: 'x' must be a whole number of at least 1; unset it",
    ),
    "no devices": (("-m", "jaxnet", "models"), {"JAX_NUM_CPU_DEVICES": "0"}, "JAX_NUM_CPU_DEVICES: '0' must be a "),
    "devices left to JAX": ((*TRAIN, "epochs=0"), {"JAX_NUM_CPU_DEVICES": "-1"}, "epochs=0.0: wanted a number above 0"),
    "part of a cluster": (
        TRAIN,
        {"JAX_NUM_PROCESSES": "2"},
        "JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID missing beside JAX_NUM_PROCESSES: set all three",
    ),
    "process id": (
        TRAIN,
        {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "one"},
        "JAX_PROCESS_ID is 'one'; it must be a whole number",
    ),
    "interface": (
        TRAIN,
        {
            "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1",
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": "1",
            "JAXNET_NETWORK_INTERFACE": "ib9",
        },
        "JAXNET_NETWORK_INTERFACE is 'ib9', but ",
        "has no such network interface; it has ",
    ),
}


@pytest.mark.parametrize(
    ("command", "environment", "words"), [(case[0], case[1], case[2:]) for case in PROGRAMS.values()], ids=PROGRAMS
)
def test_a_program_started_elsewhere(command, environment, words, tmp_path):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    says(one_line(done.stdout, done.stderr), words)
    assert not list(tmp_path.iterdir())

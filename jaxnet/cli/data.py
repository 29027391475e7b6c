"""`jaxnet data`: prepare data sets for training, and verify them."""

import argparse
import json

from jaxnet.command_line import Commands, given_path, threads
from jaxnet.errors import printable
from jaxnet.files import expanded

_DATA_DESCRIPTION = "Prepare data sets for training, and verify them."

_PREPARE = """\
Write a data set in TFDS's format (ArrayRecord), without TensorFlow and without a network. imagenet2012 is made from
ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, which image-net.org gives to those who register. The archives are
read as they are, without unpacking. If the command is interrupted, even killed, run it again: it continues where it
stopped. Run it several times at once, on any hosts that share the directories, and the processes share the work."""

_VERIFY = """\
Read and decode every image of a data set in TFDS's format. The exit status is 1 if any image is damaged."""

_DATA_EXAMPLES = """\
examples:
  jaxnet data prepare imagenet2012 --manual-dir ~/downloads --data-dir /data/tfds
  jaxnet data verify imagenet2012 --data-dir /data/tfds
"""


def add_data(commands: Commands) -> None:
    """Add `data` to the commands of `jaxnet`."""
    data = commands.add_parser(
        "data", help="prepare and verify data sets", description=_DATA_DESCRIPTION, epilog=_DATA_EXAMPLES
    )
    kinds = data.add_commands("KIND")
    prepare = kinds.add_parser("prepare", help="write a data set", description=_PREPARE, epilog=_DATA_EXAMPLES)
    prepare.add_argument("name", choices=["imagenet2012"], metavar="NAME", help="imagenet2012")
    prepare.add_argument(
        "--manual-dir", type=given_path, required=True, metavar="DIR", help="the directory of the archives"
    )
    prepare.add_argument(
        "--allow-partial", action="store_true", help="accept archives with fewer images, and leave out damaged images"
    )
    prepare.set_defaults(run=run_prepare)
    verify = kinds.add_parser("verify", help="read and decode every image", description=_VERIFY, epilog=_DATA_EXAMPLES)
    verify.add_argument("name", metavar="NAME", help="its name in TFDS, such as imagenet2012 or cifar10")
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(run=run_verify)
    for parser in (prepare, verify):
        parser.add_argument(
            "--data-dir", metavar="DIR", help="directory of data sets; default $TFDS_DATA_DIR, or ~/tensorflow_datasets"
        )
        parser.add_argument(
            "--threads", type=threads, metavar="N", help="threads that decode; default: one for each core"
        )


def run_prepare(args: argparse.Namespace) -> int:
    """Run `jaxnet data prepare`."""
    from jaxnet.cli.watching import Watching
    from jaxnet.data.prepare import prepare_imagenet

    options = {"allow_partial": args.allow_partial, "threads": args.threads}
    with Watching() as watch:
        done = prepare_imagenet(expanded(args.manual_dir), args.data_dir, watch=watch, **options)
    for word, images in (("damaged and left out", done.damaged), ("converted to RGB JPEG", done.converted)):
        _list(f"{len(images):,} {word}", images)
    counts = ", ".join(f"{split} {count:,}" for split, count in done.examples.items())
    print(f"{args.name} is in {done.directory}: {counts}")
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Run `jaxnet data verify`."""
    from jaxnet.cli.watching import Watching
    from jaxnet.data.prepare import verify

    with Watching(silent=args.json) as watch:
        found = verify(args.name, args.data_dir, threads=args.threads, watch=watch)
    if args.json:
        print(json.dumps(found._asdict() | {"directory": str(found.directory)}, indent=2))
    else:
        counts = ", ".join(f"{split} {count:,}" for split, count in found.examples.items())
        _list(f"{len(found.damaged):,} records are damaged", found.damaged)
        print(f"{args.name} in {found.directory}: {counts}; {len(found.damaged):,} damaged")
    return int(bool(found.damaged))


def _list(title: str, images: dict[str, str]) -> None:
    if images:
        print(f"{title}:")
    for name, what in images.items():
        print(printable(f"  {name}: {what}"))

"""Which code this process runs, in short: a digest of each part of the package."""

import hashlib
from pathlib import Path

import jaxnet

_ROOT = Path(jaxnet.__path__[0])


def code_digests(root: Path = _ROOT) -> dict[str, str]:
    """A digest of the Python files of each sub-package of `root`, and of those beside them, by its name.

    >>> sorted(code_digests())[:3]
    ['code of jaxnet', 'code of jaxnet/checkpoints', 'code of jaxnet/cli']
    """
    digests: dict[str, hashlib._Hash] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        part = f"{root.name}/{inside.parts[0]}" if len(inside.parts) > 1 else root.name
        digest = digests.setdefault(f"code of {part}", hashlib.sha256())
        text = path.read_bytes()
        digest.update(f"{inside.as_posix()} {len(text)}\n".encode() + text)
    return {part: digest.hexdigest()[:16] for part, digest in digests.items()}

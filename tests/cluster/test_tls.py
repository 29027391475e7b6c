"""Mutual TLS: three files that fit together, or one line that says what does not."""

import inspect
import shutil
import subprocess

import jax
import pytest

from jaxnet.cluster.tls import check_credentials, credentials_in, initialize_options
from jaxnet.errors import InputError
from support.certificates import make_authority, make_certificate

HAS_TLS = "mtls_cert_file" in inspect.signature(jax.distributed.initialize).parameters

if shutil.which("openssl") is None:
    pytest.skip("there is no program `openssl` to make certificates", allow_module_level=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    for authority in ("ours", "theirs"):
        make_authority(folder, authority)
    for name, authority, days in (("node", "ours", 2), ("stranger", "theirs", 2), ("old", "ours", -1)):
        make_certificate(folder, name, authority, "DNS:node1,IP:127.0.0.1", days)
    return folder


def environ(folder, cert="node", key="node", ca="ours"):
    files = {"CERT": f"{cert}.crt", "KEY": f"{key}.key", "CA": f"{ca}.crt"}
    return {f"JAXNET_TLS_{name}": str(folder / file) for name, file in files.items()}


@pytest.mark.parametrize("called", [None, "node1", "127.0.0.1"])
def test_what_holds(made, called):
    check_credentials(credentials_in(environ(made)), called)


@pytest.mark.parametrize(
    ("files", "called", "words"),
    [
        ({"key": "stranger"}, None, "do not go together: key values mismatch"),
        (
            {"cert": "stranger", "key": "stranger"},
            None,
            "self-signed certificate in certificate chain|unable to get local",
        ),
        ({"cert": "old", "key": "old"}, None, "certificate has expired"),
        ({}, "node2", "for node2, as the others call it,.*mismatch"),
        ({}, "10.0.0.1", "for 10.0.0.1, as the others call it,.*mismatch"),
    ],
)
def test_what_does_not(made, files, called, words):
    with pytest.raises(InputError, match=words) as refusal:
        check_credentials(credentials_in(environ(made, **files)), called)
    assert "\n" not in str(refusal.value)


def test_files_that_hold_something_else(made):
    (made / "text.crt").write_text("text")
    for which in ("cert", "ca"):
        with pytest.raises(InputError, match="do not go together: "):
            check_credentials(credentials_in(environ(made, **{which: "text"})), None)


def test_a_key_with_a_password_asks_nobody(made):
    command = "openssl rsa -aes128 -passout pass:secret -in node.key -out locked.key"
    subprocess.run(command.split(), cwd=made, check=True, capture_output=True)
    with pytest.raises(InputError, match="the key has a password"):
        check_credentials(credentials_in(environ(made, key="locked")), None)


@pytest.mark.parametrize("left", ["CERT", "KEY", "CA"])
def test_all_three_or_none(made, left):
    given = environ(made)
    del given[f"JAXNET_TLS_{left}"]
    with pytest.raises(InputError, match=f"^JAXNET_TLS_{left} missing beside .*: set all three"):
        credentials_in(given)
    with pytest.raises(InputError, match="JAXNET_TLS_CA is /nowhere, which cannot be read: no such file"):
        credentials_in(environ(made) | {"JAXNET_TLS_CA": "/nowhere"})


def test_versions_of_jax_without_it_say_so(made):
    own = credentials_in(environ(made))
    assert initialize_options(None) == {}
    if HAS_TLS:
        assert initialize_options(own)["mtls_cert_file"] == own.cert
    else:
        with pytest.raises(InputError, match=f"JAX {jax.__version__} has no mutual TLS; use JAX 0.12"):
            initialize_options(own)

"""Certificates made by openssl, for tests of mutual TLS."""

import subprocess


def make_authority(folder, name):
    """NAME.crt and NAME.key in `folder`: who signs others' certificates."""
    _openssl(folder, f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt")


def make_certificate(folder, name, authority, names, days=2):
    """NAME.crt and NAME.key, signed by `authority`; `names` is what it is called, such as `DNS:node1,IP:127.0.0.1`."""
    (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
    _openssl(folder, f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr")
    signed = f"-CA {authority}.crt -CAkey {authority}.key -CAcreateserial"
    _openssl(folder, f"x509 -req -in {name}.csr {signed} -days {days} -extfile {name}.ext -out {name}.crt")


def _openssl(folder, command):
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True, text=True)

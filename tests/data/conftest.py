"""A cache of its own for every test, and clients that hand out prepared packages."""

import os

import pytest

from tests.data import packages

NAMES = {"npm": "npm", "debian": "apt-get"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAXICML_CACHE", str(folder))
    return folder


@pytest.fixture
def client(tmp_path, monkeypatch):
    """`client(kind, shell lines)` puts a client in front of the real one; its calls are logged."""
    folder = tmp_path / "clients"
    (folder / "pip").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    (folder / "pip" / "__init__.py").touch()
    log = folder / "log"
    log.touch()

    def install(kind, script):
        script = f'echo "$@" >> {log}\n{script}\n'
        packages.executable(folder / NAMES.get(kind, "pip.sh"), script)
        (folder / "pip" / "__main__.py").write_text(
            "import subprocess, sys\n"
            f"sys.exit(subprocess.run([{str(folder / 'pip.sh')!r}, *sys.argv[1:]]).returncode)\n"
        )
        return lambda: log.read_text().splitlines()

    return install

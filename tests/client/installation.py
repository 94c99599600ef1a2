"""libtandem_client as somebody else has it: installed into a folder of its own, programs compiled against that."""

import os
import pathlib
import subprocess

from tests.conftest import ARITH, BINARY, ROOT

BUILD = pathlib.Path(BINARY).resolve().parent
LIMIT_S = 120
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]


def run(command, check=True, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S, **more)
    if check:
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


class Installation:
    def __init__(self, folder):
        self.prefix = folder / "prefix"
        run(["cmake", "--install", BUILD, "--component", "tandem_client", "--prefix", self.prefix])
        self.library = next(self.prefix.rglob("libtandem_client.so"))
        self.environment = {**os.environ, "PKG_CONFIG_PATH": str(self.library.parent / "pkgconfig")}
        self.examples = folder / "examples"
        run(["cmake", "-S", ROOT / "client" / "examples", "-B", self.examples, f"-DCMAKE_PREFIX_PATH={self.prefix}",
             "-DCMAKE_C_FLAGS=-Werror"])
        run(["cmake", "--build", self.examples])
        self.test = folder / "c_client_test"
        self.compile(self.test)

    def pkg_config(self, *flags):
        return run(["pkg-config", *flags, "tandem_client"], env=self.environment).stdout.split()

    def compile(self, program, *, static=False, source=ROOT / "tests" / "client" / "c_client_test.c"):
        link = self.pkg_config("--libs") + [f"-Wl,-rpath,{self.library.parent}"]
        if static:  # the archive by name, for the shared library lies beside it
            link = ["-l:libtandem_client.a" if word == "-ltandem_client" else word for word in self.pkg_config("--libs", "--static")]
        run(["cc", *WARNINGS, *self.pkg_config("--cflags"), source, "-o", program, "-pthread", *link])

    def case(self, name, *addresses, program=None, check=True, environment=None):
        return run([program or self.test, name, *addresses], check=check, env={**os.environ, **(environment or {})})

    def generate(self, address, prompt, most):
        """The ids that the example with its own attention puts behind a prompt."""
        return [int(word) for word in run([self.examples / "generate", ARITH, str(most), address, *map(str, prompt)]).stdout.split()]

#!/usr/bin/env python3
"""Runs the steps of a recipe of Spack with stand-ins for Spack's modules, and prints its metadata and commands.

    spack_steps.py package.py PREFIX
"""
import sys
import types
from pathlib import Path

facts = []


def directive(name):
    return lambda *values, **named: facts.append((name, values, named))


package = types.ModuleType("spack.package")
for name in ("license", "version", "variant", "depends_on", "conflicts", "requires", "provides", "maintainers"):
    setattr(package, name, directive(name))
package.join_path = lambda *parts: str(Path(*map(str, parts)))
package.make = lambda *arguments: facts.append(("make", arguments, {}))
package.which = lambda path: lambda *arguments, **named: facts.append(("run", (str(path), *arguments), {})) or "tcp: shm: udp:"
package.__all__ = [name for name in vars(package) if not name.startswith("_")]

makefile = types.ModuleType("spack_repo.builtin.build_systems.makefile")
makefile.MakefilePackage = type("MakefilePackage", (), {})
for name, module in {
    "spack": types.ModuleType("spack"),
    "spack.package": package,
    "spack_repo": types.ModuleType("spack_repo"),
    "spack_repo.builtin": types.ModuleType("spack_repo.builtin"),
    "spack_repo.builtin.build_systems": types.ModuleType("spack_repo.builtin.build_systems"),
    "spack_repo.builtin.build_systems.makefile": makefile,
}.items():
    sys.modules[name] = module

recipe, prefix = Path(sys.argv[1]), Path(sys.argv[2])
scope = {"__name__": "recipe"}
exec(compile(recipe.read_text(), recipe, "exec"), scope)
ofi = scope["Ofi"]()
ofi.prefix = type("Prefix", (), {"lib": prefix / "lib", "bin": type("Bin", (), {"fi_info": prefix / "bin/fi_info"})(), "__str__": lambda self: str(prefix)})()
ofi.stage = types.SimpleNamespace(path=prefix / "stage")
environment = types.SimpleNamespace(set=directive("set"), prepend_path=directive("prepend_path"))
ofi.setup_build_environment(environment)
ofi.setup_run_environment(environment)
for debug in (False, True):
    spec = types.SimpleNamespace(satisfies=lambda condition, debug=debug: debug and condition == "+debug")
    ofi.build(spec, ofi.prefix)
    ofi.install(spec, ofi.prefix)
ofi.test_providers()
for name, values, named in facts:
    print(name, *values, *(f"{key}={value}" for key, value in named.items()))

# Recipe of Spack for the archive of 'make dist'. 'make recipes' writes a repository with it to
# out/recipes/spack, with the checksum of the archive. See docs/packaging.md.
import os

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Ofi(MakefilePackage):
    """Drop-in libfabric.so.1, written in Rust: programs built for libfabric 1.0 to 2.x load it in
    place of the original. Providers are plug-ins, among them tcp, shm, udp, ofi_rxm, ofi_rxd, lnx
    and verbs."""

    homepage = "https://ofiwg.github.io/libfabric/"
    # The archive has all crates: nothing is fetched for the build.
    url = f"file://{os.getcwd()}/ofi-1.0.0.tar.xz"
    manual_download = True

    license("BSD-2-Clause OR MIT")

    version("1.0.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    variant(
        "verbs", default=False, description="Install the libraries of the provider verbs with it"
    )
    variant("debug", default=False, description="Keep the symbols of libraries and tools")

    depends_on("c", type="build")
    depends_on("rust@1.85:", type="build")
    depends_on("gmake", type="build")
    # The linker of the library: others refuse its version script beside that of rustc.
    depends_on("llvm+lld", type="build")
    # Loaded at the first use, and not linked.
    depends_on("rdma-core", type="run", when="+verbs")

    requires("platform=linux", msg="The library is for Linux")

    def setup_build_environment(self, env):
        env.set("CARGO_HOME", join_path(self.stage.path, "cargo"))

    def build(self, spec, prefix):
        make("build")

    def install(self, spec, prefix):
        symbols = "keep" if spec.satisfies("+debug") else "none"
        make("install", f"PREFIX={prefix}", f"SYMBOLS={symbols}")

    def setup_run_environment(self, env):
        # Programs linked to another libfabric find this one first.
        env.prepend_path("LD_LIBRARY_PATH", self.prefix.lib)

    def test_providers(self):
        """fi_info lists the providers"""
        fi_info = which(self.prefix.bin.fi_info)
        output = fi_info("-l", output=str.split, error=str.split)
        for provider in ("tcp", "shm", "udp"):
            assert f"{provider}:" in output

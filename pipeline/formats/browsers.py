"""A format's runtime for web browsers: packages of the npm registry, pinned by version and hash."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NpmPackage:
    """One package at one version, and its files that a page needs."""

    name: str
    version: str
    sha512: str
    """Hash of its tarball in base64, the `integrity` of npm's lock files without its prefix."""
    bytes: int
    """Size of its tarball."""
    files: dict[str, str]
    """Paths in the tarball, by the names under which a page loads them."""

    @property
    def tarball(self) -> str:
        """Name of the tarball, as `npm pack` writes it."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"

    @property
    def address(self) -> str:
        """Path of the tarball in a registry."""
        return f"{self.name}/-/{self.name.split('/')[-1]}-{self.version}.tgz"


@dataclass(frozen=True)
class BrowserRuntime:
    """A runtime that a page loads."""

    name: str
    """Its name with version, as people read it."""
    packages: tuple[NpmPackage, ...]
    modules: dict[str, str]
    """Files by the names under which the packages' modules import each other: the page's import map."""

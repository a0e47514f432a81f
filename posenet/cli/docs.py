"""List the pages of the documentation, which are part of every installation, or print one."""

import argparse
import site
import sysconfig
from pathlib import Path

import posenet
from posenet.cli.main import print_message
from posenet.errors import ConfigError
from posenet.files import read_input, write_atomically
from posenet.messages import suggest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the name of the page."""
    parser.add_argument("page", nargs="?", help="page to print, such as start; by default, all pages are listed")


def run(args: argparse.Namespace) -> None:
    """Print the page as it is, or the names and the titles of all pages and their folder."""
    folder = _find_pages()
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}
    if args.page is None:
        for name, path in pages.items():
            title = read_input(path).decode().partition("\n")[0].lstrip("# ")
            print_message(f"{name:<{max(map(len, pages))}}  {title}")
        print_message(f"posenet docs PAGE prints one; they are in {folder}")
        return
    name = args.page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        raise ConfigError(f"there is no page {args.page}; {suggest(name, pages)}posenet docs lists all")
    write_atomically("-", read_input(pages[name]))


def _find_pages() -> Path:
    """The folder of the pages: that of the checkout, or that of the installation."""
    root = Path(posenet.__file__).parent.parent
    bases = (sysconfig.get_path("data"), site.getuserbase(), root)
    for place in [root, *(Path(base, "share/doc/simplepose") for base in bases)]:
        if (place / "docs" / "start.md").is_file():
            return (place / "docs").resolve()
    raise ConfigError("this installation of posenet has no pages; install it from a wheel or a checkout")

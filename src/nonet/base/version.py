"""The version of Nonet that is installed."""

from importlib.metadata import version

__version__ = version("nonet")


def install_with(extra: str) -> str:
    """Say how to install Nonet with an extra.

    It is on no package index yet, where its name could be that of another package.

    >>> install_with("web")
    "pip install 'PATH/TO/CLONE[web]'"
    """
    return f"pip install 'PATH/TO/CLONE[{extra}]'"

"""The tasks of `confiding_tasks`, encrypted; each as ``encrypted_tasks:NAME``."""

from __future__ import annotations

from acceptance import confiding_tasks as plain


class Echo(plain.Echo):
    """Encrypted."""

    encrypted = True


class EchoInChild(plain.EchoInChild):
    """Encrypted."""

    encrypted = True


class Kept(plain.Kept):
    """Encrypted."""

    encrypted = True


class Fails(plain.Fails):
    """Encrypted."""

    encrypted = True


class FailsInChild(plain.FailsInChild):
    """Encrypted."""

    encrypted = True


class FailsQuietly(plain.FailsQuietly):
    """Encrypted."""

    encrypted = True


class Dies(plain.Dies):
    """Encrypted."""

    encrypted = True


class Late(plain.Late):
    """Encrypted."""

    encrypted = True


class Saves(plain.Saves):
    """Encrypted."""

    encrypted = True


class Report(plain.Report):
    """Encrypted."""

    encrypted = True


class Parent(plain.Parent):
    """Encrypted."""

    encrypted = True
    child = Echo
    callback = Report

"""The tasks of `confiding_tasks`, encrypted; each as ``encrypted_tasks:NAME``."""

from __future__ import annotations

from acceptance import confiding_tasks as plain


class Encrypted:
    """What makes a task encrypted."""

    encrypted = True


class Echo(Encrypted, plain.Echo): ...


class EchoInChild(Encrypted, plain.EchoInChild): ...


class Kept(Encrypted, plain.Kept): ...


class Fails(Encrypted, plain.Fails): ...


class FailsInChild(Encrypted, plain.FailsInChild): ...


class FailsQuietly(Encrypted, plain.FailsQuietly): ...


class Dies(Encrypted, plain.Dies): ...


class Late(Encrypted, plain.Late): ...


class Saves(Encrypted, plain.Saves): ...


class Report(Encrypted, plain.Report): ...


class Parent(Encrypted, plain.Parent):
    child = Echo
    callback = Report

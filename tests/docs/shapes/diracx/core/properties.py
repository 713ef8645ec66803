"""What users may be allowed to do."""

from __future__ import annotations


class SecurityProperty(str):
    @classmethod
    def available_properties(cls) -> set[SecurityProperty]:
        return {cls("Observer"), cls("Admin")}

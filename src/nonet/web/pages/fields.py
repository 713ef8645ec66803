"""The fields of forms and addresses that several pages have."""

from typing import Annotated

from fastapi import Form, Query

Text = Annotated[str, Query(alias="q", max_length=500)]
Word = Annotated[str, Query(max_length=500)]
Cursor = Annotated[str, Query(max_length=2000)]
Number = Annotated[int, Query(alias="page", ge=1, le=10_000)]
Offset = Annotated[int, Query(ge=0, le=10**9)]
Reason = Annotated[str, Form(max_length=300)]
Note = Annotated[str, Form(max_length=1000)]

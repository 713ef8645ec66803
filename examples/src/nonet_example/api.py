"""A web application that submits: ``uvicorn --factory nonet_example.api:create_app``.

Routes get their database from the same function as tasks. FastAPI wants it marked with its own
``Depends``, which Nonet understands in tasks, too.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field

from nonet import Nonet
from nonet.contrib.fastapi import NonetApp, install, lifespan
from nonet_example.database import FileDB
from nonet_example.groups import CleanTransformation
from nonet_example.requests import MOST_FILES, RemoveRequested

router = APIRouter()

# With this scope it commits before the answer is sent: else a client may hear of a task of which
# nothing becomes.
Files = Annotated[FileDB, Depends(FileDB.session, scope="function")]


class Removal(BaseModel):
    """What shall be removed."""

    vo: str
    lfns: list[str] = Field(min_length=1, max_length=MOST_FILES)


@router.post("/removals", status_code=202)
async def remove(removal: Removal, db: Files, nonet: NonetApp) -> dict[str, str]:
    """Note the request and submit its task, both or neither: one transaction."""
    files = await db.find(removal.vo, removal.lfns)
    if unknown := sorted(set(removal.lfns) - {file.lfn for file in files}):
        raise HTTPException(404, f"{removal.vo} has no {', '.join(unknown)}")
    db.ask_for_removal(files)
    task = RemoveRequested(removal.vo, removal.lfns)
    return {"task": await nonet.submit(task, transaction=db.sql)}


@router.post("/transformations/{number}/cleaning", status_code=202)
async def clean(number: int, nonet: NonetApp) -> dict[str, object]:
    """Submit at once; who asks twice gets the same task."""
    handle = await nonet.submit(CleanTransformation(number))
    return {"task": handle, "created": handle.created}


@router.get("/tasks/{id}")
async def state(id: str, nonet: NonetApp) -> dict[str, str]:
    """Where a task is; 404 if nobody knows it."""
    return {"state": (await nonet.status(id)).state}


def create_app(nonet: Nonet | None = None) -> FastAPI:
    """The application.

    Args:
        nonet: one that is not open yet; None: that of the environment.
    """
    app = FastAPI(title="nonet-example", lifespan=lifespan(nonet))
    install(app)  # what Nonet refuses gets its status code: 429, 503, 409, 404
    app.include_router(router)
    return app

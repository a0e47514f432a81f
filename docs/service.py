"""A web service that finds people in photographs; see service.md. Start it with: uvicorn --factory service:make_app"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request

from posenet import PosenetError, Predictor
from posenet.images import to_bgr

MAX_BYTES = 20 * 2**20
"""Size of the largest photograph; a larger one is refused before it is read to its end."""
MAX_WAITING = 64
"""Photographs that wait at most; further clients are told to come again."""


def make_app(predictor: Predictor | None = None) -> FastAPI:
    """The service. ``POSENET_CHECKPOINT`` names the network if no predictor is given."""
    waiting: asyncio.Queue[tuple[np.ndarray, asyncio.Future[Any]]] = asyncio.Queue(MAX_WAITING)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        network = predictor or Predictor(os.environ.get("POSENET_CHECKPOINT", "simplepose"))
        await asyncio.to_thread(network, np.zeros((480, 640, 3), np.uint8))  # the first image takes longest
        worker = asyncio.create_task(find_people(network, waiting))
        try:
            yield
        finally:
            worker.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, int]:
        return {"waiting": waiting.qsize()}

    @app.post("/people")
    async def people(request: Request) -> list[dict[str, Any]]:
        """The people in the photograph that is the body of the request, in pixels of the upright photograph."""
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > MAX_BYTES:
                raise HTTPException(413, f"a photograph may have {MAX_BYTES >> 20} MiB")
        if waiting.full():
            raise HTTPException(503, "too many photographs are waiting", {"Retry-After": "1"})
        try:
            image = await asyncio.to_thread(to_bgr, bytes(data))
        except PosenetError as error:
            raise HTTPException(422, str(error)) from error
        found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await waiting.put((image, found))
        return await found

    return app


async def find_people(predictor: Predictor, waiting: asyncio.Queue[tuple[np.ndarray, asyncio.Future[Any]]]) -> None:
    """Find the people in all that waits, one batch after the other."""
    while True:
        batch = [await waiting.get()]
        while not waiting.empty() and len(batch) < predictor.settings.batch_size:
            batch.append(waiting.get_nowait())
        images = [image for image, _ in batch]
        try:
            answers: list[Any] = [result.to_dicts() for result in await asyncio.to_thread(predictor, images)]
        except Exception as error:  # an error of the network: these clients get status 500, the service goes on
            answers = [error] * len(batch)
        for (_, found), answer in zip(batch, answers, strict=True):
            if found.done():  # the client has gone
                continue
            if isinstance(answer, Exception):
                found.set_exception(answer)
            else:
                found.set_result(answer)

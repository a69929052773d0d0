"""``http.app``: the project's own ASGI application, on a socket of its own that the server hands requests on to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any

log = logging.getLogger(__name__)


class Web:
    """Serves an ASGI application: with uvicorn where the project has it, otherwise with the bridge of ``asgi``."""

    def __init__(self, app: Any, path: str) -> None:
        self._app = app
        self._path = path
        self._uvicorn: Any = None
        self._bridge: Any = None
        self._task: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Begins to listen; the application has started up when this returns."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        try:
            import uvicorn
        except ImportError:
            from .asgi import Bridge

            self._bridge = Bridge(self._app, self._path)
            await self._bridge.start()
            return
        config = uvicorn.Config(
            self._app, uds=self._path, log_config=None, access_log=False, proxy_headers=True, forwarded_allow_ips="*"
        )
        self._uvicorn = uvicorn.Server(config)
        # Signals are the business of the process.
        self._uvicorn.install_signal_handlers = lambda: None
        self._uvicorn.capture_signals = contextlib.nullcontext
        self._task = asyncio.get_running_loop().create_task(self._uvicorn.serve())
        while not self._uvicorn.started:
            if self._task.done():
                self._task.result()
                raise RuntimeError("http.app did not start up")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Lets the application shut down."""
        if self._bridge is not None:
            await self._bridge.stop()
        if self._uvicorn is not None and self._task is not None:
            self._uvicorn.should_exit = True
            await asyncio.wait([self._task], timeout=3.0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

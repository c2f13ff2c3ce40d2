"""The MLflow server in one process: `python -m flows.servers.mlflow_server PORT`.

`mlflow server` keeps a second process of the same size only to start this one.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tasks.settings import configure_environment

# MLflow's pages open on its language-model side (traces, judges) with a chat panel over the table, and remember in
# the browser what the visitor chose instead. These are the first visit's choices; the visitor's own ones stay.
FIRST_VISIT = """<script>
for (const [key, value] of [
  ["mlflow.workflowType_v1", '"machine_learning"'],
  ["mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true"],
]) if (localStorage.getItem(key) === null) localStorage.setItem(key, value);
</script>"""


def open_on_training_runs(app: Any) -> None:
    """Serve MLflow's page with the first visit's choices, behind the same host checks as everything else."""
    import mlflow.server
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    page = Path(mlflow.server.__file__).parent / "js" / "build" / "index.html"
    html = page.read_text().replace("<head>", f"<head>{FIRST_VISIT}", 1)
    app.router.routes.insert(
        0, Route("/", lambda _request: HTMLResponse(html, headers={"cache-control": "no-cache"}))
    )


def main(port: int) -> None:
    settings = configure_environment()
    origins = (f"127.0.0.1:{port}", f"localhost:{port}")
    # Background jobs of MLflow's language-model features would start further processes.
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    os.environ["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join(origins)
    os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(f"http://{origin}" for origin in origins)

    from mlflow.server import constants

    from tasks.tracking import client_for, close_dead_runs, experiment_id

    # One process migrates a fresh store and makes the experiment, before any request comes.
    client = client_for(settings.tracking_uri)
    experiment = experiment_id(client, settings.experiment)
    close_dead_runs(client, experiment)
    artifacts = settings.artifact_root or (settings.work / "mlartifacts").as_uri()
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = settings.tracking_uri
    os.environ[constants.REGISTRY_STORE_URI_ENV_VAR] = settings.tracking_uri
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = artifacts
    os.environ[constants.ARTIFACTS_DESTINATION_ENV_VAR] = artifacts
    os.environ[constants.SERVE_ARTIFACTS_ENV_VAR] = "true"

    import uvicorn
    from mlflow.server.fastapi_app import app

    open_on_training_runs(app)
    # uvicorn sends itself the signal again when it has ended; there is something left to do then.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
    close_dead_runs(client, experiment)


if __name__ == "__main__":
    main(int(sys.argv[1]))

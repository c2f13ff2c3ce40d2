"""The MLflow model registry: the chosen model with its lineage, loadable by `mlflow.pyfunc.load_model`."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from prefect import task

from methods.common.open_text import open_tokens
from tasks.candidates import Candidate
from tasks.tracking import RunContext, candidate_run

ARTIFACT = "model"
ALIAS = "champion"
REQUIREMENTS = ("transformers", "torch", "safetensors")


@task(
    name="register",
    task_run_name="register {candidate.name}",
    timeout_seconds=1800,
    tags={"report"},
    description="Register the best model.",
)
def register(ctx: RunContext, name: str, candidate: Candidate, scores: Mapping[str, float]) -> str:
    """Make the candidate a version of the registered model `name`, with the alias `champion`.

    The same content is registered once: a second run moves the alias to the version it finds.

    Args:
        ctx: the flow's MLflow run.
        name: of the registered model.
        candidate: a full model folder.
        scores: what the candidate reached, kept as tags of the version.

    Returns:
        The version.
    """
    client = ctx.client
    try:
        client.create_registered_model(name, description="The best candidate of each Seedloom lifecycle run.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    digest = candidate.reference.digest
    known = client.search_model_versions(f"name = '{name}' and tags.`model.digest` = '{digest}'")
    if known:
        found = known[0]
    else:
        run = candidate_run(ctx, candidate.name)
        client.log_artifacts(run, str(candidate.reference.path), ARTIFACT)
        client.log_text(run, _mlmodel(run), f"{ARTIFACT}/MLmodel")
        client.log_text(
            run, "\n".join(f"{p}=={version(p)}" for p in REQUIREMENTS) + "\n", f"{ARTIFACT}/requirements.txt"
        )
        source = f"{client.get_run(run).info.artifact_uri}/{ARTIFACT}"
        parent = client.get_run(ctx.parent_run_id).data
        lineage = {
            "model.digest": digest,
            "model.candidate": candidate.name,
            "model.parents": ", ".join(candidate.parents),
            "seedloom.flow_run": ctx.parent_run_id,
            **{f"config.{key}": value[:500] for key, value in parent.params.items()},
            **{f"score.{key}": f"{value:.6g}" for key, value in scores.items() if "/mean/" in key},
            **({"git.commit": parent.tags["git.commit"]} if "git.commit" in parent.tags else {}),
        }
        found = client.create_model_version(name, source, run_id=run, tags=lineage)
    client.set_registered_model_alias(name, ALIAS, found.version)
    return str(found.version)


def _mlmodel(run: str) -> str:
    description = Model(artifact_path=ARTIFACT, run_id=run)
    mlflow.pyfunc.add_to_model(description, loader_module=__name__, env={"virtualenv": "requirements.txt"})
    text: str = description.to_yaml()
    return text


class TextGenerator:
    """What `mlflow.pyfunc.load_model` returns for a registered model: prompts in, greedy continuations out."""

    def __init__(self, folder: Path) -> None:
        from tasks.evaluate.loading import load_candidate

        self.model, self.tokenizer = load_candidate(folder, None, "auto")

    def predict(self, prompts: Sequence[str], params: Mapping[str, Any] | None = None) -> list[str]:
        """Greedy continuations of at most `max_new_tokens` (default 32) tokens."""
        import torch

        limit = int((params or {}).get("max_new_tokens", 32))
        texts = []
        for prompt in prompts:
            given = torch.tensor([open_tokens(self.tokenizer, prompt)], device=self.model.device)
            tokens = self.model.generate(
                input_ids=given, attention_mask=torch.ones_like(given), max_new_tokens=limit, do_sample=False
            )
            texts.append(self.tokenizer.decode(tokens[0, given.shape[1] :], skip_special_tokens=True))
        return texts


def _load_pyfunc(path: str) -> TextGenerator:
    """MLflow's entry point for the loader module."""
    return TextGenerator(Path(path))

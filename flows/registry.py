"""Every flow by name. Nothing heavy is imported until a flow is asked for."""

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from methods.common.errors import ConfigError
from tasks.config import Config


@dataclass(frozen=True)
class FlowEntry:
    """A flow that the command line, the servers and the deployments know.

    Attributes:
        name: as typed by the user and shown in the Prefect UI.
        module: module that holds the flow under its own name, and `check(config)` for what can be known beforehand.
        config: `module:Class` of its settings; importing it costs little.
        summary: one line for lists.
        paper: slug of the paper's folder in `seeds/`, for study flows.
    """

    name: str
    module: str
    config: str
    summary: str
    paper: str | None = None

    def load_config(self) -> type[Config]:
        module, _, attribute = self.config.partition(":")
        loaded: type[Config] = getattr(import_module(module), attribute)
        return loaded

    def load_flow(self) -> Any:
        """The Prefect flow object; imports Prefect."""
        return getattr(import_module(self.module), self.name.replace("-", "_"))

    def check(self, config: Config) -> None:
        """Refuse what can be known to fail before any work starts."""
        import_module(self.module).check(config)


STEPS = "flows.steps_config"
FLOWS: tuple[FlowEntry, ...] = (
    FlowEntry(
        "lifecycle",
        "flows.lifecycle",
        "flows.lifecycle_config:LifecycleConfig",
        "prepare, fine-tune, merge, compress and evaluate one model, and compare every candidate",
    ),
    FlowEntry(
        "prepare",
        "flows.prepare",
        f"{STEPS}:PrepareConfig",
        "store a model, build task sets and held-out text",
    ),
    FlowEntry(
        "pretrain",
        "flows.pretrain",
        "flows.pretrain_config:PretrainConfig",
        "train a base model from scratch on your text, the norm placement a setting",
    ),
    FlowEntry(
        "adapt",
        "flows.adapt",
        "flows.adapt_config:AdaptConfig",
        "train a model on longer text so that it answers wherever the evidence stands",
    ),
    FlowEntry(
        "finetune",
        "flows.finetune",
        f"{STEPS}:FinetuneConfig",
        "train one expert a task, stopped for merging",
    ),
    FlowEntry(
        "merge",
        "flows.merge",
        f"{STEPS}:MergeConfig",
        "merge experts of one base, coefficients chosen on held-out examples",
    ),
    FlowEntry(
        "compress", "flows.compress", f"{STEPS}:CompressConfig", "make a model smaller by one or more recipes"
    ),
    FlowEntry(
        "steer",
        "flows.steer",
        "flows.steer_config:SteerConfig",
        "steer a model's reasoning where it is in doubt: fitted on questions with answers",
    ),
    FlowEntry(
        "evaluate",
        "flows.evaluate",
        f"{STEPS}:EvaluateConfig",
        "score models on task sets, text, size and speed, and compare them",
    ),
    FlowEntry(
        "cluster",
        "flows.cluster",
        "flows.cluster_config:ClusterConfig",
        "cluster a table, embeddings or images, with bounds on the clusters' sizes",
    ),
    FlowEntry(
        "coreset",
        "flows.coreset",
        "flows.coreset_config:CoresetConfig",
        "cluster files larger than memory through a small weighted part of their rows",
    ),
    FlowEntry(
        "graph",
        "flows.graph",
        "flows.graph_config:GraphConfig",
        "predict nodes, graphs or edges where the answer depends on what lies far away",
    ),
    FlowEntry(
        "potential",
        "flows.potential",
        "flows.potential_config:PotentialFlowConfig",
        "train an interatomic potential on your structures: a model for ASE, tried in dynamics",
    ),
    FlowEntry(
        "archive",
        "flows.archive",
        "flows.archive_config:ArchiveConfig",
        "compress files with a language model, read back by a second computation before anything is dropped",
    ),
    FlowEntry(
        "merge_early_stop",
        "flows.studies.merge_early_stop",
        "flows.studies.merge_early_stop_config:MergeEarlyStopConfig",
        "when to stop experts that will be merged: the paper's claims against its baselines",
        paper="merge_early_stop",
    ),
    FlowEntry(
        "merge_early_stop_encoder",
        "flows.studies.merge_early_stop_encoder",
        "flows.studies.merge_early_stop_encoder_config:MergeEarlyStopEncoderConfig",
        "the same on a sentence encoder: text tasks, full fine-tuning and LoRA",
        paper="merge_early_stop",
    ),
    FlowEntry(
        "littlebit2",
        "flows.studies.littlebit2",
        "flows.studies.littlebit2_config:LittleBit2Config",
        "models below one bit per weight: the paper's claims against its baselines",
        paper="littlebit2",
    ),
    FlowEntry(
        "littlebit2_model",
        "flows.studies.littlebit2_model",
        "flows.studies.littlebit2_model_config:LittleBit2ModelConfig",
        "the same on a whole model: compressed, distilled and scored beside its peers",
        paper="littlebit2",
    ),
    FlowEntry(
        "pruning_representations",
        "flows.studies.pruning_representations",
        "flows.studies.pruning_representations_config:PruningRepresentationsConfig",
        "which tasks a pruned model will still do: the paper's claims, or the verdict on your own model",
        paper="pruning_representations",
    ),
    FlowEntry(
        "span_norm",
        "flows.studies.span_norm",
        "flows.studies.span_norm_config:SpanNormConfig",
        "where the norms stand in a deep Transformer: the paper's claims against its baselines",
        paper="span_norm",
    ),
    FlowEntry(
        "sc_fagc",
        "flows.studies.sc_fagc",
        "flows.studies.sc_fagc_config:ScFagcConfig",
        "clusters whose sizes keep within bounds: the paper's claims beside other clusterings",
        paper="sc_fagc",
    ),
    FlowEntry(
        "approx_coresets",
        "flows.studies.approx_coresets",
        "flows.studies.approx_coresets_config:ApproxCoresetsConfig",
        "cluster a sample and keep the guarantee: the paper's claims against its baselines",
        paper="approx_coresets",
    ),
    FlowEntry(
        "pmatic",
        "flows.studies.pmatic",
        "flows.studies.pmatic_config:PmaticConfig",
        "lossless compression that decodes on another machine: the paper's claims against its baselines",
        paper="pmatic",
    ),
    FlowEntry(
        "rope_psd",
        "flows.studies.rope_psd",
        "flows.studies.rope_psd_config:RopePSDConfig",
        "long text by self-distillation from moved positions: the paper's claims against its baselines",
        paper="rope_psd",
    ),
    FlowEntry(
        "dynasteer",
        "flows.studies.dynasteer",
        "flows.studies.dynasteer_config:DynaSteerConfig",
        "steering at doubtful sentences: the paper's claims against its baselines and controls",
        paper="dynasteer",
    ),
    FlowEntry(
        "s3gnn",
        "flows.studies.s3gnn",
        "flows.studies.s3gnn_config:S3GNNConfig",
        "graphs whose answers lie far away: the paper's claims beside other graph networks",
        paper="s3gnn",
    ),
    FlowEntry(
        "tace",
        "flows.studies.tace",
        "flows.studies.tace_config:TaceConfig",
        "interatomic potentials on Cartesian and spherical tensors: the paper's claims with all else fixed",
        paper="tace",
    ),
)


def entry(name: str) -> FlowEntry:
    """The flow of that name.

    Raises:
        ConfigError: naming the nearest known flows.
    """
    for candidate in FLOWS:
        if candidate.name == name:
            return candidate
    names = [flow.name for flow in FLOWS]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known flows: {', '.join(names)}"
    raise ConfigError(f"flow {name!r} is not known; {hint}")

"""DynaSteer: steer a language model's reasoning at the sentences where it is in doubt.

"Search for Truth from Reasoning: A Dynamic Representation Editing Framework for Steering LLM Trajectories", ICML 2026
(arXiv 2606.28589). Offline: chains of the model itself are split into sentences; at those of high entropy other next
sentences are drawn and labelled by whether their completions are all right or all wrong; in each attention head the
contexts are clustered into patterns, and within a pattern Fisher's discriminant separates the two kinds. Online: a
sentence is generated, and where its mean entropy is above gamma it is thrown away and generated again with

    z <- z + sum_m eta_m w_m,   eta_m = alpha tanh(ReLU((mu_m - w_m.z) / sigma_m))

at the last token before it, in the best heads. States that already lie at the Truth mean are not touched.

    trajectories = collect_trajectories(model, tokenizer, problems)
    gate = EntropyGate.fit(trajectories)
    forks = build_forks(model, tokenizer, trajectories, gate, problems)
    steering = DynaSteer().fit(capture_heads(model, tokenizer, forks))
    steering.generate(model, tokenizer, prompts, gate)
"""

from methods.dynasteer.baselines import fit_caa, fit_control_vector, fit_iti, self_consistency
from methods.dynasteer.decoding import Policy, decode
from methods.dynasteer.edits import HeadEdit, ResidualEdit
from methods.dynasteer.forks import ForkSet, NoContrastError, build_forks
from methods.dynasteer.gate import EntropyGate
from methods.dynasteer.heads import HeadActivations, capture_heads
from methods.dynasteer.sampling import GenConfig
from methods.dynasteer.steering import DynaSteer, Generation
from methods.dynasteer.trajectories import Problem, Trajectory, collect_trajectories

__all__ = [
    "DynaSteer",
    "EntropyGate",
    "ForkSet",
    "GenConfig",
    "Generation",
    "HeadActivations",
    "HeadEdit",
    "NoContrastError",
    "Policy",
    "Problem",
    "ResidualEdit",
    "Trajectory",
    "build_forks",
    "capture_heads",
    "collect_trajectories",
    "decode",
    "fit_caa",
    "fit_control_vector",
    "fit_iti",
    "self_consistency",
]

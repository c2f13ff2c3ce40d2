"""Decentralised stochastic K-level optimisation (ICML 2026): agents on a graph solve nested problems without a server.

`KLevelProblem` and `Level` describe a problem, `Graph` who talks to whom, `DKVR` solves it; `hypergradient_oracle` and
`centralised_solution` are the exact answers that it is measured against.
"""

from methods.klevel_decentralized.cleaning import DataCleaning, data_cleaning
from methods.klevel_decentralized.dkvr import DKVR, History
from methods.klevel_decentralized.double_loop import DoubleLoop
from methods.klevel_decentralized.graph import Graph
from methods.klevel_decentralized.mixing import Simulation
from methods.klevel_decentralized.oracle import Hypergradient, centralised_solution, hypergradient_oracle
from methods.klevel_decentralized.problem import KLevelProblem, Level
from methods.klevel_decentralized.processes import AgentLost, GlooMixer, run_processes
from methods.klevel_decentralized.synthetic import SyntheticChain, synthetic_chain

__all__ = [
    "DKVR",
    "AgentLost",
    "DataCleaning",
    "DoubleLoop",
    "GlooMixer",
    "Graph",
    "History",
    "Hypergradient",
    "KLevelProblem",
    "Level",
    "Simulation",
    "SyntheticChain",
    "centralised_solution",
    "data_cleaning",
    "hypergradient_oracle",
    "run_processes",
    "synthetic_chain",
]

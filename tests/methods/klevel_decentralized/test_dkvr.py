"""The algorithm's invariants at every step, its limits, what its parts are for, and going on to the last bit."""

from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.common.errors import ConfigError, DataError, NumericalError
from methods.klevel_decentralized import (
    DKVR,
    DoubleLoop,
    Graph,
    KLevelProblem,
    Level,
    centralised_solution,
    hypergradient_oracle,
    synthetic_chain,
    tracing,
)


def solver(chain: Any, graph: Graph, kind: type[DKVR] = DKVR, **given: Any) -> DKVR:
    few = {"lr": 0.1, "lower_lr": 0.4, "alpha": 0.1, "schedule": "constant", "initial_batch": 2}
    return kind(chain.problem, graph, chain.sample, **(few | given))


def slope(chain: Any, run: DKVR) -> float:
    return float(hypergradient_oracle(chain.problem, run.mean_x1, chain.full).gradient.square().sum())


@settings(max_examples=8, deadline=None)
@given(
    agents=st.integers(1, 6),
    levels=st.integers(1, 3),
    estimator=st.sampled_from(["storm", "momentum", "sgd"]),
    seed=st.integers(0, 999),
)
def test_means_move_as_if_there_were_a_server(agents: int, levels: int, estimator: str, seed: int) -> None:
    drawn = nx.gnp_random_graph(agents, 0.4, seed=seed)
    graph = Graph.metropolis(nx.compose(nx.path_graph(agents), drawn))
    chain = synthetic_chain(agents, levels, size=2, seed=seed)
    run = solver(chain, graph, estimator=estimator, seed=seed, schedule="cube_root", t0=5)
    for _ in range(4):
        before, tracked, (factor, _) = run.state.mean(0), run.tracker.mean(0), run.step_sizes()
        torch.testing.assert_close(tracked, run.estimate.mean(0), atol=1e-12, rtol=0)
        run.step()
        torch.testing.assert_close(
            run.state.mean(0), before - factor * run._rates * tracked, atol=1e-12, rtol=0
        )
        torch.testing.assert_close(run.mixed_state.mean(0), run.state.mean(0), atol=1e-12, rtol=0)


def test_the_recursion_is_the_papers() -> None:
    """Two iterations written out with W, D and the same samples at both places."""
    chain, graph = synthetic_chain(3, 2, size=2), Graph.path(3)
    run = solver(chain, graph, initial_batch=1)
    weights = torch.from_numpy(graph.weights.copy())

    def directions(state: torch.Tensor, iteration: int) -> torch.Tensor:
        batches = run._batches(iteration)
        own = [[{k: v[n] for k, v in batch.items()} for batch in batches] for n in range(3)]
        return torch.stack([chain.problem.directions(state[n], own[n]) for n in range(3)])

    w = torch.zeros(3, chain.problem.total, dtype=torch.float64)
    d = directions(w, 0)
    t = weights @ d
    for iteration in (1, 2):
        new = weights @ w - run._rates * t
        fresh = directions(new, iteration) + 0.9 * (d - directions(w, iteration))
        t = weights @ (t + fresh - d)
        w, d = new, fresh
        run.step()
        torch.testing.assert_close(run.state, w, atol=1e-13, rtol=0)
        torch.testing.assert_close(run.tracker, t, atol=1e-13, rtol=0)


def test_without_noise_it_converges_to_rounding_and_without_tracking_it_stalls() -> None:
    chain = synthetic_chain(3, 2, size=2, noise=0.0, heterogeneity=0.6)
    run = solver(chain, Graph.ring(3), initial_batch=1)
    run.run(700, eval_every=700)
    assert slope(chain, run) < 1e-20
    assert max(run.consensus().values()) < 1e-20
    best = centralised_solution(chain.problem, chain.full)
    assert hypergradient_oracle(chain.problem, run.mean_x1, chain.full).value == pytest.approx(
        best.value, abs=1e-9
    )
    stalled = solver(chain, Graph.path(3), initial_batch=1, estimator="sgd", tracking=False)
    stalled.run(400, eval_every=400)
    assert slope(chain, stalled) > 1e-5


def test_variance_reduction_lowers_the_floor() -> None:
    chain = synthetic_chain(3, 2, size=3)
    best = centralised_solution(chain.problem, chain.full).xs[0]
    floors = {}
    for estimator in ("storm", "sgd"):
        run = solver(chain, Graph.ring(3), estimator=estimator, alpha=0.02, initial_batch=32)
        history = run.run(400, lambda x1: {"away": float((x1 - best).square().sum())}, eval_every=5)
        floors[estimator] = history.column("away")[30:].mean()
    assert floors["storm"] < 0.6 * floors["sgd"]


def test_a_trace_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = synthetic_chain(3, 3, size=2)
    states = []
    for calls in (0, 1_000):
        monkeypatch.setattr(tracing, "CALLS_BEFORE_TRACE", calls)
        run = solver(chain, Graph.ring(3))
        run.run(5)
        assert bool(run._directions._traces) == (calls == 0)
        states.append(run.state)
    assert torch.equal(*states)


def test_alpha_one_is_plain_stochastic_gradients() -> None:
    chain = synthetic_chain(3, 2, size=2)
    one, other = (solver(chain, Graph.ring(3), alpha=1.0, estimator=kind) for kind in ("storm", "sgd"))
    for run in (one, other):
        run.run(10)
    torch.testing.assert_close(one.state, other.state, atol=0, rtol=0)


def test_agents_of_equal_data_on_any_graph_are_one_agent() -> None:
    chain = synthetic_chain(1, 3, size=2, noise=0.0)
    alone = solver(chain, Graph.ring(1))
    several = DKVR(
        chain.problem,
        Graph.star(4),
        lambda agent, generator: chain.sample(0, generator),
        lr=0.1,
        lower_lr=0.4,
        alpha=0.1,
        schedule="constant",
        initial_batch=2,
    )
    for run in (alone, several):
        run.run(20)
    torch.testing.assert_close(several.state, alone.state.expand(4, -1), atol=1e-13, rtol=0)


def test_going_on_is_the_same_to_the_last_bit() -> None:
    chain = synthetic_chain(3, 3, size=2)
    whole, first, second = (solver(chain, Graph.ring(3), schedule="cube_root", t0=4) for _ in range(3))
    whole.run(12)
    first.run(5)
    second.load_state_dict(first.state_dict())
    second.run(7)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    first.run(1)  # what was taken does not move on with the run
    another = solver(chain, Graph.ring(3), seed=1)
    another.run(12)
    assert not torch.equal(another.state, whole.state)


def test_one_message_an_iteration_whatever_the_levels() -> None:
    for levels in (2, 4):
        chain = synthetic_chain(4, levels, size=2)
        run = solver(chain, Graph.ring(4))
        last = run.run(10, eval_every=5).rows[-1]
        assert last["rounds"] == 11
        assert last["messages"] == 11 * 8
        entries = (2 * levels - 1) * 2
        assert last["bytes"] == 8 * 8 * (entries + 10 * 2 * entries)


def test_the_double_loop_gets_there_with_many_more_rounds() -> None:
    chain = synthetic_chain(4, 2, size=2, noise=0.0)
    best, rounds = centralised_solution(chain.problem, chain.full).xs[0], {}
    for name, kind in (("single", DKVR), ("double", DoubleLoop)):
        run = solver(
            chain, Graph.ring(4), kind, initial_batch=1, **({"inner": 10} if name == "double" else {})
        )
        while (run.mean_x1 - best).norm() > 1e-2:
            run.step()
            assert run.iteration < 500, name
        rounds[name] = run.rounds
    assert rounds["double"] > 3 * rounds["single"]


def test_a_projection_bounds_the_adjoints_only() -> None:
    chain = synthetic_chain(3, 3, size=3)
    run = solver(chain, Graph.ring(3), projection=0.01)
    run.run(30)
    xs, zs = run.state.split([9, 6], 1)
    assert zs.view(3, 2, 3).norm(dim=2).max() <= 0.01 + 1e-12
    assert xs.norm(dim=1).min() > 0.1


def test_a_run_stops_when_it_has_arrived() -> None:
    chain = synthetic_chain(2, 2, size=2, noise=0.0)
    history = solver(chain, Graph.ring(2)).run(5_000, tolerance=1e-8, patience=5, eval_every=1_000)
    assert history.stopped is not None
    assert history.rows[-1]["iteration"] == history.stopped < 1_000


def test_what_is_not_finite_names_level_and_iteration() -> None:
    chain = synthetic_chain(2, 3, size=2)
    with pytest.raises(NumericalError, match=r"iteration \d+: the directions of .*x_1.* are not finite"):
        solver(chain, Graph.ring(2), lr=1e6, lower_lr=1e6).run(200)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lr": 0.0}, "lr 0.0"),
        ({"lower_lr": -1.0}, "lower_lr -1.0"),
        ({"alpha": 1.5}, "alpha 1.5"),
        ({"alpha": 0.0}, "alpha 0.0"),
        ({"schedule": "linear"}, "schedule 'linear'"),
        ({"estimator": "adam"}, "estimator 'adam'"),
        ({"tracking": 1}, "tracking 1"),
        ({"projection": 0.0}, "projection 0.0"),
        ({"initial_batch": 0}, "initial_batch 0"),
        ({"seed": -1}, "seed -1"),
        ({"t0": float("nan")}, "t0 nan"),
        ({"start": torch.zeros(3)}, r"start of shape \(3,\): give \(4,\)"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        solver(synthetic_chain(2, 2, size=2), Graph.ring(2), **changes)


def test_batches_and_states_that_do_not_fit_are_refused() -> None:
    chain = synthetic_chain(2, 2, size=2)
    with pytest.raises(DataError, match="1 batches of agent 0 for 2 levels"):
        DKVR(chain.problem, Graph.ring(2), lambda agent, generator: chain.sample(agent, generator)[:1])
    run = solver(chain, Graph.ring(2))
    with pytest.raises(DataError, match="another problem or another number of agents"):
        solver(synthetic_chain(3, 2, size=2), Graph.ring(3)).load_state_dict(run.state_dict())
    with pytest.raises(DataError, match="tracker missing"):
        run.load_state_dict({k: v for k, v in run.state_dict().items() if k != "tracker"})


def test_a_map_level_and_its_argmin_form_walk_the_same_way() -> None:
    def step(x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return torch.tanh(batch * x)

    def loss(before: torch.Tensor, now: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return 0.5 * (now - step(before, batch)).square().sum()

    def sample(agent: int, generator: torch.Generator) -> list[torch.Tensor]:
        return [torch.randn(2, generator=generator, dtype=torch.float64) + agent for _ in range(3)]

    states = []
    for level in (Level(2, map=step), Level(2, loss)):
        problem = KLevelProblem(2, lambda x1, xs, batch: (xs[-1] - batch).square().sum(), [level, level])
        run = DKVR(problem, Graph.ring(3), sample, initial_batch=1, start=torch.ones(6))
        run.run(10)
        states.append(run.state)
    torch.testing.assert_close(states[0], states[1], atol=1e-12, rtol=0)

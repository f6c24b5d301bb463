"""How measurement sets are drawn: which inputs, from whose stream, and that nobody else has a say in it."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths.functional_kl import Span, measure
from fsvi_bench.maths.random import distinct
from fsvi_bench.methods.data import MeasurementDesign, MeasurementStream, Streams
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.seeds import derive_seed
from tests.maths.draws import close, eye
from tests.methods.synthetic import synthetic, transparent


def with_duplicates(B=2, N=30, D=4, distinct=12, seed=0):
    """Inputs of which `distinct` differ, in an order that hides it."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((B, distinct, D))
    which = np.stack(
        [rng.permutation(np.r_[np.arange(distinct), rng.integers(0, distinct, N - distinct)]) for _ in range(B)]
    )
    return torch.from_numpy(np.take_along_axis(rows, which[..., None], axis=1))


def draw(problems, sets, seeds, *design, **options):
    return stream_of(problems, MeasurementDesign(*design, **options), seeds).draw(range(sets)).clone()


def stream_of(problems, design, seeds):
    return MeasurementStream(problems, design, Streams(tuple(seeds)))


def rows_of(tensor):
    return {tuple(row) for row in tensor.tolist()}


# --- Which inputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "M", "M_data"), [("mixed", 7, 3), ("mixed", 8, 4), ("mixed", 1, 0), ("data", 7, 7), ("box", 7, 0)]
)
def test_a_set_is_distinct_training_inputs_then_the_box(source, M, M_data):
    problems = transparent(with_duplicates())
    assert MeasurementDesign(M, source).M_data == M_data
    sets = draw(problems, 50, [1, 2], M, source)
    assert sets.shape == (50, 2, M, 4)
    low, high = problems.low[None, :, None], problems.high[None, :, None]
    assert ((sets >= low) & (sets <= high)).all()
    for b in range(2):
        training = rows_of(problems.X[b])
        for inputs in sets[:, b]:
            seen = rows_of(inputs[:M_data])
            assert len(seen) == M_data  # as inputs: two equal rows of the data would be one here
            assert seen <= training
            assert not rows_of(inputs[M_data:]) & training  # the box has no chance to hit one
    # Sets differ from each other, and so do problems.
    assert len({tuple(inputs.flatten().tolist()) for inputs in sets[:, 0]}) == 50
    if M_data < M:
        unit = (sets - low) / (high - low)
        assert (unit[:, 0, M_data:] != unit[:, 1, M_data:]).all()


def test_all_distinct_inputs_can_be_had_and_no_more():
    problems = transparent(with_duplicates(distinct=12))
    for inputs in draw(problems, 20, [1, 2], 12, "data")[:, 1]:
        assert rows_of(inputs) == rows_of(problems.X[1])
    with pytest.raises(InputError, match=r"M=13 needs 13 distinct training inputs, but a split has only 12.*smaller"):
        draw(problems, 1, [1, 2], 13, "data")
    with pytest.raises(InputError, match="needs 13 distinct"):
        draw(problems, 1, [1, 2], 26)
    draw(problems, 1, [1, 2], 25)  # 12 of them
    draw(problems, 1, [1, 2], 1000, "box")  # and the box has enough for anybody


def test_one_problem_with_too_few_is_enough_for_an_error():
    X = with_duplicates()
    X[1, :, :] = X[1, :1, :]
    with pytest.raises(InputError, match="but a split has only 1"):
        draw(transparent(X), 1, [1, 2], 4)


# --- Features ---------------------------------------------------------------------------------------------------------


def test_features_are_the_feature_map_at_the_inputs():
    """k = 10 makes two dummy weights; the inputs are drawn again from the streams' seeds."""
    problems, M, sets = synthetic(3, k=10), 7, 5
    features = draw(problems, sets, [11, 12, 13], M)
    assert features.shape == (sets, 3, M, 12)
    assert not features[..., 10:].any()
    for b, seed in enumerate((11, 12, 13)):
        streams = Streams((seed,))
        rows = distinct(streams.keys("measurement rows"), range(sets), [30], 3, torch.device("cpu"))[:, 0]
        assert torch.equal(features[:, b, :3, :10], problems.Phi[b, rows])
        unit = torch.cat([streams.at(t, streams.device).uniform("measurement box", 4, 2) for t in range(sets)])
        inputs = problems.low[b] + (problems.high[b] - problems.low[b]) * unit
        for t in range(sets):  # each set by itself: a triangular solve of another width rounds differently
            expected = problems.feature_map[b](inputs[t])
            close(features[t, b, 3:, :10], expected, rtol=1e-13, atol=1e-13)


# --- Streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["mixed", "data", "box"])
def test_sets_do_not_depend_on_how_many_are_drawn_at_a_time(source):
    """With features that round nothing, the 16 sets are the same ones however they are asked for."""
    problems, design = transparent(with_duplicates()), MeasurementDesign(6, source)
    whole = stream_of(problems, design, [1, 2]).draw(range(16)).clone()
    for ends in ((0, 8, 16), (0, 1, 16), (0, 5, 10, 16)):
        stream = stream_of(problems, design, [1, 2])
        parts = [stream.draw(range(*steps)).clone() for steps in reversed(list(pairwise(ends)))]
        assert torch.equal(torch.cat(parts[::-1]), whole)


def test_the_design_says_how_the_kl_is_taken():
    problems = synthetic(1)
    Phi_A = draw(problems, 1, [1], 6)[0]
    jittered = MeasurementDesign(6, kl_jitter=0.5).measure(Phi_A)
    assert isinstance(jittered, Span)
    expected = measure(Phi_A, jitter=0.5)
    assert torch.equal(jittered.basis, expected.basis)
    assert torch.equal(jittered.slack_root, expected.slack_root)
    Phi_A[0, 1] = Phi_A[0, 0] + 1e-12 * Phi_A[0, 1]
    identity = eye(8)[None]
    for tolerance, rank in ((1e-9, 5), (1e-14, 6)):
        A = MeasurementDesign(6, rank_tolerance=tolerance).measure(Phi_A)
        assert float(A.project_rows(identity)[0].trace()) == pytest.approx(rank, abs=1e-9)


def test_training_inputs_and_box_have_streams_of_their_own():
    """The same problem, the same seed: what the box gives does not depend on whether rows are drawn, nor vice versa."""
    problems = transparent(with_duplicates())
    mixed = draw(problems, 9, [1, 2], 6)
    assert torch.equal(mixed[:, :, :3], draw(problems, 9, [1, 2], 3, "data"))
    assert torch.equal(mixed[:, :, 3:], draw(problems, 9, [1, 2], 3, "box"))
    assert not torch.equal(draw(problems, 9, [1, 2], 6), draw(problems, 9, [1, 3], 6))


def test_a_stream_depends_on_its_seed_and_its_role():
    streams, roles = Streams((1, 2)), ("measurement rows", "minibatch rows")
    draws = [float(u) for role in roles for u in streams.uniform(role, 1)]
    assert len(set(draws)) == 4
    bits = np.random.Philox(key=derive_seed(1, "measurement rows"), counter=[0, 7, 0, 0])
    assert float(streams.at(7, streams.device).uniform(roles[0], 1)[0]) == np.random.Generator(bits).random()


@pytest.mark.parametrize("shape", [(3,), (5, 7), (300, 100)])
def test_numbers_drawn_ahead_are_those_of_their_step(shape):
    """A small draw is made for many steps at once, a large one for its own; asked for in any order, they are alike."""
    streams = Streams((4, 5))
    for law in ("normal", "uniform"):
        alone = [getattr(Streams((4, 5), step), law)("purpose", *shape) for step in range(70)]
        assert len({float(numbers.sum()) for numbers in alone}) == 70
        for step in (0, 1, 69, 3, 2, 64, 63):
            got = getattr(streams.at(step, streams.device), law)("purpose", *shape)
            assert got.shape == (2, *shape)
            assert torch.equal(got, alone[step])
            got.zero_()  # whoever asked may write into it


# --- TrainingData -------------------------------------------------------------------------------------------------


def test_problems_are_stacked_from_what_methods_may_see(toy):
    stacked = TrainingData.of([toy, toy])
    assert (len(stacked), stacked.k) == (2, 20)
    for b in range(2):
        assert torch.equal(stacked.X[b], toy.X)
        assert torch.equal(stacked.y[b], toy.y)
        assert torch.equal(stacked.Phi[b], toy.Phi)
        assert torch.equal(stacked.noise_variance[b], toy.frozen.noise_variance)
        assert torch.equal(stacked.low[b], toy.X.amin(0))
        assert torch.equal(stacked.high[b], toy.X.amax(0))
        assert torch.equal(stacked.feature_map[b](toy.X_test), toy.Phi_test)

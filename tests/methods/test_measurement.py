"""How measurement sets are drawn: which inputs, from whose stream, and that nobody else has a say in it."""

import numpy as np
import pytest
import torch

from fsvi_bench.errors import InputError
from fsvi_bench.maths.batching import fill, filled
from fsvi_bench.maths.functional_kl import Gaussian, Span, functional_kl, measure
from fsvi_bench.methods.data import CHUNK, MeasurementDesign, MeasurementStream, Streams, distinct_rows, fill_columns
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.seeds import derive_seed
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
    return stream_of(problems, MeasurementDesign(*design, **options), seeds).draw(sets).clone()


def stream_of(problems, design, seeds):
    return MeasurementStream(problems, design, Streams(seeds))


def stream_generator(seed, role):
    """A problem's own stream for one purpose."""
    (generator,) = Streams([seed])(role)
    return generator


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
    with pytest.raises(InputError, match=r"M=13 asks for 13 distinct training inputs, but a split has 12.*smaller"):
        draw(problems, 1, [1, 2], 13, "data")
    with pytest.raises(InputError, match="asks for 13 distinct"):
        draw(problems, 1, [1, 2], 26)
    draw(problems, 1, [1, 2], 25)  # 12 of them
    draw(problems, 1, [1, 2], 1000, "box")  # and the box has enough for anybody


def test_one_problem_with_too_few_is_enough_for_an_error():
    X = with_duplicates()
    X[1, :, :] = X[1, :1, :]
    with pytest.raises(InputError, match="but a split has 1"):
        draw(transparent(X), 1, [1, 2], 4)


def test_distinct_rows_are_the_first_of_each_group():
    X = torch.tensor([[2.0, 1.0], [0.0, 5.0], [2.0, 1.0], [2.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    assert distinct_rows(X).tolist() == [0, 1, 3]


def test_every_distinct_input_is_as_likely_as_any_other():
    """Of 4000 sets each holds 3 of 12: a count is binomial with p = 1/4, however often the input is in the data."""
    problems = transparent(with_duplicates(B=1))
    firsts = draw(problems, 4000, [3], 3, "data")[:, 0, :, 0].flatten()
    values, counts = np.unique(firsts.numpy(), return_counts=True)
    assert len(values) == 12
    standard_error = np.sqrt(4000 * 0.25 * 0.75)
    assert np.abs(counts - 1000).max() < 4 * standard_error
    assert counts.std() > 0.2 * standard_error  # drawn, not dealt out


def test_box_inputs_are_uniform_in_the_box():
    """Mean and mean square of 16,000 draws a coordinate, in units of the box, against 1/2 and 1/3."""
    problems = transparent(with_duplicates())
    low, high = problems.low[None, :, None], problems.high[None, :, None]
    unit = ((draw(problems, 2000, [4, 5], 8, "box") - low) / (high - low)).transpose(1, 2).flatten(0, 1)
    n = len(unit)
    assert n == 16000
    assert ((unit.mean(0) - 1 / 2).abs() < 4 * np.sqrt(1 / 12 / n)).all()
    assert ((unit.square().mean(0) - 1 / 3).abs() < 4 * np.sqrt(4 / 45 / n)).all()
    assert (unit.amax(0) > 0.999).all()
    assert (unit.amin(0) < 0.001).all()


# --- Features ---------------------------------------------------------------------------------------------------------


def test_features_are_the_feature_map_at_the_inputs():
    """k = 10 makes two dummy weights; the inputs are drawn again from the streams' seeds."""
    problems, M, sets = synthetic(3, k=10), 7, 5
    features = draw(problems, sets, [11, 12, 13], M)
    assert features.shape == (sets, 3, M, 12)
    assert not features[..., 10:].any()
    for b, seed in enumerate((11, 12, 13)):
        generator = stream_generator(seed, "measurement rows")
        rows = np.stack([generator.choice(30, 3, replace=False, shuffle=False) for _ in range(sets)])
        assert torch.equal(features[:, b, :3, :10], problems.Phi[b, torch.from_numpy(rows)])
        unit = torch.from_numpy(stream_generator(seed, "measurement box").random((sets, 4, 2)))
        inputs = problems.low[b] + (problems.high[b] - problems.low[b]) * unit
        for t in range(sets):  # each set by itself: a triangular solve of another width rounds differently
            expected = problems.feature_map[b](inputs[t])
            torch.testing.assert_close(features[t, b, 3:, :10], expected, rtol=1e-13, atol=1e-13)


def test_filling_up_adds_columns_of_zeros_up_to_a_multiple_of_4():
    assert [filled(k) for k in (1, 4, 5, 20, 98)] == [4, 4, 8, 20, 100]
    Phi = torch.arange(1.0, 11.0, dtype=torch.float64).reshape(1, 2, 5)
    assert torch.equal(fill_columns(Phi)[..., :5], Phi)
    assert torch.equal(fill_columns(Phi)[..., 5:], torch.zeros(1, 2, 3, dtype=torch.float64))
    assert torch.equal(fill_columns(Phi[..., :4]), Phi[..., :4])
    assert torch.equal(fill(Phi)[:, :2], fill_columns(Phi))
    assert torch.equal(fill(Phi)[:, 2:], torch.zeros(1, 2, 8, dtype=torch.float64))


# --- Streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["mixed", "data", "box"])
def test_sets_do_not_depend_on_how_many_are_drawn_at_a_time(source):
    """With features that round nothing, the 16 sets are the same ones however they are asked for."""
    problems, design = transparent(with_duplicates()), MeasurementDesign(6, source)
    whole = stream_of(problems, design, [1, 2]).draw(16).clone()
    for sizes in ((8, 8), (1, 15), (5, 5, 6)):
        stream = stream_of(problems, design, [1, 2])
        parts = [stream.draw(size).clone() for size in sizes]
        assert torch.equal(torch.cat(parts), whole)


def test_equal_draws_are_bitwise_equal_and_go_on():
    problems, design = synthetic(3), MeasurementDesign(6)
    one, two = stream_of(problems, design, [1, 2, 3]), stream_of(problems, design, [1, 2, 3])
    first = one.draw(8).clone()
    assert torch.equal(first, two.draw(8))
    second = one.draw(8).clone()
    assert torch.equal(second, two.draw(8))
    assert not (first == second).flatten(2).all(-1).any()


def test_iteration_gives_the_drawn_sets_with_their_measurements():
    problems, design = synthetic(2), MeasurementDesign(3)
    stream = stream_of(problems, design, [1, 2])
    expected = torch.cat([stream.draw(CHUNK).clone() for _ in range(2)])
    identity = torch.eye(8, dtype=torch.float64).repeat(2, 1, 1)
    again, count = stream_of(problems, design, [1, 2]), 0
    for chunk in range(2):
        for Phi_A, (A, features) in zip(expected[chunk * CHUNK :], again.sets(CHUNK), strict=False):
            assert torch.equal(features[:, :3], Phi_A)
            assert not features[:, 3:].any()
            assert torch.equal(A.project_rows(identity), measure(Phi_A.clone()).project_rows(identity))
            count += 1
    assert count == 2 * CHUNK


def test_the_design_says_how_the_kl_is_taken():
    problems = synthetic(1)
    Phi_A = draw(problems, 1, [1], 6)[0]
    jittered = MeasurementDesign(6, kl_jitter=0.5).measure(Phi_A)
    assert isinstance(jittered, Span)
    expected = measure(Phi_A, jitter=0.5)
    assert torch.equal(jittered.basis, expected.basis)
    assert torch.equal(jittered.slack_root, expected.slack_root)
    Phi_A[0, 1] = Phi_A[0, 0] + 1e-12 * Phi_A[0, 1]
    identity = torch.eye(8, dtype=torch.float64)[None]
    for tolerance, rank in ((1e-9, 5), (1e-14, 6)):
        A = MeasurementDesign(6, rank_tolerance=tolerance).measure(Phi_A)
        assert float(A.project_rows(identity)[0].trace()) == pytest.approx(rank, abs=1e-9)


def test_a_problem_is_bitwise_the_same_in_any_batch():
    problems, design = synthetic(5, D=3), MeasurementDesign(7)
    together = stream_of(problems, design, range(5)).sets(10)
    alone = [stream_of(problems.only(b), design, [b]).sets(10) for b in range(5)]

    def value_and_gradients(A, B):
        leaves = [torch.linspace(0.1, 1, 8, dtype=torch.float64).repeat(B, 1).requires_grad_() for _ in range(2)]
        kl = functional_kl(Gaussian(*leaves), A)
        return kl.detach(), *torch.autograd.grad(kl.sum(), leaves)

    for (A, Phi_A), *parts in zip(together, *alone, strict=True):
        whole = value_and_gradients(A, 5)
        for b, (own, own_Phi_A) in enumerate(parts):
            assert torch.equal(Phi_A[b], own_Phi_A[0])
            for everyone, one in zip(whole, value_and_gradients(own, 1), strict=True):
                assert torch.equal(everyone[b], one[0])


def test_training_inputs_and_box_have_streams_of_their_own():
    """The same problem, the same seed: what the box gives does not depend on whether rows are drawn, nor vice versa."""
    problems = transparent(with_duplicates())
    mixed = draw(problems, 9, [1, 2], 6)
    assert torch.equal(mixed[:, :, :3], draw(problems, 9, [1, 2], 3, "data"))
    assert torch.equal(mixed[:, :, 3:], draw(problems, 9, [1, 2], 3, "box"))
    assert not torch.equal(draw(problems, 9, [1, 2], 6), draw(problems, 9, [1, 3], 6))


def test_a_stream_depends_on_its_seed_and_its_role():
    draws = [
        stream_generator(seed, role).random() for seed in (1, 2) for role in ("measurement rows", "minibatch rows")
    ]
    assert len(set(draws)) == 4
    expected = np.random.Generator(np.random.SFC64(derive_seed(1, "measurement rows"))).random()
    assert draws[0] == expected


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


def test_only_one_problem_is_a_copy_of_it():
    problems = synthetic(3)
    one = problems.only(1)
    assert len(one) == 1
    for name in ("X", "y", "Phi", "noise_variance", "low", "high"):
        whole, part = getattr(problems, name), getattr(one, name)
        assert torch.equal(part[0], whole[1])
        assert part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    torch.testing.assert_close(one.feature_map(one.X), problems.Phi[1:2], rtol=1e-13, atol=1e-13)

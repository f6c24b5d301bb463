"""Lightning's advice about GPUs is dropped, and nothing else."""

from __future__ import annotations

import warnings

from pytorch_lightning.utilities.warnings import PossibleUserWarning

from fsvi_bench.running.quiet import no_word_of_unused_gpus

ADVICE = "GPU available but not used. You can set it by doing `Trainer(accelerator='gpu')`."


def test_advice_is_dropped_and_other_warnings_are_not():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with no_word_of_unused_gpus():
            warnings.warn(ADVICE, PossibleUserWarning, stacklevel=1)
            warnings.warn("something else", PossibleUserWarning, stacklevel=1)
    assert [str(each.message) for each in said] == ["something else"]


def test_what_was_shown_before_is_shown_after():
    before = list(warnings.filters)
    with no_word_of_unused_gpus():
        pass
    assert warnings.filters == before

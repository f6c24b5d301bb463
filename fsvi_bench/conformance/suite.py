"""The checks in order, and what comes of running them on a method."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from fsvi_bench.conformance import conduct, form, repeating, scoring
from fsvi_bench.conformance.subject import Subject
from fsvi_bench.conformance.verdict import Failed, Finding, NotApplicable, Report, told
from fsvi_bench.running.quiet import no_word_of_unused_gpus

Check = Callable[[Subject], str | None]  #: what it returns is said beside its "ok"

#: By the names that reports have for them. What has no posterior in the end has nothing else to be checked for.
FIRST: Mapping[str, Check] = {"trains": form.trains, "posterior after training": form.posterior_after_training}
CHECKS: Mapping[str, Check] = {
    **FIRST,
    "options are checked": form.options_are_checked,
    "posterior before the first step": form.posterior_before_training,
    "one entry per problem": form.one_entry_per_problem,
    "the same in any batch": repeating.batch_on_toys,
    "the same in any batch, odd shapes": repeating.batch_on_odd_shapes,
    "the same seed, the same bits": repeating.same_seed,
    "another seed, other numbers": repeating.another_seed,
    "looking moves nothing": repeating.looking,
    "keeps to its budget": conduct.budget,
    "counts its work": conduct.work,
    "scores are numbers": scoring.scores_are_numbers,
    "reaches its exact limit": scoring.exact_limit,
    "leaves random generators alone": conduct.global_random_state,
    "leaves the process as it was": conduct.process_settings,
    "leaves its problems as they were": repeating.problems_untouched,
    "writes no files": conduct.no_files,
    "the same on a GPU": repeating.on_gpu,
}


def check_method(subjects: Sequence[Subject], names: Sequence[str] = tuple(CHECKS)) -> Report:
    """Runs the checks on each family of one method, in an empty folder that is thrown away.

    Args:
        subjects: one method with each of its families.
        names: the checks to run; what must work before anything else is run in any case.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        conduct.kept_state(),
        contextlib.chdir(folder),
        no_word_of_unused_gpus(),
    ):
        findings = tuple(finding for subject in subjects for finding in _findings(subject, names))
    return Report(subjects[0].entry.name, findings)


def _findings(subject: Subject, names: Sequence[str]) -> Iterator[Finding]:
    rest = [name for name in names if name not in FIRST]
    failed: str | None = None
    for name in (*FIRST, *rest):
        if failed is not None:
            yield Finding(name, subject.family, "not applicable", f"first this has to be mended: {failed}")
            continue
        yield (found := _finding(name, subject))
        if name in FIRST and found.status == "failed":
            failed = name


def _finding(name: str, subject: Subject) -> Finding:
    """Whatever a method raises is its failing, not the suite's."""
    try:
        with conduct.kept_state():
            remark = CHECKS[name](subject)
    except NotApplicable as why:
        return Finding(name, subject.family, "not applicable", str(why))
    except Failed as found:
        return Finding(name, subject.family, "failed", str(found))
    except (Exception, SystemExit) as error:
        return Finding(name, subject.family, "failed", told(error, inspect.getfile(subject.entry.cls)))  # type: ignore[arg-type]
    return Finding(name, subject.family, "ok", remark or "")
